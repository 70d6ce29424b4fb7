//! Asking a running service.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::net::UnixStream;

use super::messages::{
    AnnounceAnswer, AnnounceRequest, Document, DrainAnswer, DrainRequest, ErrorAnswer, StatusAnswer,
    WaitAnswer, WaitRequest,
};

/// The largest answer that is read.
const LARGEST_ANSWER_BYTES: usize = 16 << 20;
/// How long an answer may take beyond what the request itself waits for.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// A service's control socket. Every question is answered in time, or is an error.
#[derive(Debug, Clone)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// The socket at `path`. Nothing is connected yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the service is.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when nobody answers within `within`.
    pub async fn status(&self, within: Duration) -> Result<StatusAnswer> {
        self.ask(Method::GET, "/v1/status", None::<&()>, within).await
    }

    /// Announces a finished step.
    ///
    /// # Errors
    /// Why the step was not taken; [`ErrorKind::Unreachable`] when nobody answers.
    pub async fn announce(&self, request: &AnnounceRequest) -> Result<AnnounceAnswer> {
        self.ask(Method::POST, "/v1/announce", Some(request), 2 * ANSWERED_WITHIN)
            .await
    }

    /// What became of an announcement; waits a few seconds for news.
    ///
    /// # Errors
    /// As for [`announce`](Self::announce).
    pub async fn announcement(&self, id: u64) -> Result<AnnounceAnswer> {
        let path = format!("/v1/announcements/{id}");
        self.ask(Method::GET, &path, None::<&()>, 2 * ANSWERED_WITHIN)
            .await
    }

    /// Waits for a step.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when nobody answers in the time that the request gives and `grace` beyond it.
    pub async fn wait(&self, request: &WaitRequest, grace: Duration) -> Result<WaitAnswer> {
        let within = Duration::from_secs(request.timeout_seconds).saturating_add(grace);
        self.ask(Method::POST, "/v1/wait", Some(request), within).await
    }

    /// Asks the service to end; with `wait` in the request, waits for that for at most `within`.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when nobody answers in time.
    pub async fn drain(&self, request: &DrainRequest, within: Duration) -> Result<DrainAnswer> {
        let within = within.saturating_add(ANSWERED_WITHIN);
        self.ask(Method::POST, "/v1/drain", Some(request), within).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        within: Duration,
    ) -> Result<T> {
        let asked = tokio::time::timeout(within, self.exchange(method, path, body));
        asked.await.unwrap_or_else(|_| {
            Err(self.unreachable(&format!("it did not answer within {} s", within.as_secs())))
        })
    }

    fn unreachable(&self, why: &str) -> Error {
        Error::new(ErrorKind::Unreachable, "cannot talk to the agent")
            .on(self.path.display())
            .because(why)
            .hint(
                "start it with 'stepvault agent'; with another vault or socket, name them as the agent does",
            )
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T> {
        let broken = |error: hyper::Error| self.unreachable(&format!("the connection broke: {error}"));
        let stream = UnixStream::connect(&self.path).await.map_err(|error| {
            let why = match error.kind() {
                std::io::ErrorKind::NotFound => "there is no such socket".to_owned(),
                std::io::ErrorKind::ConnectionRefused => "nobody listens there any more".to_owned(),
                _ => error.to_string(),
            };
            self.unreachable(&why)
        })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        let bytes = match body {
            Some(body) => serde_json::to_vec(body)
                .map_err(|error| Error::new(ErrorKind::Usage, "cannot write the request").caused_by(error))?,
            None => Vec::new(),
        };
        let mut request = Request::new(Full::new(Bytes::from(bytes)));
        *request.method_mut() = method;
        *request.uri_mut() = path
            .parse()
            .map_err(|error| Error::new(ErrorKind::Usage, "cannot write the request").caused_by(error))?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = async {
            let answer = sender.send_request(request).await.map_err(broken)?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), LARGEST_ANSWER_BYTES);
            let bytes = body
                .collect()
                .await
                .map_err(|error| self.unreachable(&format!("the answer broke off: {error}")))?
                .to_bytes();
            Ok((status, bytes))
        };
        // The connection has to be driven, and ends with the answer.
        let (status, bytes) = tokio::select! {
            answer = answer => answer?,
            error = driven(connection) => return Err(broken(error)),
        };
        if status.is_success() {
            let document: Document<T> =
                serde_json::from_slice(&bytes).map_err(|error| self.foreign(&error))?;
            return Ok(document.body);
        }
        let refused: ErrorAnswer = serde_json::from_slice(&bytes).map_err(|error| self.foreign(&error))?;
        Err(refused.error.into_error())
    }

    fn foreign(&self, error: &serde_json::Error) -> Error {
        Error::new(ErrorKind::Failed, "cannot understand the agent's answer")
            .on(self.path.display())
            .because(error)
            .hint("an agent of another version may run there: restart it")
    }
}

/// Drives a connection; ends only with an error, as the answer may still be read when the connection has ended.
async fn driven(connection: impl Future<Output = hyper::Result<()>>) -> hyper::Error {
    match connection.await {
        Ok(()) => std::future::pending().await,
        Err(error) => error,
    }
}

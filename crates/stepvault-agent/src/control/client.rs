//! Client for the control socket of a running service.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stepvault_core::document::{Document, ErrorAnswer};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::net::UnixStream;

use crate::messages::{
    AnnounceAnswer, AnnounceRequest, AttachAnswer, AttachRequest, DetachRequest, DrainAnswer, DrainRequest,
    StatusAnswer, WaitAnswer, WaitRequest,
};

/// Maximum size of an answer.
const LARGEST_ANSWER_BYTES: usize = 16 << 20;
/// How long an answer may take beyond the time that the request itself waits.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Client for a service's control socket. Every request is answered in time, or fails.
#[derive(Debug, Clone)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// Creates a client for the socket at `path`, without connecting.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the service's status.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when there is no answer within `within`.
    pub async fn status(&self, within: Duration) -> Result<StatusAnswer> {
        self.ask(Method::GET, "/v1/status", None::<&()>, within).await
    }

    /// Announces a finished step.
    ///
    /// # Errors
    /// The cause why the step was not sealed; [`ErrorKind::Unreachable`] when there is no answer.
    pub async fn announce(&self, request: &AnnounceRequest) -> Result<AnnounceAnswer> {
        self.ask(Method::POST, "/v1/announce", Some(request), 2 * ANSWERED_WITHIN).await
    }

    /// Returns the outcome of an announcement; waits a few seconds for progress.
    ///
    /// # Errors
    /// As for [`announce`](Self::announce).
    pub async fn announcement(&self, id: u64) -> Result<AnnounceAnswer> {
        let path = format!("/v1/announcements/{id}");
        self.ask(Method::GET, &path, None::<&()>, 2 * ANSWERED_WITHIN).await
    }

    /// Waits for a step.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when there is no answer within the request's timeout plus `grace`.
    pub async fn wait(&self, request: &WaitRequest, grace: Duration) -> Result<WaitAnswer> {
        let within = Duration::from_secs(request.timeout_seconds).saturating_add(grace);
        self.ask(Method::POST, "/v1/wait", Some(request), within).await
    }

    /// Asks the service to end; with `wait` in the request, waits for that for at most `within`.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when there is no answer in time.
    pub async fn drain(&self, request: &DrainRequest, within: Duration) -> Result<DrainAnswer> {
        let within = within.saturating_add(ANSWERED_WITHIN);
        self.ask(Method::POST, "/v1/drain", Some(request), within).await
    }

    /// Lets the service run for as long as a process does, if it runs for processes.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when it does not serve the run or there is no such process; [`ErrorKind::Interrupted`] when
    /// it is about to end; [`ErrorKind::Unreachable`] when there is no answer.
    pub async fn attach(&self, request: &AttachRequest) -> Result<AttachAnswer> {
        self.ask(Method::POST, "/v1/attach", Some(request), ANSWERED_WITHIN).await
    }

    /// Tells the service that a process writes no checkpoints any longer; with `wait` in the request and if it was the last
    /// one, waits for the service's end for at most `within`.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when the service does not run for processes; [`ErrorKind::Unreachable`] when there is no
    /// answer in time.
    pub async fn detach(&self, request: &DetachRequest, within: Duration) -> Result<DrainAnswer> {
        let within = within.saturating_add(ANSWERED_WITHIN);
        self.ask(Method::POST, "/v1/detach", Some(request), within).await
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
        Error::new(ErrorKind::Unreachable, "cannot reach the agent")
            .on(self.path.display())
            .because(why)
            .hint("start it with 'stepvault agent', or give the vault and socket that the agent uses")
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
                std::io::ErrorKind::ConnectionRefused => "connection refused (it has exited)".to_owned(),
                _ => error.to_string(),
            };
            self.unreachable(&why)
        })?;
        if let Some(why) = self.foreign_peer(&stream) {
            return Err(Error::new(ErrorKind::Denied, "refusing to use the socket")
                .on(self.path.display())
                .because(why)
                .hint("give the agent's own socket or vault, or run the command as the agent's user"));
        }
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
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
                .map_err(|error| self.unreachable(&format!("the answer was cut off: {error}")))?
                .to_bytes();
            Ok((status, bytes))
        };
        // The connection has to be polled, and ends with the answer.
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

    /// Returns why the listening process is not trusted: another user could claim that a step is durable when it is
    /// not. Root trusts the user who owns the socket's directory.
    fn foreign_peer(&self, stream: &UnixStream) -> Option<String> {
        let own = rustix::process::geteuid().as_raw();
        let peer = match stream.peer_cred() {
            Ok(peer) => peer.uid(),
            Err(error) => return Some(format!("cannot determine its owner: {error}")),
        };
        let keeper = || {
            let directory = self.path.parent()?.metadata().ok()?;
            Some(directory.uid())
        };
        let is_trusted = peer == own || peer == 0 || own == 0 && keeper() == Some(peer);
        (!is_trusted).then(|| format!("user {peer} listens on it, and this is user {own}"))
    }

    fn foreign(&self, error: &serde_json::Error) -> Error {
        Error::new(ErrorKind::Failed, "cannot understand the agent's answer")
            .on(self.path.display())
            .because(error)
            .hint("restart the agent: it may be of another version")
    }
}

/// Polls a connection; returns only errors, because the answer may still be read after the connection has ended.
async fn driven(connection: impl Future<Output = hyper::Result<()>>) -> hyper::Error {
    match connection.await {
        Ok(()) => std::future::pending().await,
        Err(error) => error,
    }
}

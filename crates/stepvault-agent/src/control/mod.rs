//! Control API of a running service: HTTP and JSON over a Unix socket that only its own user can open, and optional
//! metrics on a loopback port.
//!
//! Clients may be slow, malicious or numerous: connections, requests, waits and the time for each are bounded, and none
//! of them runs on the threads that seal and upload.

mod client;
mod routes;
mod serve;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stepvault_core::document::{Document, ErrorAnswer, ErrorInfo};
use stepvault_core::{Error, ErrorKind, Result, RunName};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

pub use self::client::Client;
pub use self::routes::LONGEST_WAIT;
pub(crate) use self::serve::Control;
use crate::followed::Followed;
pub use crate::messages::{
    AgentProcess, AnnounceAnswer, AnnounceRequest, AnnouncedStep, AnnouncementState, AttachAnswer,
    AttachRequest, DetachRequest, DrainAnswer, DrainRequest, RemoteRate, RunStatus, SeenOfRun, Skipped,
    StatusAnswer, TriedRemote, WaitAnswer, WaitRequest,
};
use crate::metrics::Metrics;
use crate::remotes::ServedRun;
use crate::shared::Shared;

/// Maximum number of requests that wait at once.
pub(crate) const MAX_WAITS: usize = 64;

/// What a service left undone, once it has ended.
pub(crate) type FinalResponse = Option<Arc<DrainAnswer>>;

/// The state from which requests are answered.
#[derive(Debug)]
pub(crate) struct ControlState {
    pub(crate) shared: Arc<Shared>,
    /// The processes that the service runs for, if it was started for one.
    pub(crate) followed: Option<Arc<Followed>>,
    pub(crate) runs: Arc<[ServedRun]>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ended: watch::Receiver<FinalResponse>,
    pub(crate) waits: Semaphore,
}

impl ControlState {
    /// Returns the named run, or the only one.
    fn run(&self, name: Option<&RunName>) -> Result<&ServedRun> {
        let names: Vec<&str> = self.runs.iter().map(|served| served.name().as_str()).collect();
        let names = names.join(", ");
        match (name, &*self.runs) {
            (Some(name), runs) => runs.iter().find(|served| served.name() == name).ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "this agent does not serve the run")
                    .on(name)
                    .hint(format!("use one of its runs: {names}"))
            }),
            (None, [only]) => Ok(only),
            (None, _) => Err(Error::new(ErrorKind::Usage, "no run selected")
                .because("the agent serves several")
                .hint(format!("name one: {names}"))),
        }
    }

    /// Returns a permit to wait. Excess requests are refused: queueing them would be an unbounded wait.
    fn wait_permit(&self) -> Result<SemaphorePermit<'_>> {
        self.waits.try_acquire().map_err(|_| {
            Error::new(ErrorKind::Held, "too many waiting requests")
                .because(format!("{MAX_WAITS} requests are already waiting"))
                .hint("retry later")
        })
    }
}

/// Maximum size of a request's body.
const LARGEST_BODY_BYTES: usize = 64 << 10;
/// Time limit for receiving a body.
const BODY_WITHIN: Duration = Duration::from_secs(5);

type Answer = Response<Full<Bytes>>;

/// Builds a text answer.
fn text(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// Builds an answer with one JSON document.
fn document(status: StatusCode, body: impl Serialize) -> Answer {
    let document = Document::new(body);
    match serde_json::to_vec(&document) {
        Ok(bytes) => text(status, "application/json", bytes),
        Err(error) => {
            tracing::warn!(%error, "cannot write an answer");
            text(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", "")
        }
    }
}

/// The answer to a refused request.
#[derive(Debug)]
struct Refusal(Answer);

impl Refusal {
    fn new(status: StatusCode, error: &Error) -> Self {
        let error = ErrorInfo::from(error);
        Self(document(status, ErrorAnswer { error }))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::new(status_of(&error), &error)
    }
}

/// Returns the HTTP status for an error's kind.
fn status_of(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::Usage => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::Held => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Interrupted => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        // The request is valid, but its subject is not.
        ErrorKind::Damaged | ErrorKind::SourceChanged | ErrorKind::Refused | ErrorKind::Conflict => {
            StatusCode::CONFLICT
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Reads a request's body: one JSON document. An empty body counts as an empty document.
async fn read<T: DeserializeOwned>(body: Incoming) -> std::result::Result<T, Refusal> {
    let fault = |why: String| Error::new(ErrorKind::Usage, "cannot read the request").because(why);
    let read = tokio::time::timeout(BODY_WITHIN, Limited::new(body, LARGEST_BODY_BYTES).collect());
    let bytes = match read.await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let error = fault(format!("its body has more than {LARGEST_BODY_BYTES} bytes"));
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, &error));
        }
        Ok(Err(error)) => return Err(Refusal::new(StatusCode::BAD_REQUEST, &fault(error.to_string()))),
        Err(_) => {
            let error = fault(format!("its body did not arrive within {} s", BODY_WITHIN.as_secs()));
            return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, &error));
        }
    };
    let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    serde_json::from_slice(text).map_err(|error| {
        let error = fault(error.to_string()).hint("see docs/reference/control.md for each request's members");
        Refusal::new(StatusCode::BAD_REQUEST, &error)
    })
}

//! Control API of a running service: HTTP and JSON over a Unix socket that only its own user can open, and optional
//! metrics on a loopback port.
//!
//! Requests and waits are bounded here, connections in [`crate::http`].

mod client;
mod routes;
mod serve;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
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

/// Builds an answer with one JSON document.
fn document(status: StatusCode, body: impl Serialize) -> Response {
    match serde_json::to_vec(&Document::new(body)) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => {
            tracing::warn!(%error, "cannot write an answer");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// The answer to a refused request.
#[derive(Debug)]
struct Refusal(StatusCode, ErrorInfo);

impl Refusal {
    fn new(status: StatusCode, error: &Error) -> Self {
        Self(status, ErrorInfo::from(error))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::new(status_of(&error), &error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        document(self.0, ErrorAnswer { error: self.1 })
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

/// A request's body: one JSON document. Its type in the header does not count. An empty body counts as an empty document.
struct Read<T>(T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Read<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> std::result::Result<Self, Refusal> {
        read(request.into_body()).await.map(Self)
    }
}

async fn read<T: DeserializeOwned>(body: Body) -> std::result::Result<T, Refusal> {
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

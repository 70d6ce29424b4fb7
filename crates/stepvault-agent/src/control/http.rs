//! HTTP requests and answers of the control API.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stepvault_core::document::{Document, ErrorAnswer, ErrorInfo};
use stepvault_core::{Error, ErrorKind};

/// Maximum size of a request's body.
const LARGEST_BODY_BYTES: usize = 64 << 10;
/// Time limit for receiving a body.
const BODY_WITHIN: Duration = Duration::from_secs(5);

pub(super) type Answer = Response<Full<Bytes>>;

/// Builds a text answer.
pub(super) fn text(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// Builds an answer with one JSON document.
pub(super) fn document(status: StatusCode, body: impl Serialize) -> Answer {
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
pub(super) struct Refusal(pub(super) Answer);

impl Refusal {
    pub(super) fn new(status: StatusCode, error: &Error) -> Self {
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
pub(super) async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Refusal> {
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

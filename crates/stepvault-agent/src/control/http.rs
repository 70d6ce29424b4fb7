//! Requests and answers as HTTP.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stepvault_core::{Error, ErrorKind};

use super::messages::{Document, ErrorAnswer, ErrorInfo, FORMAT};

/// The largest body that is read.
const LARGEST_BODY_BYTES: usize = 64 << 10;
/// How long a body may take to come.
const BODY_WITHIN: Duration = Duration::from_secs(5);

pub(super) type Answer = Response<Full<Bytes>>;

/// An answer of text.
pub(super) fn text(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// An answer of one document.
pub(super) fn document(status: StatusCode, body: impl Serialize) -> Answer {
    let document = Document { format: FORMAT, body };
    match serde_json::to_vec(&document) {
        Ok(bytes) => text(status, "application/json", bytes),
        Err(error) => {
            tracing::warn!(%error, "an answer could not be written");
            text(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", "")
        }
    }
}

/// An error as an answer.
pub(super) fn refusal(status: StatusCode, error: &Error) -> Answer {
    let error = ErrorInfo::from(error);
    document(status, ErrorAnswer { error })
}

/// The status that goes with an error's kind.
pub(super) fn status_of(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::Usage => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::Held => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Interrupted => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        // What was asked is fine, and what it is about is not.
        ErrorKind::Damaged | ErrorKind::SourceChanged | ErrorKind::Refused | ErrorKind::Conflict => {
            StatusCode::CONFLICT
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Reads a request's body: one JSON document. None at all is an empty one.
pub(super) async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Answer> {
    let fault = |why: String| Error::new(ErrorKind::Usage, "cannot read the request").because(why);
    let read = tokio::time::timeout(BODY_WITHIN, Limited::new(body, LARGEST_BODY_BYTES).collect());
    let bytes = match read.await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let error = fault(format!("its body has more than {LARGEST_BODY_BYTES} bytes"));
            return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, &error));
        }
        Ok(Err(error)) => return Err(refusal(StatusCode::BAD_REQUEST, &fault(error.to_string()))),
        Err(_) => {
            let error = fault(format!(
                "its body did not come within {} s",
                BODY_WITHIN.as_secs()
            ));
            return Err(refusal(StatusCode::REQUEST_TIMEOUT, &error));
        }
    };
    let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    serde_json::from_slice(text).map_err(|error| {
        let error = fault(error.to_string()).hint("docs/reference/control.md lists what each request takes");
        refusal(StatusCode::BAD_REQUEST, &error)
    })
}

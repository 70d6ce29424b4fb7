//! Converts errors of `object_store` to ours: a kind for the caller's decisions, and a text with a hint for the user.

use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};
use stepvault_core::{Error, ErrorKind};

use super::transport::Refusal;
use crate::connection_obstacle::ConnectionObstacle;
use crate::gcs::NoCredentials;

/// Returns the error for operation `what` on `subject` (a URL with the key).
pub(crate) fn store_error(what: &str, subject: &str, error: object_store::Error) -> Error {
    if let Some(refusal) = find::<Refusal>(&error) {
        return refused(what, subject, refusal);
    }
    if let Some(NoCredentials(error)) = find::<NoCredentials>(&error) {
        return error.clone();
    }
    if let Some(transport) = find::<HttpError>(&error) {
        return transport_error(what, subject, transport);
    }
    let kind = match &error {
        object_store::Error::NotFound { .. } => ErrorKind::NotFound,
        object_store::Error::AlreadyExists { .. }
        | object_store::Error::Precondition { .. }
        | object_store::Error::NotModified { .. } => ErrorKind::Conflict,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            ErrorKind::Denied
        }
        object_store::Error::InvalidPath { .. } => {
            return Error::new(ErrorKind::Failed, what)
                .on(subject)
                .caused_by(error)
                .hint("an object there has an unsupported name; move it elsewhere");
        }
        // The memory store reports this only in its message.
        object_store::Error::Generic { source, .. }
            if source.to_string().starts_with("MultipartUpload not found") =>
        {
            ErrorKind::NotFound
        }
        object_store::Error::Generic { source, .. } if source.to_string().starts_with("Invalid range") => {
            ErrorKind::Damaged
        }
        _ => ErrorKind::Failed,
    };
    Error::new(kind, what).on(subject).caused_by(error)
}

/// Returns the error for a transport failure: the request may or may not have been carried out.
pub(crate) fn transport_error(what: &str, subject: &str, error: &HttpError) -> Error {
    if let Some(refusal) = find::<Refusal>(error) {
        return refused(what, subject, refusal);
    }
    let why = deepest(error);
    let obstacle = ConnectionObstacle::of(&why);
    let by_kind = || {
        let hint = match error.kind() {
            HttpErrorKind::Connect => "check the endpoint, the network and any proxy",
            _ => "check the network; the request is safe to repeat",
        };
        hint.to_owned()
    };
    let is_lasting = obstacle.as_ref().is_some_and(|obstacle| obstacle.is_lasting);
    let error = Error::new(ErrorKind::Unreachable, what)
        .on(subject)
        .because(why)
        .hint(obstacle.map_or_else(by_kind, |obstacle| obstacle.hint));
    if is_lasting {
        error.for_operator().lasting()
    } else {
        error
    }
}

/// An answer without a sign that the store gave it.
const NOT_THE_STORE: (ErrorKind, &str) = (
    ErrorKind::Unreachable,
    "this is not the store's answer; check the endpoint: a proxy, a gateway, a login page or another host answers in the \
     store's place",
);

/// Returns the error for a refusal, by its code or its status.
pub(crate) fn refused(what: &str, subject: &str, refusal: &Refusal) -> Error {
    let (kind, hint) = match by_code(&refusal.code) {
        Some(verdict) => verdict,
        None if matches!(refusal.status, 300..400 | 404 | 410) && !refusal.is_of_store => NOT_THE_STORE,
        None => by_status(refusal.status),
    };
    let mut error = Error::new(kind, what).on(subject).because(refusal);
    if !hint.is_empty() {
        error = error.hint(hint);
    }
    match refusal.retry_after_seconds {
        Some(seconds) if kind == ErrorKind::Unreachable => error.retry_after(Duration::from_secs(seconds)),
        _ => error,
    }
}

/// Maps Google's and Azure's codes that say more than their status.
fn by_code(code: &str) -> Option<(ErrorKind, &'static str)> {
    Some(match code {
        "NoSuchBucket" | "ContainerNotFound" | "ResourceNotFound" => (
            ErrorKind::Usage,
            "create the bucket or container, or correct the remote's URL",
        ),
        "BadDigest" | "Md5Mismatch" | "Crc64Mismatch" => (
            ErrorKind::Damaged,
            "the bytes were corrupted in transit; if it happens again, check this machine's memory and network",
        ),
        "InvalidPart" | "InvalidPartOrder" | "EntityTooSmall" | "InvalidBlockList" => (
            ErrorKind::Damaged,
            "the store does not have the parts that were sent; the upload has to start over",
        ),
        "BlobArchived" | "BlobBeingRehydrated" => (
            ErrorKind::Failed,
            "the object is archived; restore it from there first",
        ),
        "ContainerBeingDeleted" | "OperationAborted" | "ServerBusy" => (ErrorKind::Unreachable, ""),
        "BlobAlreadyExists" | "PreconditionFailed" => (ErrorKind::Conflict, ""),
        "RequestTimeTooSkewed" => (ErrorKind::Denied, "set this machine's clock, by NTP if possible"),
        _ => return None,
    })
}

fn by_status(status: u16) -> (ErrorKind, &'static str) {
    match status {
        401 => (
            ErrorKind::Denied,
            "the credentials are missing, wrong or expired; renew them, or check which ones are used",
        ),
        403 => (
            ErrorKind::Denied,
            "grant this identity permission to read, write, list and delete there",
        ),
        404 | 410 => (ErrorKind::NotFound, ""),
        409 | 412 => (ErrorKind::Conflict, ""),
        // A range past the end: the object is shorter than its manifest says.
        416 => (ErrorKind::Damaged, ""),
        429 => (
            ErrorKind::Unreachable,
            "the store asks to slow down; lower max-concurrent-requests",
        ),
        507 => (ErrorKind::NoSpace, "free some space there or raise the quota"),
        501 => (ErrorKind::Failed, "the store does not support this operation"),
        408 | 500..=599 => (
            ErrorKind::Unreachable,
            "the store is overloaded or down; the request is safe to repeat",
        ),
        _ => (ErrorKind::Failed, ""),
    }
}

/// Returns the first error of type `T` in the chain.
pub(crate) fn find<'a, T: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// Returns an error and its causes, the outermost first.
pub(crate) fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// Returns the texts of an error's causes without the outermost one, which only repeats them.
fn deepest(error: &HttpError) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in causes(error).skip(1).map(ToString::to_string) {
        if texts.last().is_none_or(|last| !last.contains(&text)) {
            texts.push(text);
        }
    }
    if texts.is_empty() {
        error.to_string()
    } else {
        texts.join(": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, code: &str) -> Refusal {
        Refusal {
            status,
            code: code.to_owned(),
            message: String::new(),
            retry_after_seconds: None,
            is_of_store: !code.is_empty(),
        }
    }

    fn error(status: u16, code: &str) -> Error {
        refused("cannot write the object", "az://c/p/k", &refusal(status, code))
    }

    #[test]
    fn refusals_become_kinds_that_callers_decide_on() {
        for (status, code, kind) in [
            (401, "", ErrorKind::Denied),
            (403, "AccessDenied", ErrorKind::Denied),
            (404, "NoSuchKey", ErrorKind::NotFound),
            // A proxy's.
            (404, "", ErrorKind::Unreachable),
            (302, "", ErrorKind::Unreachable),
            (404, "NoSuchBucket", ErrorKind::Usage),
            (404, "ContainerNotFound", ErrorKind::Usage),
            (412, "", ErrorKind::Conflict),
            (409, "BlobAlreadyExists", ErrorKind::Conflict),
            (409, "BlobArchived", ErrorKind::Failed),
            (409, "ContainerBeingDeleted", ErrorKind::Unreachable),
            (400, "BadDigest", ErrorKind::Damaged),
            (400, "InvalidPart", ErrorKind::Damaged),
            (400, "InvalidArgument", ErrorKind::Failed),
            (416, "InvalidRange", ErrorKind::Damaged),
            (429, "", ErrorKind::Unreachable),
            (501, "NotImplemented", ErrorKind::Failed),
            (503, "SlowDown", ErrorKind::Unreachable),
        ] {
            assert_eq!(error(status, code).kind(), kind, "{status} {code}");
        }
    }

    #[test]
    fn a_refusal_is_found_through_every_layer() {
        let inner = HttpError::new(
            HttpErrorKind::Unknown,
            Refusal {
                retry_after_seconds: Some(7),
                ..refusal(503, "SlowDown")
            },
        );
        let error = object_store::Error::Generic {
            store: "GCS",
            source: Box::new(inner),
        };
        let error = store_error("cannot list", "gs://b/p", error);
        assert_eq!(
            error.to_string(),
            "cannot list: gs://b/p: the server answered 503 SlowDown"
        );
        assert_eq!(error.retry_after_wait(), Some(Duration::from_secs(7)));
    }

    #[test]
    fn hints_say_what_to_do() {
        assert!(error(401, "").hint_text().unwrap().contains("renew"));
        assert!(error(403, "").hint_text().unwrap().contains("grant"));
        assert!(
            error(404, "NoSuchBucket")
                .hint_text()
                .unwrap()
                .contains("create the bucket")
        );
        assert_eq!(error(404, "NoSuchKey").hint_text(), None);
    }
}

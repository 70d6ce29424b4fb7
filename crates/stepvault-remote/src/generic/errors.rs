//! Converts errors of `object_store` to ours.

use stepvault_core::{Error, ErrorKind};

/// Returns the error for operation `what` on `subject` (a URL with the key).
pub(super) fn store_error(what: &str, subject: &str, error: object_store::Error) -> Error {
    #[cfg(feature = "azure")]
    if let Some(error) = super::transport::request_error(what, subject, &error) {
        return error;
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
        // The memory store reports these only in its message.
        object_store::Error::Generic { source, .. } => match source.to_string() {
            why if why.starts_with("MultipartUpload not found") => ErrorKind::NotFound,
            why if why.starts_with("Invalid range") => ErrorKind::Damaged,
            _ => ErrorKind::Failed,
        },
        _ => ErrorKind::Failed,
    };
    Error::new(kind, what).on(subject).caused_by(error)
}

//! Maps S3's error codes and statuses to reasons and hints.

use stepvault_core::ErrorKind;

/// The meaning of a failed request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict {
    pub(super) kind: ErrorKind,
    /// Empty where the store's own message is sufficient.
    pub(super) why: &'static str,
    /// Empty where there is nothing to do.
    pub(super) hint: &'static str,
}

pub(super) const fn verdict(kind: ErrorKind, why: &'static str, hint: &'static str) -> Verdict {
    Verdict { kind, why, hint }
}

pub(super) const FULL: Verdict =
    verdict(ErrorKind::NoSpace, "the store is full", "free some space or raise the quota");
/// An answer without a sign that the store gave it.
pub(super) const NOT_THE_STORE: Verdict = verdict(
    ErrorKind::Unreachable,
    "the answer is not the store's",
    "check the endpoint: a proxy, a gateway, a login page or another host answers in the store's place",
);
/// A file of more than 1,000 parts on a store that takes no more.
pub(super) const TOO_MANY_PARTS: Verdict = verdict(
    ErrorKind::Failed,
    "the store takes fewer parts of an upload than the 10,000 of S3",
    "raise the store's limit (OpenStack Swift: max_upload_part_num of s3api and max_manifest_segments of slo), or keep \
     each file below 8 MiB for each part that it takes",
);

/// Returns the verdict on an S3 error code, or `None` for an unknown code.
pub(super) fn by_code(code: &str) -> Option<Verdict> {
    of_access(code).or_else(|| of_request(code))
}

/// Codes about the bucket, the keys and whether the caller may use them.
fn of_access(code: &str) -> Option<Verdict> {
    use ErrorKind::{Denied, NotFound, Usage};
    Some(match code {
        "NoSuchBucket" => {
            verdict(Usage, "the bucket does not exist", "create it, or correct the remote's URL")
        }
        "NoSuchKey" | "NotFound" => verdict(NotFound, "the object does not exist", ""),
        "NoSuchUpload" => {
            verdict(NotFound, "the upload does not exist: it was completed, aborted or expired", "")
        }
        "InvalidAccessKeyId" => verdict(
            Denied,
            "the store does not know this access key",
            "check AWS_ACCESS_KEY_ID or the profile, and that they belong to this endpoint",
        ),
        "SignatureDoesNotMatch" => verdict(
            Denied,
            "the secret key does not match the access key",
            "check AWS_SECRET_ACCESS_KEY or the profile for a wrong or truncated secret",
        ),
        "AccessDenied" | "AllAccessDisabled" | "AccountProblem" | "Forbidden" => verdict(
            Denied,
            "the credentials do not allow this",
            "grant the action on the bucket and its objects; without s3:ListBucket this \
             can also mean a missing object; if expected-bucket-owner is set, check it",
        ),
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => verdict(
            Denied,
            "the credentials have expired",
            "renew them (for a profile: `aws sso login`); the next attempt reads them again",
        ),
        "InvalidToken" => {
            verdict(Denied, "the session token is not valid", "check AWS_SESSION_TOKEN or the profile")
        }
        "RequestTimeTooSkewed" => verdict(
            Denied,
            "this machine's clock is too far from the store's",
            "set the clock, by NTP if possible",
        ),
        "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => {
            verdict(Usage, "the bucket is in another region", "set region for this remote")
        }
        _ => return None,
    })
}

/// Codes about a request of a caller who may send it.
fn of_request(code: &str) -> Option<Verdict> {
    use ErrorKind::{Conflict, Damaged, Failed, Unreachable, Usage};
    Some(match code {
        "SlowDown"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequests"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded" => {
            verdict(Unreachable, "the store asks to slow down", "lower max-concurrent-requests")
        }
        "InternalError" | "ServiceUnavailable" | "Busy" => {
            verdict(Unreachable, "the store reports an internal error", "")
        }
        "RequestTimeout" | "IncompleteBody" => verdict(Unreachable, "the request arrived incomplete", ""),
        "OperationAborted" => verdict(Unreachable, "another operation is under way on the same resource", ""),
        "PreconditionFailed" => verdict(Conflict, "a precondition failed", ""),
        "ConditionalRequestConflict" => verdict(Conflict, "another write to the same key is under way", ""),
        "BadDigest" | "InvalidDigest" | "XAmzContentSHA256Mismatch" | "XAmzContentChecksumMismatch" => {
            verdict(
                Damaged,
                "the bytes that arrived do not match their checksum",
                "if it happens again, check this machine's memory and network",
            )
        }
        "InvalidPart" | "InvalidPartOrder" | "EntityTooSmall" => verdict(
            Damaged,
            "the store does not have the parts that were sent",
            "the upload has to start over",
        ),
        "InvalidRange" => verdict(Damaged, "the object is shorter than the requested range", ""),
        "InvalidObjectState" => {
            verdict(Failed, "the object is archived", "restore it from the archive first")
        }
        "QuotaExceeded" | "XMinioStorageFull" => FULL,
        "InvalidStorageClass" => {
            verdict(Usage, "the store does not know the storage class", "correct storage-class")
        }
        "KMS.NotFoundException"
        | "KMS.DisabledException"
        | "KMS.InvalidKeyUsageException"
        | "KMS.KMSInvalidStateException" => {
            verdict(Usage, "the encryption key cannot be used", "correct kms-key")
        }
        _ => return None,
    })
}

/// Returns the verdict where there is only a status.
pub(super) fn by_status(status: u16) -> Verdict {
    match status {
        301 | 307 | 308 => {
            verdict(ErrorKind::Usage, "the bucket is in another region", "set region for this remote")
        }
        // Answers to HEAD have no body and therefore no code; a code that is not known stands for itself.
        400 => verdict(
            ErrorKind::Failed,
            "",
            "check the credentials and the region: an answer without a body does not tell them apart",
        ),
        401 | 403 => verdict(
            ErrorKind::Denied,
            "the credentials do not allow this",
            "check credentials and policy; without s3:ListBucket this can also mean a missing object",
        ),
        404 => verdict(ErrorKind::NotFound, "", ""),
        409 | 412 => verdict(ErrorKind::Conflict, "", ""),
        413 => verdict(
            ErrorKind::Failed,
            "the request is larger than the server accepts",
            "raise the limit on the size of a body, of the server or of a proxy before it (nginx: client_max_body_size, \
             1 MiB by default), to 128 MiB",
        ),
        416 => verdict(ErrorKind::Damaged, "the object is shorter than the requested range", ""),
        429 => {
            verdict(ErrorKind::Unreachable, "the store asks to slow down", "lower max-concurrent-requests")
        }
        507 => FULL,
        501 => verdict(ErrorKind::Failed, "the store does not support this operation", ""),
        500..600 => verdict(ErrorKind::Unreachable, "the store reports an internal error", ""),
        _ => verdict(ErrorKind::Failed, "", ""),
    }
}

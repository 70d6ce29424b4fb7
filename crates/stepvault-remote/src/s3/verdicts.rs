//! Maps S3's error codes and statuses to reasons and hints.

use stepvault_core::ErrorKind;

/// Kind, reason and hint; empty where the store's own message is sufficient.
pub(super) type Verdict = (ErrorKind, &'static str, &'static str);

pub(super) const FULL: Verdict = (
    ErrorKind::NoSpace,
    "the store is full",
    "free some space or raise the quota",
);
/// An answer without a sign that the store gave it.
pub(super) const NOT_THE_STORE: Verdict = (
    ErrorKind::Unreachable,
    "the answer is not the store's",
    "check the endpoint: a proxy, a gateway, a login page or another host answers in the store's place",
);
/// A file of more than 1,000 parts on a store that takes no more.
pub(super) const TOO_MANY_PARTS: Verdict = (
    ErrorKind::Failed,
    "the store takes fewer parts of an upload than the 10,000 of S3",
    "raise the store's limit (OpenStack Swift: max_upload_part_num of s3api and max_manifest_segments of slo), or keep \
     each file below 8 MiB for each part that it takes",
);

/// Returns the verdict on an S3 error code, or `None` for an unknown code.
pub(super) fn by_code(code: &str) -> Option<Verdict> {
    use ErrorKind::{Conflict, Damaged, Denied, Failed, NotFound, Unreachable, Usage};
    Some(match code {
        "NoSuchBucket" => (
            Usage,
            "the bucket does not exist",
            "create it, or correct the remote's URL",
        ),
        "NoSuchKey" | "NotFound" => (NotFound, "the object does not exist", ""),
        "NoSuchUpload" => (
            NotFound,
            "the upload does not exist: it was completed, aborted or expired",
            "",
        ),
        "InvalidAccessKeyId" => (
            Denied,
            "the store does not know this access key",
            "check AWS_ACCESS_KEY_ID or the profile, and that they belong to this endpoint",
        ),
        "SignatureDoesNotMatch" => (
            Denied,
            "the secret key does not match the access key",
            "check AWS_SECRET_ACCESS_KEY or the profile for a wrong or truncated secret",
        ),
        "AccessDenied" | "AllAccessDisabled" | "AccountProblem" | "Forbidden" => (
            Denied,
            "the credentials do not allow this",
            "grant the action on the bucket and its objects; without s3:ListBucket this \
             can also mean a missing object; if expected-bucket-owner is set, check it",
        ),
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => (
            Denied,
            "the credentials have expired",
            "renew them (for a profile: `aws sso login`); the next attempt reads them again",
        ),
        "InvalidToken" => (
            Denied,
            "the session token is not valid",
            "check AWS_SESSION_TOKEN or the profile",
        ),
        "RequestTimeTooSkewed" => (
            Denied,
            "this machine's clock is too far from the store's",
            "set the clock, by NTP if possible",
        ),
        "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => (
            Usage,
            "the bucket is in another region",
            "set region for this remote",
        ),
        "SlowDown"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequests"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded" => (
            Unreachable,
            "the store asks to slow down",
            "lower max-concurrent-requests",
        ),
        "InternalError" | "ServiceUnavailable" | "Busy" => {
            (Unreachable, "the store reports an internal error", "")
        }
        "RequestTimeout" | "IncompleteBody" => (Unreachable, "the request arrived incomplete", ""),
        "OperationAborted" => (
            Unreachable,
            "another operation is under way on the same resource",
            "",
        ),
        "PreconditionFailed" => (Conflict, "a precondition failed", ""),
        "ConditionalRequestConflict" => (Conflict, "another write to the same key is under way", ""),
        "BadDigest" | "InvalidDigest" | "XAmzContentSHA256Mismatch" | "XAmzContentChecksumMismatch" => (
            Damaged,
            "the bytes that arrived do not match their checksum",
            "if it happens again, check this machine's memory and network",
        ),
        "InvalidPart" | "InvalidPartOrder" | "EntityTooSmall" => (
            Damaged,
            "the store does not have the parts that were sent",
            "the upload has to start over",
        ),
        "InvalidRange" => (Damaged, "the object is shorter than the requested range", ""),
        "InvalidObjectState" => (
            Failed,
            "the object is archived",
            "restore it from the archive first",
        ),
        "QuotaExceeded" | "XMinioStorageFull" => FULL,
        "InvalidStorageClass" => (
            Usage,
            "the store does not know the storage class",
            "correct storage-class",
        ),
        "KMS.NotFoundException"
        | "KMS.DisabledException"
        | "KMS.InvalidKeyUsageException"
        | "KMS.KMSInvalidStateException" => (Usage, "the encryption key cannot be used", "correct kms-key"),
        _ => return None,
    })
}

/// Returns the verdict where there is only a status.
pub(super) fn by_status(status: u16) -> Verdict {
    match status {
        301 | 307 | 308 => (
            ErrorKind::Usage,
            "the bucket is in another region",
            "set region for this remote",
        ),
        // Answers to HEAD have no body and therefore no code; a code that is not known stands for itself.
        400 => (
            ErrorKind::Failed,
            "",
            "check the credentials and the region: an answer without a body does not tell them apart",
        ),
        401 | 403 => (
            ErrorKind::Denied,
            "the credentials do not allow this",
            "check credentials and policy; without s3:ListBucket this can also mean a missing object",
        ),
        404 => (ErrorKind::NotFound, "", ""),
        409 | 412 => (ErrorKind::Conflict, "", ""),
        413 => (
            ErrorKind::Failed,
            "the request is larger than the server accepts",
            "raise the limit on the size of a body, of the server or of a proxy before it (nginx: client_max_body_size, \
             1 MiB by default), to 128 MiB",
        ),
        416 => (
            ErrorKind::Damaged,
            "the object is shorter than the requested range",
            "",
        ),
        429 => (
            ErrorKind::Unreachable,
            "the store asks to slow down",
            "lower max-concurrent-requests",
        ),
        507 => (
            ErrorKind::NoSpace,
            "the store is full",
            "free some space or raise the quota",
        ),
        501 => (ErrorKind::Failed, "the store does not support this operation", ""),
        500..600 => (ErrorKind::Unreachable, "the store reports an internal error", ""),
        _ => (ErrorKind::Failed, "", ""),
    }
}

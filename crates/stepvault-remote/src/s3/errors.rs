//! From the SDK's errors to ours: what failed, on what, why, and what to do about it.

use std::error::Error as StdError;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use stepvault_core::{Error, ErrorKind};

use super::connector::Stalled;

/// Why a request failed, apart from which one it was.
#[derive(Debug)]
pub(crate) struct Fault {
    status: u16,
    code: String,
    message: String,
    retry_after: Option<Duration>,
    bucket_region: Option<String>,
    transport: Option<Transport>,
}

/// Failures without a whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    /// The connection failed, fell silent, or broke inside the answer.
    Connection,
    /// No credentials could be had.
    NoCredentials,
    /// Whoever gives the credentials did not answer.
    CredentialsLater,
    /// The request could not even be built.
    Request,
}

impl Fault {
    /// Takes an SDK error apart.
    pub(crate) fn of<E>(error: &SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        let mut fault = Self {
            status: 0,
            code: String::new(),
            message: String::new(),
            retry_after: None,
            bucket_region: None,
            transport: None,
        };
        if let Some(response) = error.raw_response() {
            let header = |name| response.headers().get(name);
            fault.status = response.status().as_u16();
            fault.retry_after = header("retry-after").and_then(|text| text.parse().ok()).map(Duration::from_secs);
            fault.bucket_region = header("x-amz-bucket-region").map(str::to_owned);
        }
        if let SdkError::ServiceError(service) = error {
            fault.code = service.err().code().unwrap_or_default().to_owned();
            fault.message = service.err().message().unwrap_or_default().to_owned();
            return fault;
        }
        let (transport, message) = transport_fault(error);
        // A status that says enough counts even when the body behind it could not be read.
        if !(400..600).contains(&fault.status) {
            fault.transport = Some(transport);
        }
        fault.message = message;
        fault
    }

    /// A body that broke off or fell silent while it was read.
    pub(crate) fn of_body(error: &(dyn StdError + 'static)) -> Self {
        Self {
            status: 0,
            code: String::new(),
            message: innermost(error),
            retry_after: None,
            bucket_region: None,
            transport: Some(Transport::Connection),
        }
    }

    /// A fault that came inside an answer for many keys.
    pub(crate) fn of_entry(code: Option<&str>, message: Option<&str>) -> Self {
        Self {
            status: 0,
            code: code.unwrap_or_default().to_owned(),
            message: message.unwrap_or_default().to_owned(),
            retry_after: None,
            bucket_region: None,
            transport: None,
        }
    }

    /// Whether the object or the upload does not exist; a missing bucket is something else.
    pub(crate) fn is_missing(&self) -> bool {
        match self.code.as_str() {
            "NoSuchKey" | "NoSuchUpload" | "NotFound" => true,
            "" => self.status == 404,
            _ => false,
        }
    }

    /// Whether a precondition failed: the key is taken.
    pub(crate) fn is_precondition_failed(&self) -> bool {
        self.code == "PreconditionFailed" || (self.code.is_empty() && self.status == 412)
    }

    /// Whether the store does not have this operation.
    pub(crate) fn is_not_implemented(&self) -> bool {
        matches!(self.code.as_str(), "NotImplemented" | "MethodNotAllowed") || matches!(self.status, 405 | 501)
    }

    /// Whether newer credentials would help.
    pub(crate) fn is_expired(&self) -> bool {
        matches!(self.code.as_str(), "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired")
    }

    /// The error for an operation `what` on `subject`.
    pub(crate) fn into_error(self, what: &str, subject: &str) -> Error {
        let (kind, why, hint) = self.judge();
        let detail = self.detail();
        let why = match (why.is_empty(), detail.is_empty()) {
            (true, _) => detail,
            (false, true) => why.to_owned(),
            (false, false) => format!("{why} ({detail})"),
        };
        let mut error = Error::new(kind, what).on(subject);
        if !why.is_empty() {
            error = error.because(why);
        }
        if let Some(region) = &self.bucket_region
            && kind == ErrorKind::Usage
        {
            error = error.hint(format!("set region = \"{region}\" for this remote"));
        } else if !hint.is_empty() {
            error = error.hint(hint);
        }
        if self.is_expired()
            || self.code == "ConditionalRequestConflict"
            || self.transport == Some(Transport::CredentialsLater)
        {
            error = error.transient();
        }
        match self.retry_after {
            Some(wait) if kind == ErrorKind::Unreachable => error.retry_after(wait),
            _ => error,
        }
    }

    /// The store's own words.
    fn detail(&self) -> String {
        match (self.code.as_str(), self.message.as_str()) {
            ("", "") if self.status == 0 => String::new(),
            ("", "") => format!("HTTP {}", self.status),
            ("", message) if (400..600).contains(&self.status) => format!("HTTP {}: {message}", self.status),
            ("", message) => message.to_owned(),
            (code, "") => code.to_owned(),
            (code, message) => format!("{code}: {}", message.trim_end_matches('.')),
        }
    }

    fn judge(&self) -> (ErrorKind, &'static str, &'static str) {
        if let Some(transport) = self.transport {
            return transport.judge();
        }
        by_code(&self.code).unwrap_or_else(|| by_status(self.status))
    }
}

impl Transport {
    fn judge(self) -> (ErrorKind, &'static str, &'static str) {
        match self {
            Self::Connection => (ErrorKind::Unreachable, "", "check the endpoint, the network and any proxy between"),
            Self::NoCredentials => (ErrorKind::Denied, "no credentials were found", GIVE_CREDENTIALS),
            Self::CredentialsLater => (ErrorKind::Denied, "the credentials could not be loaded", GIVE_CREDENTIALS),
            Self::Request => (ErrorKind::Usage, "the request could not be built", ""),
        }
    }
}

const GIVE_CREDENTIALS: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile (after `aws sso \
                                login` where it needs that), or run where an instance or pod role applies";

fn by_code(code: &str) -> Option<(ErrorKind, &'static str, &'static str)> {
    use ErrorKind::{Conflict, Damaged, Denied, Failed, NoSpace, NotFound, Unreachable, Usage};
    Some(match code {
        "NoSuchBucket" => (Usage, "the bucket does not exist", "create it, or correct the remote's URL"),
        "NoSuchKey" | "NotFound" => (NotFound, "the object does not exist", ""),
        "NoSuchUpload" => (NotFound, "the upload does not exist: it was completed, aborted or expired", ""),
        "InvalidAccessKeyId" => (
            Denied,
            "the store does not know this access key",
            "check AWS_ACCESS_KEY_ID or the profile, and that they belong to this endpoint",
        ),
        "SignatureDoesNotMatch" => (
            Denied,
            "the secret key does not fit the access key",
            "check AWS_SECRET_ACCESS_KEY or the profile for a wrong or cut secret",
        ),
        "AccessDenied" | "AllAccessDisabled" | "AccountProblem" | "Forbidden" => (
            Denied,
            "the credentials do not allow this",
            "grant the action on the bucket and its objects; without s3:ListBucket a missing object looks like \
             this too; if expected_bucket_owner is set, check it",
        ),
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => (
            Denied,
            "the credentials have expired",
            "renew them (for a profile: `aws sso login`); they are read again at the next try",
        ),
        "InvalidToken" => (Denied, "the session token is not valid", "check AWS_SESSION_TOKEN or the profile"),
        "RequestTimeTooSkewed" => (
            Denied,
            "this machine's clock is too far from the store's",
            "set the clock, by NTP if possible",
        ),
        "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => {
            (Usage, "the bucket is in another region", "set region for this remote")
        }
        "SlowDown" | "Throttling" | "ThrottlingException" | "TooManyRequests" | "RequestLimitExceeded"
        | "BandwidthLimitExceeded" => (Unreachable, "the store asks to slow down", "lower max_concurrent_requests"),
        "InternalError" | "ServiceUnavailable" | "Busy" => (Unreachable, "the store has a fault of its own", ""),
        "RequestTimeout" | "IncompleteBody" => (Unreachable, "the request did not arrive whole", ""),
        "OperationAborted" => (Unreachable, "another operation is under way on the same resource", ""),
        "PreconditionFailed" => (Conflict, "a precondition did not hold", ""),
        "ConditionalRequestConflict" => (Conflict, "another write to the same key is under way", ""),
        "BadDigest" | "XAmzContentSHA256Mismatch" | "XAmzContentChecksumMismatch" => {
            (Damaged, "the bytes that arrived do not match their checksum", "if it happens again, check this machine's memory and network")
        }
        "InvalidPart" | "InvalidPartOrder" | "EntityTooSmall" => {
            (Damaged, "the store does not have the parts that were sent", "the upload has to begin anew")
        }
        "InvalidRange" => (Damaged, "the object is shorter than the range asked for", ""),
        "InvalidObjectState" => (Failed, "the object is archived", "restore it from the archive first"),
        "QuotaExceeded" | "XMinioStorageFull" => (NoSpace, "the store is full", "free some space or raise the quota"),
        "InvalidStorageClass" => (Usage, "the store does not know the storage class", "correct storage_class"),
        "KMS.NotFoundException" | "KMS.DisabledException" | "KMS.InvalidKeyUsageException"
        | "KMS.KMSInvalidStateException" => (Usage, "the encryption key cannot be used", "correct kms_key"),
        _ => return None,
    })
}

fn by_status(status: u16) -> (ErrorKind, &'static str, &'static str) {
    match status {
        301 | 307 | 308 => (ErrorKind::Usage, "the bucket is in another region", "set region for this remote"),
        // Answers to HEAD have no body, so no code.
        400 => (ErrorKind::Failed, "", "expired credentials and a wrong region look like this where an answer has no body"),
        401 | 403 => (
            ErrorKind::Denied,
            "the credentials do not allow this",
            "check credentials and policy; without s3:ListBucket a missing object looks like this too",
        ),
        404 => (ErrorKind::NotFound, "", ""),
        409 | 412 => (ErrorKind::Conflict, "", ""),
        416 => (ErrorKind::Damaged, "the object is shorter than the range asked for", ""),
        429 => (ErrorKind::Unreachable, "the store asks to slow down", "lower max_concurrent_requests"),
        507 => (ErrorKind::NoSpace, "the store is full", "free some space or raise the quota"),
        501 => (ErrorKind::Failed, "the store cannot do this", ""),
        500..600 => (ErrorKind::Unreachable, "the store has a fault of its own", ""),
        _ => (ErrorKind::Failed, "", ""),
    }
}

fn transport_fault<E>(error: &SdkError<E, HttpResponse>) -> (Transport, String)
where
    E: StdError + 'static,
{
    if let Some(credentials) = find::<CredentialsError>(error) {
        let transport = match credentials {
            CredentialsError::ProviderTimedOut(_) => Transport::CredentialsLater,
            _ => Transport::NoCredentials,
        };
        return (transport, innermost(credentials));
    }
    if matches!(error, SdkError::ConstructionFailure(_)) {
        return (Transport::Request, innermost(error));
    }
    (Transport::Connection, innermost(error))
}

fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

fn find<'a, Wanted: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a Wanted> {
    causes(error).find_map(|error| error.downcast_ref::<Wanted>())
}

/// The stall, or else the two innermost causes: the SDK's outer layers only repeat that a request failed.
fn innermost(error: &(dyn StdError + 'static)) -> String {
    if let Some(stalled) = find::<Stalled>(error) {
        return stalled.to_string();
    }
    let mut texts: Vec<String> = Vec::new();
    for text in causes(error).map(ToString::to_string).filter(|text| !text.is_empty()) {
        if !texts.iter().any(|earlier| earlier.contains(&text)) {
            texts.push(text);
        }
    }
    let kept = texts.len().saturating_sub(2);
    texts.split_off(kept).join(": ")
}

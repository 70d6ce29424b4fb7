//! Converts the SDK's errors and the store's refusals to ours: operation, subject, cause and hint.

use std::error::Error as StdError;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::http::Response;
use stepvault_core::store_facts::Obstacle;
use stepvault_core::{Error, ErrorKind};

use super::connector::Stalled;
use super::credentials::credentials_fault;
use crate::causes::{distinct_texts, find};
use crate::http::one_line;
use crate::http::refusal::{ConnectionObstacle, element};
use crate::http::verdicts::{OTHER, TABLES, Verdict};

/// Maximum number of characters of an answer that are logged, and of the store's own message.
const SHOWN_CHARACTERS: usize = 1000;
const CODE_CHARACTERS: usize = 80;

/// The code of a HEAD's 404, and of some servers.
const NOT_FOUND: &str = "NotFound";

/// The error of one of the SDK's operations.
pub(super) trait OperationError: ProvideErrorMetadata + StdError + 'static {}

impl<E: ProvideErrorMetadata + StdError + 'static> OperationError for E {}

/// Why a request failed, independent of its operation.
#[derive(Debug, Default)]
pub(crate) struct Fault {
    status: u16,
    code: String,
    message: String,
    retry_after: Option<Duration>,
    bucket_region: Option<String>,
    transport: Option<Transport>,
    /// The next attempt is made in another way.
    is_repeated: bool,
    /// Whether the answer has a header of the store, or an error document with one of its codes. Another one may be of a
    /// proxy, or of a host that is no store.
    is_of_store: bool,
}

/// Failures without a complete answer, by the names of their cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
enum Transport {
    /// The connection failed, stalled, or broke during the answer.
    Connection,
    /// No credentials were available.
    NoCredentials,
    /// The provider of the credentials did not answer in time.
    CredentialsLater,
    /// The provider of the credentials cannot be reached.
    ProviderUnreachable,
    /// The request could not be built.
    Request,
}

impl Fault {
    /// Converts an SDK error.
    pub(super) fn of<E: OperationError>(error: &SdkError<E, HttpResponse>) -> Self {
        let mut fault = error.raw_response().map_or_else(Self::default, |response| {
            Self::of_answer(response, response.body().bytes().unwrap_or_default())
        });
        if matches!(error, SdkError::ServiceError(_)) {
            return fault;
        }
        // A status that is conclusive counts even when its body could not be read.
        let lost = Self::of_unsent(error, matches!(error, SdkError::ConstructionFailure(_)));
        if !(400..600).contains(&fault.status) {
            fault.transport = lost.transport;
        }
        Self { message: lost.message, ..fault }
    }

    /// Converts an answer other than 2xx with the beginning of its error document.
    pub(super) fn of_answer<B>(response: &Response<B>, document: &[u8]) -> Self {
        let header = |name| response.headers().get(name);
        let text = String::from_utf8_lossy(document);
        let (_, error) = text.split_once("<Error").unwrap_or_default();
        let told = |name, limit| element(error, name).map(|told| one_line(&told, limit));
        let status = response.status().as_u16();
        let code = match told("Code", CODE_CHARACTERS) {
            None if document.is_empty() && status == 404 => NOT_FOUND.to_owned(),
            code => code.unwrap_or_default(),
        };
        if code.is_empty() && !document.is_empty() {
            // It may come from a proxy, or from a server that follows S3 loosely.
            tracing::info!("the store's answer, HTTP {status}: {}", one_line(&text, SHOWN_CHARACTERS));
        }
        let message = told("Message", SHOWN_CHARACTERS).unwrap_or_default();
        Self {
            status,
            retry_after: header("retry-after").and_then(|text| text.parse().ok()).map(Duration::from_secs),
            bucket_region: header("x-amz-bucket-region")
                .map(str::to_owned)
                .or_else(|| expected_region(&message)),
            is_of_store: response.headers().iter().any(|(name, _)| name.starts_with("x-amz-"))
                || (!code.is_empty() && code != NOT_FOUND),
            code,
            message,
            ..Self::default()
        }
    }

    /// Converts an error without an answer, of the credentials or of the transport, or before the request was built.
    pub(super) fn of_unsent(error: &(dyn StdError + 'static), is_unbuilt: bool) -> Self {
        let (transport, message) = transport_fault(error, is_unbuilt);
        Self { message, transport: Some(transport), ..Self::default() }
    }

    /// Creates a fault for missing credentials.
    pub(super) fn no_credentials(why: String) -> Self {
        Self { message: why, transport: Some(Transport::NoCredentials), ..Self::default() }
    }

    /// Creates a fault for a body that ended early or stalled.
    pub(crate) fn of_body(error: &(dyn StdError + 'static)) -> Self {
        Self { message: innermost(error), transport: Some(Transport::Connection), ..Self::default() }
    }

    /// Creates a fault for one key in an answer for many keys.
    pub(crate) fn of_entry(code: Option<&str>, message: Option<&str>) -> Self {
        Self {
            code: code.unwrap_or_default().to_owned(),
            message: message.unwrap_or_default().to_owned(),
            ..Self::default()
        }
    }

    /// Returns whether the store said that the object or the upload does not exist. A missing bucket does not count.
    pub(crate) fn is_missing(&self) -> bool {
        match self.code.as_str() {
            "NoSuchKey" | "NoSuchUpload" => true,
            "" | NOT_FOUND => self.status == 404 && self.is_of_store,
            _ => false,
        }
    }

    /// Returns whether something answered that there is nothing, without a sign that it was the store. An answer to HEAD
    /// has no error document.
    pub(super) fn is_bare_absence(&self) -> bool {
        self.status == 404 && !self.is_of_store
    }

    /// Returns whether the object was requested from the archive before.
    pub(super) fn is_thawing(&self) -> bool {
        self.code == "RestoreAlreadyInProgress"
    }

    /// Returns whether a precondition failed: the key is taken.
    pub(crate) fn is_precondition_failed(&self) -> bool {
        self.code == "PreconditionFailed" || (self.code.is_empty() && self.status == 412)
    }

    /// Returns whether the store refused the request because it knows no checksums, and not for a wrong one.
    pub(super) fn refuses_checksums(&self) -> bool {
        let message = self.message.to_lowercase();
        let has = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
        matches!(self.status, 400 | 501)
            && has(&["x-amz-checksum", "x-amz-sdk-checksum"])
            && has(&["unsupported", "not supported", "not implemented"])
    }

    /// Returns whether the store reported success with an answer that is none.
    pub(super) fn is_unreadable_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns whether the store answered 400 and nothing else, as to a HEAD.
    pub(super) fn is_silent(&self) -> bool {
        self.status == 400 && self.code.is_empty() && self.message.is_empty()
    }

    /// Makes the request worth another attempt, which will be made in another way.
    pub(super) fn repeat(&mut self) {
        self.is_repeated = true;
    }

    /// Returns whether the store does not support this operation.
    pub(crate) fn is_not_implemented(&self) -> bool {
        matches!(self.code.as_str(), "NotImplemented" | "MethodNotAllowed")
            || matches!(self.status, 405 | 501)
    }

    /// Returns whether the store answered that it does not accept such a request; missing rights do not count.
    pub(crate) fn is_refused(&self) -> bool {
        let is_about_request = matches!(self.judge().kind(), ErrorKind::Damaged | ErrorKind::Failed);
        self.is_not_implemented() || (400..500).contains(&self.status) && is_about_request
    }

    /// Returns whether the store refused the form of the request, and not what it refers to.
    pub(crate) fn is_of_form(&self) -> bool {
        let codes = ["InvalidDigest", "InvalidRequest", "InvalidArgument", "MalformedXML", "NotImplemented"];
        codes.contains(&self.code.as_str())
    }

    /// Returns the obstacle to using the bucket.
    pub(super) fn obstacle(&self) -> Obstacle {
        match self.transport {
            Some(Transport::Connection) => return Obstacle::Network,
            Some(Transport::NoCredentials | Transport::CredentialsLater | Transport::ProviderUnreachable) => {
                return Obstacle::Credentials;
            }
            Some(Transport::Request) => return Obstacle::Settings,
            None => {}
        }
        match (self.code.as_str(), self.status) {
            ("RequestTimeTooSkewed", _) => Obstacle::Clock,
            (
                "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException",
                _,
            )
            | ("", 301 | 307 | 308) => Obstacle::Region(self.bucket_region.clone()),
            ("AccessDenied" | "AllAccessDisabled" | "AccountProblem" | "Forbidden", _) | ("", 403) => {
                Obstacle::Rights
            }
            _ if self.is_bare_absence() => Obstacle::Network,
            ("", 404) => Obstacle::Bucket,
            _ => Obstacle::of_kind(self.judge().kind()),
        }
    }

    /// Returns whether newer credentials would help.
    pub(crate) fn is_expired(&self) -> bool {
        matches!(self.code.as_str(), "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired")
    }

    /// Returns the error for operation `what` on `subject`.
    pub(crate) fn into_error(self, what: &str, subject: &str) -> Error {
        let verdict = self.judge();
        let (kind, why, hint) = (verdict.kind(), &verdict.why, &verdict.hint);
        let detail = self.detail();
        let why = match (why.is_empty(), detail.is_empty()) {
            (true, _) => detail,
            (false, true) => why.clone(),
            (false, false) => format!("{why} ({detail})"),
        };
        let mut error = Error::new(kind, what).on(subject);
        if !why.is_empty() {
            error = error.because(why);
        }
        let obstacle = match self.transport {
            Some(Transport::Connection) => ConnectionObstacle::of(&self.message),
            _ => None,
        };
        let is_lasting = obstacle.as_ref().is_some_and(|obstacle| obstacle.is_lasting);
        let hint = obstacle.map_or_else(|| hint.clone(), |obstacle| obstacle.hint);
        if let Some(region) = &self.bucket_region
            && kind == ErrorKind::Usage
        {
            error = error.hint(format!("set region = \"{region}\" for this remote"));
        } else if !hint.is_empty() {
            error = error.hint(hint);
        }
        if self.is_expired()
            || self.is_repeated
            || self.code == "ConditionalRequestConflict"
            || self.transport == Some(Transport::CredentialsLater)
        {
            error = error.transient();
        }
        if is_lasting {
            error = error.for_operator().lasting();
        }
        match self.retry_after {
            Some(wait) if kind == ErrorKind::Unreachable => error.retry_after(wait),
            _ => error,
        }
    }

    /// Returns the store's own message.
    fn detail(&self) -> String {
        match (self.code.as_str(), self.message.as_str()) {
            ("", "") if self.status == 0 => String::new(),
            ("", "") if (200..300).contains(&self.status) => {
                format!("the store's answer cannot be read (HTTP {})", self.status)
            }
            ("", "") => format!("HTTP {}", self.status),
            ("", message) if (400..600).contains(&self.status) => format!("HTTP {}: {message}", self.status),
            ("", message) => message.to_owned(),
            (code, "") => code.to_owned(),
            (code, message) => format!("{code}: {}", message.trim_end_matches('.')),
        }
    }

    fn judge(&self) -> &'static Verdict {
        let verdicts = &TABLES.s3;
        let proves_nothing = matches!(self.status, 300..400 | 404 | 410) && !self.is_of_store;
        match (self.transport, self.code.as_str()) {
            (Some(transport), _) => verdicts.of_case(transport.into()),
            // Garage has no code of its own for it.
            (None, "AccessDenied") if self.message.contains("quota") => verdicts.of_case("full"),
            (None, _) if self.message.to_lowercase().contains("requester pays") => {
                verdicts.of_case("requester-pays")
            }
            (None, "InvalidArgument") if self.message.starts_with("Part number must be") => {
                verdicts.of_case("too-many-parts")
            }
            _ if proves_nothing || self.is_unreadable_success() => verdicts.of_case("not-the-store"),
            (None, code) => verdicts.by_code(code).unwrap_or_else(|| match self.status {
                400 if !code.is_empty() => &OTHER,
                status => verdicts.by_status(status),
            }),
        }
    }
}

/// Returns the region in "the region 'us-east-1' is wrong; expecting 'eu-central-1'".
fn expected_region(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("expecting '")?;
    let (region, _) = rest.split_once('\'')?;
    let plain = |character: char| character.is_ascii_alphanumeric() || character == '-';
    (!region.is_empty() && region.len() <= 64 && region.chars().all(plain)).then(|| region.to_owned())
}

fn transport_fault(error: &(dyn StdError + 'static), is_unbuilt: bool) -> (Transport, String) {
    if let Some(credentials) = find::<CredentialsError>(error) {
        let transport = match credentials {
            CredentialsError::ProviderTimedOut(_) => Transport::CredentialsLater,
            _ if find::<ConnectorError>(credentials).is_some() => Transport::ProviderUnreachable,
            _ => Transport::NoCredentials,
        };
        return (transport, credentials_fault(credentials));
    }
    if is_unbuilt {
        return (Transport::Request, innermost(error));
    }
    (Transport::Connection, innermost(error))
}

/// Returns the stall, or else the two innermost causes: the SDK's outer layers only repeat that a request failed.
pub(super) fn innermost(error: &(dyn StdError + 'static)) -> String {
    if let Some(stalled) = find::<Stalled>(error) {
        return stalled.to_string();
    }
    let mut texts = distinct_texts(error);
    let kept = texts.len().saturating_sub(2);
    texts.split_off(kept).join(": ")
}

#[cfg(test)]
mod tests {
    use aws_credential_types::provider::future::ProvideCredentials as Providing;
    use aws_sdk_s3::config::{BehaviorVersion, ProvideCredentials, Region};

    use super::*;

    const GIVE_CREDENTIALS: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile (after `aws sso \
                                    login` where it needs that), or run where an instance or pod role applies";

    #[derive(Debug)]
    struct NoKeys(fn() -> CredentialsError);

    impl ProvideCredentials for NoKeys {
        fn provide_credentials<'a>(&'a self) -> Providing<'a>
        where
            Self: 'a,
        {
            Providing::ready(Err((self.0)()))
        }
    }

    async fn error_without_keys(why: fn() -> CredentialsError) -> Error {
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("us-east-1"))
            .endpoint_url("http://127.0.0.1:1")
            .credentials_provider(NoKeys(why))
            .build();
        let client = aws_sdk_s3::Client::from_conf(config);
        let error = client.head_object().bucket("b").key("k").send().await.unwrap_err();
        Fault::of(&error).into_error("cannot read the object's metadata", "s3://b/k")
    }

    #[tokio::test]
    async fn missing_credentials_are_told_from_slow_ones() {
        let missing = error_without_keys(|| CredentialsError::not_loaded("no providers in chain")).await;
        assert_eq!(missing.kind(), ErrorKind::Denied);
        assert!(!missing.is_transient());
        let text = missing.to_string();
        let wanted = "cannot read the object's metadata: s3://b/k: no credentials were found (";
        assert!(text.starts_with(wanted), "{text}");
        assert_eq!(missing.hint_text(), Some(GIVE_CREDENTIALS));
        let slow = error_without_keys(|| CredentialsError::provider_timed_out(Duration::from_secs(5))).await;
        assert_eq!(slow.kind(), ErrorKind::Denied);
        assert!(slow.is_transient());
    }

    #[test]
    fn the_region_that_a_refusal_names_is_found() {
        let message = "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-central-1'";
        assert_eq!(expected_region(message).as_deref(), Some("eu-central-1"));
        for none in ["", "expecting 'a b'", "expecting ''", "expecting 'eu"] {
            assert_eq!(expected_region(none), None, "{none}");
        }
    }

    #[test]
    fn entries_of_an_answer_are_judged_like_answers() {
        let busy = Fault::of_entry(Some("SlowDown"), None).into_error("cannot delete the object", "s3://b/k");
        assert_eq!(busy.kind(), ErrorKind::Unreachable);
        let odd =
            Fault::of_entry(Some("Odd"), Some("Words.")).into_error("cannot delete the object", "s3://b/k");
        assert_eq!(odd.kind(), ErrorKind::Failed);
        assert_eq!(odd.to_string(), "cannot delete the object: s3://b/k: Odd: Words");
        assert!(Fault::of_entry(Some("NoSuchKey"), None).is_missing());
        assert!(!Fault::of_entry(Some("NoSuchBucket"), None).is_missing());
    }
}

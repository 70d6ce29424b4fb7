//! Failed requests: a kind for the caller's decisions, and a text with a hint for the user. Of S3, only elements of error
//! documents are read here.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use stepvault_core::{Error, ErrorKind};
use url::Url;

use super::one_line;
use super::verdicts::TABLES;
use crate::causes::distinct_texts;

/// What the names of headers begin with that Google and Azure add to every answer.
const PROVIDERS_HEADERS: [&str; 3] = ["x-goog-", "x-guploader-", "x-ms-"];
/// All that fake-gcs-server says of an object that does not exist.
const NOT_FOUND_OF_EMULATOR: &str = "Not Found";

/// A server's answer other than 2xx.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the server answered {status}{}{}", text_after(" ", code), text_after(": ", message))]
pub(crate) struct Refusal {
    /// HTTP status.
    pub(crate) status: u16,
    /// The provider's error code; empty when there was none.
    pub(crate) code: String,
    /// The provider's message; empty when there was none.
    pub(crate) message: String,
    /// The delay that the store requests before a retry.
    pub(crate) retry_after_seconds: Option<u64>,
    /// Whether the answer has a header or an error document of the provider. Another one may be of a proxy, or of a host
    /// that is no store.
    pub(crate) is_of_store: bool,
}

fn text_after(separator: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{separator}{text}") }
}

impl Refusal {
    /// Creates a refusal from status, headers and the beginning of an XML or JSON error document.
    pub(crate) fn new(status: u16, headers: &HeaderMap, document: &[u8]) -> Self {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let retry_after_seconds = header("retry-after").and_then(|text| text.trim().parse().ok());
        let text = String::from_utf8_lossy(document);
        // Azure also sends its code in a header, which answers to HEAD contain.
        let code = header("x-ms-error-code")
            .map(str::to_owned)
            .or_else(|| element(&text, "Code"))
            .or_else(|| member(&text, "status"))
            .or_else(|| member(&text, "reason"))
            .unwrap_or_default();
        let message = element(&text, "Message").or_else(|| member(&text, "message")).unwrap_or_default();
        let is_of_provider =
            |name: &HeaderName| PROVIDERS_HEADERS.iter().any(|own| name.as_str().starts_with(own));
        let is_of_store = headers.keys().any(is_of_provider)
            || !code.is_empty()
            || !message.is_empty()
            || text.trim() == NOT_FOUND_OF_EMULATOR;
        Self {
            is_of_store,
            status,
            code: one_line(&code, 80),
            message: one_line(&message, 300),
            retry_after_seconds,
        }
    }

    /// Returns the error of operation `what` on `subject` (a URL with the key), by the code or the status.
    pub(crate) fn to_error(&self, what: &str, subject: &str) -> Error {
        let verdicts = &TABLES.others;
        let verdict = verdicts.by_code(&self.code).unwrap_or_else(|| match self.status {
            300..400 | 404 | 410 if !self.is_of_store => verdicts.of_case("not-the-store"),
            status => verdicts.by_status(status),
        });
        let kind = verdict.kind();
        let mut error = Error::new(kind, what).on(subject).because(self);
        if !verdict.hint.is_empty() {
            error = error.hint(&verdict.hint);
        }
        match self.retry_after_seconds {
            Some(seconds) if kind == ErrorKind::Unreachable => {
                error.retry_after(Duration::from_secs(seconds))
            }
            _ => error,
        }
    }
}

/// Returns the text of the first `<name>` element.
pub(crate) fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = rest.split_once(&format!("</{name}>"))?;
    Some(quick_xml::escape::unescape(inner).map_or_else(|_| inner.to_owned(), Cow::into_owned))
}

/// Returns the text of the first member `name` of a JSON document. Accurate enough for a message, not for a decision.
fn member(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("\"{name}\""))?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let mut is_escaped = false;
    let end = rest.strip_prefix('"')?.find(|letter| {
        let is_end = letter == '"' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        is_end
    })?;
    serde_json::from_str(&rest[..end + 2]).ok()
}

/// No byte of an answer arrived within the time limit of the request.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {} seconds", .0.as_secs())]
pub(crate) struct Silent(pub(crate) Duration);

/// Returns the error for a transport failure: the request may or may not have been carried out. `error` is the HTTP
/// client's own.
pub(crate) fn lost(
    what: &str,
    subject: &str,
    is_connect: bool,
    error: &(dyn std::error::Error + 'static),
) -> Error {
    let why = distinct_texts(error).join(": ");
    let error = Error::new(ErrorKind::Unreachable, what).on(subject);
    match ConnectionObstacle::of(&why) {
        Some(obstacle) if obstacle.is_lasting => error.hint(obstacle.hint).for_operator().lasting(),
        Some(obstacle) => error.hint(obstacle.hint),
        None if is_connect => error.hint("check the endpoint, the network and any proxy"),
        None => error.hint("check the network; the request is safe to repeat"),
    }
    .because(why)
}

/// The variables that name the proxy of an https endpoint, in the order in which the HTTP clients read them.
const VARIABLES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// What is known of a connection that failed.
pub(crate) struct ConnectionObstacle {
    /// What to do.
    pub(crate) hint: String,
    /// Whether only the operator can mend it, so that no retry helps.
    pub(crate) is_lasting: bool,
}

impl ConnectionObstacle {
    /// Returns what prevented a connection that failed for this cause; `None` for any other failure.
    pub(crate) fn of(why: &str) -> Option<Self> {
        let by_certificate =
            certificate_hint(why).map(|hint| Self { hint: hint.to_owned(), is_lasting: true });
        let by_proxy = || {
            Some(Self {
                hint: proxy_hint(why)?,
                // No later request has the password either.
                is_lasting: why.contains("proxy authorization required"),
            })
        };
        let by_stage = || stage_hint(why).map(|hint| Self { hint: hint.to_owned(), is_lasting: false });
        by_certificate.or_else(by_proxy).or_else(by_stage)
    }
}

/// Returns what to do by how far a connection got; `None` if its failure does not tell. Matches the messages of the HTTP
/// client and of the stall timeouts.
fn stage_hint(why: &str) -> Option<&'static str> {
    let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if has(&["dns error", "failed to lookup address"]) {
        return Some("the host's name cannot be resolved: check the endpoint and this machine's DNS");
    }
    if has(&["operation timed out", "deadline has elapsed"]) {
        return Some("no connection to the host could be opened: check the endpoint, routes and firewalls");
    }
    has(&["no byte moved", "no answer within"]).then_some(
        "the host fell silent: check the endpoint, any proxy between, and, if small requests work, the MTU of this machine's \
         network",
    )
}

/// Returns what to do if a connection failed because a proxy refused it, and `None` for any other failure.
fn proxy_hint(why: &str) -> Option<String> {
    why.contains("tunnel error").then(|| {
        let proxy = configured().map_or_else(String::new, |place| format!(" {place}"));
        format!(
            "the proxy{proxy} refuses the connection: check HTTPS_PROXY and its credentials, or name the host in NO_PROXY"
        )
    })
}

/// Returns host and port of the proxy in the environment, without its credentials.
fn configured() -> Option<String> {
    let texts = VARIABLES.iter().filter_map(|name| std::env::var(name).ok());
    let text = texts.into_iter().find(|text| !text.is_empty())?;
    let url = Url::parse(&text).or_else(|_| Url::parse(&format!("http://{text}"))).ok()?;
    let host = url.host_str()?;
    Some(match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    })
}

/// Returns what to do about a connection that failed because one side rejected the other's certificate; `None` for any
/// other failure. Matches the messages of the TLS library, because the SDKs hide its error type.
fn certificate_hint(why: &str) -> Option<&'static str> {
    let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if has(&["CertificateUnknown", "BadCertificate", "UnknownCA", "CertificateRequired"]) {
        return Some("the server refuses this client's certificate, or requires one");
    }
    if !has(&["invalid peer certificate"]) {
        return None;
    }
    Some(if has(&["UnknownIssuer", "BadSignature"]) {
        "no authority that this machine trusts has signed the server's certificate: set ca-file for this remote \
         (ca-file=PATH in its URL), or add the authority to the system's store"
    } else if has(&["certificate expired", "Expired"]) {
        "the server's certificate has expired: renew it, or set this machine's clock"
    } else if has(&["not valid yet", "NotValidYet"]) {
        "the server's certificate is not valid yet: set this machine's clock"
    } else if has(&["not valid for name", "NotValidForName"]) {
        "the server's certificate is for another host: correct the endpoint, or the certificate's names"
    } else {
        "check the server's certificate"
    })
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
        refusal(status, code).to_error("cannot write the object", "az://c/p/k")
    }

    #[test]
    fn refusals_read_as_one_line() {
        let xml = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>The object\n is gone.</Message></Error>";
        let none = HeaderMap::new();
        assert_eq!(
            Refusal::new(404, &none, xml).to_string(),
            "the server answered 404 NoSuchKey: The object is gone."
        );
        let json = br#"{"error": {"code": 403, "message": "No access.", "status": "PERMISSION_DENIED"}}"#;
        assert_eq!(
            Refusal::new(403, &none, json).to_string(),
            "the server answered 403 PERMISSION_DENIED: No access."
        );
        let nested = br#"{"error": {"message": "{\"message\": \"C:\\\\ is\n wrong\"}", "code": 400}}"#;
        assert_eq!(
            Refusal::new(400, &none, nested).to_string(),
            r#"the server answered 400: {"message": "C:\\ is wrong"}"#
        );
        assert_eq!(Refusal::new(502, &none, b"\x00\xff").to_string(), "the server answered 502");
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
            (409, "BlobArchived", ErrorKind::Archived),
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
    fn hints_say_what_to_do() {
        assert!(error(401, "").hint_text().unwrap().contains("renew"));
        assert!(error(403, "").hint_text().unwrap().contains("grant"));
        assert!(error(404, "NoSuchBucket").hint_text().unwrap().contains("create the bucket"));
        assert_eq!(error(404, "NoSuchKey").hint_text(), None);
    }
}

//! The HTTP client under `object_store`: bounds its waits, and keeps the status of refusals.
//!
//! `object_store` keeps the status of a failed request in a private type. Here every answer other than 2xx becomes a
//! [`Refusal`] inside the error, where [`super::errors`] finds it.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, Method};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::{Certificate, ClientOptions, RetryConfig};
use tokio::time::Instant;

use crate::arrival_rate::ArrivalRate;

/// Maximum number of bytes of an error document that are read.
pub(crate) const MAXIMUM_REFUSAL_BYTES: usize = 16 << 10;
/// A request gets the stall time once more for each of these bytes in its body. The HTTP client does not report when a
/// byte is sent, so a slower request counts as stalled.
const BYTES_PER_STALL_TIME: u64 = 1 << 20;
/// What the names of headers begin with that Google and Azure add to every answer.
const PROVIDERS_HEADERS: [&str; 3] = ["x-goog-", "x-guploader-", "x-ms-"];
/// All that fake-gcs-server says of an object that does not exist.
const NOT_FOUND_OF_EMULATOR: &str = "Not Found";
/// Maximum time to connect.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A server's answer other than 2xx.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "the server answered {status}{}{}",
    text_after(" ", code),
    text_after(": ", message)
)]
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
    if text.is_empty() {
        String::new()
    } else {
        format!("{separator}{text}")
    }
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
        let message = element(&text, "Message")
            .or_else(|| member(&text, "message"))
            .unwrap_or_default();
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
}

/// Returns the text of the first `<name>` element.
fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = rest.split_once(&format!("</{name}>"))?;
    Some(inner.to_owned())
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

pub(crate) fn one_line(text: &str, limit: usize) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .filter(|c| !c.is_control())
        .take(limit)
        .collect()
}

/// No byte of an answer arrived within the time limit of the request.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {seconds} seconds")]
struct Silent {
    seconds: u64,
}

/// The headers of an answer, kept for callers to which `object_store` does not pass them.
#[derive(Debug, Clone)]
pub(crate) struct AnswerHeaders(pub(crate) HeaderMap);

/// Returns how long a request that sends `body_bytes` may take until the first byte of its answer.
pub(crate) fn patience(stall_timeout: Duration, body_bytes: u64) -> Duration {
    let times = u32::try_from(1 + body_bytes.div_ceil(BYTES_PER_STALL_TIME)).unwrap_or(u32::MAX);
    stall_timeout.saturating_mul(times)
}

/// Creates clients whose requests always end: with an answer, a [`Refusal`], or after the stall time.
#[derive(Debug, Clone)]
pub(crate) struct GuardedConnector {
    pub(crate) stall_timeout: Duration,
    /// Used instead of a client with the options, where the server asks for a certificate.
    pub(crate) identified: Option<reqwest::Client>,
}

impl HttpConnector for GuardedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = match &self.identified {
            Some(client) => HttpClient::new(client.clone()),
            None => ReqwestConnector::default().connect(options)?,
        };
        Ok(HttpClient::new(Guarded {
            inner,
            stall_timeout: self.stall_timeout,
        }))
    }
}

#[derive(Debug)]
struct Guarded {
    inner: HttpClient,
    stall_timeout: Duration,
}

#[async_trait]
impl HttpService for Guarded {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let limit = patience(self.stall_timeout, request.body().content_length() as u64);
        let reads = request.method() == Method::GET && !is_of_listing(&request);
        let has_document = request.method() != Method::HEAD;
        let answer = tokio::time::timeout(limit, self.inner.execute(request));
        let mut response = answer.await.map_err(|_| silent(limit))??;
        state_length(response.headers_mut());
        let headers = AnswerHeaders(response.headers().clone());
        response.extensions_mut().insert(headers);
        if response.status().is_success() {
            // The body of a read may be long: its reader applies the stall timeout.
            return if reads {
                Ok(response)
            } else {
                self.whole(response).await
            };
        }
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let document = tokio::time::timeout(self.stall_timeout, beginning(response));
        // A refusal remains one even when its explanation is lost.
        let mut refusal = Refusal::new(status, &headers, &document.await.unwrap_or_default());
        // Nothing else can be had of a server without headers of its own, as emulators are.
        refusal.is_of_store |= !has_document;
        Err(HttpError::new(HttpErrorKind::Unknown, refusal))
    }
}

impl Guarded {
    /// Returns the answer with its body read completely: a document, or one page of a listing.
    async fn whole(&self, response: HttpResponse) -> Result<HttpResponse, HttpError> {
        let (parts, body) = response.into_parts();
        let (mut pieces, mut document, mut rate) = (body.bytes_stream(), Vec::new(), ArrivalRate::default());
        loop {
            let since = Instant::now();
            let piece = tokio::time::timeout(self.stall_timeout, pieces.next()).await;
            let Some(piece) = piece.map_err(|_| silent(self.stall_timeout))? else {
                break;
            };
            let piece = piece?;
            let counted = rate.count(piece.len(), since.elapsed(), self.stall_timeout);
            counted.map_err(|slow| HttpError::new(HttpErrorKind::Timeout, slow))?;
            document.extend_from_slice(&piece);
        }
        Ok(HttpResponse::from_parts(parts, Bytes::from(document).into()))
    }
}

/// Whether a request asks for a page of a listing: of Azure, or of Google's XML API.
fn is_of_listing(request: &HttpRequest) -> bool {
    let mut words = request.uri().query().unwrap_or_default().split('&');
    words.any(|word| matches!(word, "comp=list" | "list-type=2"))
}

/// Google sends an object's length in two headers. For an empty object, the first may be missing from the answer to
/// HEAD.
fn state_length(headers: &mut HeaderMap) {
    if let Some(length) = headers.get("x-goog-stored-content-length").cloned() {
        headers.entry(CONTENT_LENGTH).or_insert(length);
    }
}

pub(crate) fn silent(limit: Duration) -> HttpError {
    HttpError::new(
        HttpErrorKind::Timeout,
        Silent {
            seconds: limit.as_secs(),
        },
    )
}

async fn beginning(response: HttpResponse) -> Vec<u8> {
    let mut document = Vec::new();
    let mut pieces = response.into_body().bytes_stream();
    while let Some(Ok(piece)) = pieces.next().await {
        let free = MAXIMUM_REFUSAL_BYTES - document.len();
        document.extend_from_slice(&piece[..piece.len().min(free)]);
        if document.len() == MAXIMUM_REFUSAL_BYTES {
            break;
        }
    }
    document
}

/// Returns the options of every `object_store` client: a limit on connecting, none on the whole request, and the
/// authorities that it trusts besides the system's.
pub(crate) fn client_options(allow_http: bool, authorities: &[Certificate]) -> ClientOptions {
    let trusting =
        |options: ClientOptions, authority: &Certificate| options.with_root_certificate(authority.clone());
    authorities
        .iter()
        .fold(ClientOptions::new(), trusting)
        .with_allow_http(allow_http)
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout_disabled()
        .with_read_timeout_disabled()
}

/// Disables retries below ours, because retries of two layers multiply.
pub(crate) fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        retry_timeout: Duration::ZERO,
        ..RetryConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use http_body_util::StreamBody;
    use object_store::client::HttpResponseBody;

    use super::*;

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
        assert_eq!(
            Refusal::new(502, &none, b"\x00\xff").to_string(),
            "the server answered 502"
        );
    }

    /// Answers with a body of five bytes a second that never ends.
    #[derive(Debug)]
    struct Drips;

    #[async_trait]
    impl HttpService for Drips {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            let pieces = futures::stream::unfold((), async |()| {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Some((Ok::<_, HttpError>(Frame::data(Bytes::from_static(b"12345"))), ()))
            });
            let body = HttpResponseBody::new(StreamBody::new(Box::pin(pieces)));
            Ok(http::Response::new(body))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_of_a_listing_that_drips_ends() {
        let guarded = Guarded {
            inner: HttpClient::new(Drips),
            stall_timeout: Duration::from_secs(30),
        };
        for query in ["restype=container&comp=list&prefix=a", "list-type=2&prefix=a"] {
            let mut request = HttpRequest::new(object_store::client::HttpRequestBody::empty());
            *request.uri_mut() = format!("http://store/bucket?{query}").parse().unwrap();
            let error = guarded.call(request).await.unwrap_err();
            let source = std::error::Error::source(&error).unwrap();
            assert_eq!(
                source.to_string(),
                "only 155 bytes of the answer arrived in 31 seconds"
            );
        }
    }

    #[test]
    fn patience_grows_with_the_body_and_has_an_end() {
        let stall = Duration::from_secs(30);
        assert_eq!(patience(stall, 0), stall);
        assert_eq!(patience(stall, 8 << 20), Duration::from_secs(270));
        assert!(patience(stall, u64::MAX) < Duration::MAX);
    }
}

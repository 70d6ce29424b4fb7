//! The HTTP client under `object_store`: bounds its waits, and keeps the status of refusals.
//!
//! `object_store` keeps the status of a failed request in a private type. Here every answer other than 2xx becomes a
//! [`Refusal`] inside the error, where [`request_error`] finds it.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::{Certificate, ClientOptions, RetryConfig};
use stepvault_core::Error;

use crate::causes::find;
use crate::http::CONNECT_TIMEOUT;
use crate::http::body::{BodyFault, beginning, whole};
use crate::http::client::{HttpOptions, Renewed};
use crate::http::refusal::{Refusal, Silent, lost};
use crate::pieces::patience;

/// Returns the error for a request that was refused, or whose answer was lost; `None` for any other error.
pub(super) fn request_error(what: &str, subject: &str, error: &object_store::Error) -> Option<Error> {
    if let Some(refusal) = find::<Refusal>(error) {
        return Some(refusal.to_error(what, subject));
    }
    let transport = find::<HttpError>(error)?;
    // Its own text says nothing more.
    let cause = std::error::Error::source(transport).unwrap_or(transport);
    let is_connect = transport.kind() == HttpErrorKind::Connect;
    Some(lost(what, subject, is_connect, cause))
}

fn timed_out(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Timeout, error)
}

/// Creates clients whose requests always end: with an answer, a [`Refusal`], or after the stall time.
#[derive(Debug, Clone)]
pub(crate) struct GuardedConnector {
    pub(crate) stall_timeout: Duration,
    /// Used instead of a client with the options, where the server asks for a certificate.
    pub(crate) identified: Option<HttpOptions>,
}

impl HttpConnector for GuardedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let (identified, options) = (self.identified.clone(), options.clone());
        let create = move || match &identified {
            Some(identified) => match identified.client() {
                Ok(client) => Ok(HttpClient::new(client)),
                Err(source) => Err(object_store::Error::Generic { store: "HTTP", source: source.into() }),
            },
            None => ReqwestConnector::default().connect(&options),
        };
        let inner = Renewed::new(create()?, move || create().ok());
        Ok(HttpClient::new(Guarded { inner, stall_timeout: self.stall_timeout }))
    }
}

#[derive(Debug)]
struct Guarded {
    inner: Renewed<HttpClient>,
    stall_timeout: Duration,
}

#[async_trait]
impl HttpService for Guarded {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let limit = patience(self.stall_timeout, request.body().content_length() as u64);
        let reads = request.method() == Method::GET && !is_of_listing(&request);
        let has_document = request.method() != Method::HEAD;
        let mut lease = self.inner.lease();
        let answer = tokio::time::timeout(limit, lease.execute(request)).await;
        let answer = answer.map_err(|_| timed_out(Silent(limit)))?;
        let answer = lease.ended(answer, |error| error.kind() == HttpErrorKind::Connect)?;
        let (parts, body) = answer.into_parts();
        // The body of a read may be long: its reader applies the stall timeout.
        if parts.status.is_success() && reads {
            return Ok(HttpResponse::from_parts(parts, body));
        }
        if parts.status.is_success() {
            let document = whole(body.bytes_stream(), self.stall_timeout, usize::MAX).await;
            let document = document.map_err(|fault| match fault {
                BodyFault::Lost(error) => error,
                fault => timed_out(fault),
            })?;
            return Ok(HttpResponse::from_parts(parts, Bytes::from(document).into()));
        }
        let document = beginning(body.bytes_stream(), self.stall_timeout).await;
        let mut refusal = Refusal::new(parts.status.as_u16(), &parts.headers, &document);
        // Nothing else can be had of a server without headers of its own, as emulators are.
        refusal.is_of_store |= !has_document;
        Err(HttpError::new(HttpErrorKind::Unknown, refusal))
    }
}

/// Whether a request asks for a page of a listing.
fn is_of_listing(request: &HttpRequest) -> bool {
    let mut words = request.uri().query().unwrap_or_default().split('&');
    words.any(|word| word == "comp=list")
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
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use http_body_util::StreamBody;
    use object_store::client::HttpResponseBody;

    use super::*;
    use crate::generic::store_error;

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
        let inner = Renewed::new(HttpClient::new(Drips), || None);
        let guarded = Guarded { inner, stall_timeout: Duration::from_secs(30) };
        let mut request = HttpRequest::new(object_store::client::HttpRequestBody::empty());
        let query = "restype=container&comp=list&prefix=a";
        *request.uri_mut() = format!("http://store/bucket?{query}").parse().unwrap();
        let error = guarded.call(request).await.unwrap_err();
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "only 155 bytes of the answer arrived in 31 seconds");
    }

    #[test]
    fn a_refusal_is_found_through_every_layer() {
        let inner = HttpError::new(
            HttpErrorKind::Unknown,
            Refusal {
                status: 503,
                code: "SlowDown".to_owned(),
                message: String::new(),
                retry_after_seconds: Some(7),
                is_of_store: true,
            },
        );
        let error = object_store::Error::Generic { store: "GCS", source: Box::new(inner) };
        let error = store_error("cannot list", "gs://b/p", error);
        assert_eq!(error.to_string(), "cannot list: gs://b/p: the server answered 503 SlowDown");
        assert_eq!(error.retry_after_wait(), Some(Duration::from_secs(7)));
    }
}

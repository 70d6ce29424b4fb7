//! The HTTP client of our own requests. `object_store`'s client would hand a connection the whole body and could not
//! take it back. Like that client, this one bounds its waits and keeps the status of refusals.

use std::time::Duration;

use http::{HeaderMap, Request};
use object_store::client::{HttpError, HttpErrorKind};
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout};

use crate::arrival_rate::ArrivalRate;
use crate::authorities::Authorities;
use crate::generic::errors::{refused, transport_error};
use crate::generic::transport::{CONNECT_TIMEOUT, MAXIMUM_REFUSAL_BYTES, Refusal, patience, silent};
use crate::identity::ClientIdentity;
use crate::lent::{TakeBack, lend};
use crate::payload::{Payload, PayloadBody};

/// Maximum length of a document that is read: a page of 1,000 entries has well under 2 MiB.
const MAXIMUM_DOCUMENT_BYTES: usize = 16 << 20;

/// Sends requests; most answers are short documents.
#[derive(Debug, Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    stall_timeout: Duration,
}

impl Client {
    /// Creates a client with the authorities and the certificate that the settings name. Set `plain_http` if the endpoint
    /// uses plain HTTP.
    ///
    /// # Errors
    /// `Usage` when one of them cannot be used.
    pub(super) fn new(settings: &RemoteSettings, plain_http: bool, stall_timeout: Duration) -> Result<Self> {
        let fault = |error: reqwest::Error| {
            Error::new(ErrorKind::Failed, "cannot open the remote")
                .on(&settings.url)
                .caused_by(error.without_url())
        };
        let mut builder = reqwest::Client::builder();
        if let Some(path) = &settings.ca_file {
            builder = builder.tls_certs_merge(Authorities::read(path)?.certificates().map_err(fault)?);
        }
        if let Some(identity) = ClientIdentity::of(settings)? {
            builder = builder.identity(identity.into_inner());
        }
        let http = builder
            .user_agent(concat!("stepvault/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .https_only(!plain_http)
            // A correct request is never redirected, and the token must not be sent to another host.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(fault)?;
        Ok(Self { http, stall_timeout })
    }

    /// Sends one request and returns headers and document of a 2xx answer.
    pub(super) async fn send(
        &self,
        what: &str,
        subject: &str,
        request: Request<Payload>,
    ) -> Result<(HeaderMap, String)> {
        let (mut response, _take_back) = self.open(what, subject, request).await?;
        let headers = response.headers().clone();
        let document = self.document(what, subject, &mut response).await?;
        Ok((headers, document))
    }

    /// Sends one request and returns a 2xx answer whose body has not been read, and what keeps the request's body until
    /// it has.
    pub(super) async fn open(
        &self,
        what: &str,
        subject: &str,
        request: Request<Payload>,
    ) -> Result<(reqwest::Response, TakeBack<PayloadBody>)> {
        let lost = |error: HttpError| transport_error(what, subject, &error);
        let limit = patience(self.stall_timeout, request.body().size_bytes());
        let (parts, payload) = request.into_parts();
        let (body, take_back) = lend(payload.into_body());
        let request = Request::from_parts(parts, reqwest::Body::wrap(body));
        let request = reqwest::Request::try_from(request).map_err(|error| lost(http_error(error)))?;
        let mut response = timeout(limit, self.http.execute(request))
            .await
            .map_err(|_| lost(silent(limit)))?
            .map_err(|error| lost(http_error(error)))?;
        let status = response.status();
        if !status.is_success() {
            let headers = response.headers().clone();
            let mut document = Vec::new();
            let reading = collect(&mut response, MAXIMUM_REFUSAL_BYTES, &mut document);
            // A refusal remains one even when its explanation is lost.
            let _ = timeout(self.stall_timeout, reading).await;
            return Err(refused(
                what,
                subject,
                &refusal_of(status.as_u16(), &headers, &document),
            ));
        }
        Ok((response, take_back))
    }

    async fn document(&self, what: &str, subject: &str, response: &mut reqwest::Response) -> Result<String> {
        let fault = |kind, why: &str| Error::new(kind, what).on(subject).because(why);
        let (mut document, mut rate) = (Vec::new(), ArrivalRate::default());
        loop {
            let (length, since) = (document.len(), Instant::now());
            let piece = timeout(self.stall_timeout, collect(response, length, &mut document)).await;
            let piece = piece.map_err(|_| {
                let seconds = self.stall_timeout.as_secs();
                let why = format!("no byte of the answer arrived for {seconds} seconds");
                fault(ErrorKind::Unreachable, &why)
            })?;
            piece.map_err(|error| transport_error(what, subject, &http_error(error)))?;
            if document.len() == length {
                break;
            }
            let counted = rate.count(document.len() - length, since.elapsed(), self.stall_timeout);
            counted.map_err(|slow| fault(ErrorKind::Unreachable, &slow.to_string()))?;
            if document.len() > MAXIMUM_DOCUMENT_BYTES {
                return Err(fault(ErrorKind::Failed, "the answer is larger than expected"));
            }
        }
        String::from_utf8(document).map_err(|_| fault(ErrorKind::Unreachable, "the answer is not text"))
    }
}

/// Returns the refusal. The JSON API has one code for a missing object and a missing bucket, and none for a wrong checksum:
/// the text shows which it is.
fn refusal_of(status: u16, headers: &HeaderMap, document: &[u8]) -> Refusal {
    let mut refusal = Refusal::new(status, headers, document);
    let names_bucket = |text: &str| text.starts_with("The specified bucket") || text.starts_with("Bucket ");
    if status == 404 && names_bucket(&refusal.message) {
        "NoSuchBucket".clone_into(&mut refusal.code);
    }
    let text = refusal.message.to_ascii_lowercase();
    if matches!(status, 400 | 412) && (text.contains("crc32c") || text.contains("md5")) {
        "BadDigest".clone_into(&mut refusal.code);
    }
    refusal
}

/// Appends the body to `document` until that has more than `most` bytes or the body ends.
async fn collect(
    response: &mut reqwest::Response,
    most: usize,
    document: &mut Vec<u8>,
) -> reqwest::Result<()> {
    while document.len() <= most {
        let Some(piece) = response.chunk().await? else {
            break;
        };
        document.extend_from_slice(&piece);
    }
    Ok(())
}

/// Converts to the error type of the other clients. The message already contains the URL.
pub(super) fn http_error(error: reqwest::Error) -> HttpError {
    let kind = if error.is_connect() {
        HttpErrorKind::Connect
    } else {
        HttpErrorKind::Request
    };
    HttpError::new(kind, error.without_url())
}

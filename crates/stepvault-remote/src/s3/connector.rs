//! The HTTP client under the SDK: fails stalled requests of any operation.
//!
//! The SDK's own read timeout counts from the start of a request, so it would cancel a large part on a slow line; its
//! stalled-stream protection requires a throughput. Here only the time without any byte counts.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use aws_sdk_s3::primitives::SdkBody;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use reqwest::Client;
use stepvault_core::{Error, ErrorKind};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::http::body::lend;
use crate::http::client::{HttpOptions, Lease, Renewed, Scheme};
use crate::http::tls::has_roots;
use crate::pieces::{ArrivalRate, TooSlow};

/// A request moved too little for the configured stall time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stalled {
    #[error("no byte moved for {} seconds", .0.as_secs_f64())]
    Silent(Duration),
    #[error(transparent)]
    Dripping(#[from] TooSlow),
}

/// Creates the client of these options.
///
/// # Errors
/// [`ErrorKind::Failed`] when the TLS library refuses its own settings, or no authority is trusted.
pub(crate) fn http_client(options: HttpOptions) -> stepvault_core::Result<SharedHttpClient> {
    let fault = || Error::new(ErrorKind::Failed, "cannot set up TLS");
    if options.scheme == Scheme::Https && options.authorities.is_none() && !has_roots() {
        return Err(fault()
            .because("no root certificates are installed on this machine or in this container")
            .hint("install ca-certificates, or name a file with the authorities: ca-file of the remote"));
    }
    let stall_timeout = options.stall_timeout;
    let client = options.open().map_err(|error| fault().caused_by(error.without_url()))?;
    Ok(SharedHttpClient::new(Watched { client, stall_timeout }))
}

#[derive(Debug, Clone)]
struct Watched {
    client: Renewed<Client>,
    stall_timeout: Duration,
}

impl HttpClient for Watched {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Watched {
    fn call(&self, mut request: HttpRequest) -> HttpConnectorFuture {
        let stall_timeout = self.stall_timeout;
        let progress = Arc::new(Progress::default());
        // Without this, a write without a body, such as a copy, has no length, and some servers require one.
        if matches!(request.method(), "PUT" | "POST") && request.body().content_length() == Some(0) {
            request.headers_mut().insert("content-length", "0");
        }
        let body = std::mem::replace(request.body_mut(), SdkBody::taken());
        let mut take_back = None;
        *request.body_mut() = if body.content_length() == Some(0) {
            body
        } else {
            let (body, lender) = lend(NotedBody { inner: body, progress: Arc::clone(&progress) });
            take_back = Some(lender);
            SdkBody::from_body_1_x(body)
        };
        let client = self.client.clone();
        HttpConnectorFuture::new(async move {
            let _take_back = take_back;
            let mut lease = client.lease();
            let response = tokio::select! {
                response = send(&mut lease, request) => response?,
                () = progress.stalled(stall_timeout) => {
                    return Err(ConnectorError::timeout(Stalled::Silent(stall_timeout).into()));
                }
            };
            let response =
                response.map(|body| SdkBody::from_body_1_x(WatchedBody::new(body, lease, stall_timeout)));
            HttpResponse::try_from(response).map_err(|error| ConnectorError::other(error.into(), None))
        })
    }
}

/// When a request last moved a byte towards the store.
#[derive(Debug)]
struct Progress {
    start: Instant,
    last_milliseconds: AtomicU64,
    whole: AtomicBool,
    /// Whether the next bytes to send are still being read, which is bounded there.
    awaits_bytes: AtomicBool,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            last_milliseconds: AtomicU64::new(0),
            whole: AtomicBool::new(false),
            awaits_bytes: AtomicBool::new(false),
        }
    }
}

impl Progress {
    fn note(&self, whole: bool) {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_milliseconds.store(elapsed, Ordering::Relaxed);
        self.whole.store(whole, Ordering::Relaxed);
    }

    /// Returns when no byte has moved for too long. After the last slice the kernel still sends its buffer, for about
    /// as long as the body took up to then, so the answer is awaited for that much longer, within bounds.
    async fn stalled(&self, stall_timeout: Duration) {
        loop {
            let sent = Duration::from_millis(self.last_milliseconds.load(Ordering::Relaxed));
            let grace =
                if self.whole.load(Ordering::Relaxed) { sent.min(stall_timeout * 4) } else { Duration::ZERO };
            let deadline = self.start + sent + grace + stall_timeout;
            if Instant::now() < deadline {
                sleep_until(deadline).await;
            } else if self.awaits_bytes.load(Ordering::Relaxed) {
                sleep(stall_timeout).await;
            } else {
                return;
            }
        }
    }
}

/// A request body that records each slice taken from it.
struct NotedBody {
    inner: SdkBody,
    progress: Arc<Progress>,
}

impl Body for NotedBody {
    type Data = Bytes;
    type Error = aws_smithy_types::body::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        self.progress.awaits_bytes.store(frame.is_pending(), Ordering::Relaxed);
        let frame = ready!(frame);
        if matches!(frame, Some(Ok(_))) {
            self.progress.note(self.inner.is_end_stream());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A response body that fails when no byte arrives for too long, or only a few. The time runs only while a reader waits for
/// it.
struct WatchedBody {
    inner: reqwest::Body,
    /// Until the whole body has arrived, its connection may turn out to be dead.
    lease: Lease<Client>,
    stall_timeout: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    waiting_since: Option<Instant>,
    rate: ArrivalRate,
}

impl WatchedBody {
    fn new(inner: reqwest::Body, lease: Lease<Client>, stall_timeout: Duration) -> Self {
        let rate = ArrivalRate::default();
        Self { inner, lease, stall_timeout, deadline: None, waiting_since: None, rate }
    }

    /// Counts a piece, and the time that its reader has waited for it.
    fn count(&mut self, piece_bytes: usize) -> Result<(), Stalled> {
        let waited = self.waiting_since.take().map(|since| since.elapsed());
        Ok(self.rate.count(piece_bytes, waited.unwrap_or_default(), self.stall_timeout)?)
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = aws_smithy_types::body::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(context) {
            this.deadline = None;
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            return Poll::Ready(match data.map(Bytes::len).map(|piece_bytes| this.count(piece_bytes)) {
                Some(Err(stalled)) => Some(Err(stalled.into())),
                _ => frame.map(|frame| frame.map_err(Into::into)),
            });
        }
        this.waiting_since.get_or_insert_with(Instant::now);
        let stall_timeout = this.stall_timeout;
        let wait = this.deadline.get_or_insert_with(|| Box::pin(sleep(stall_timeout)));
        ready!(wait.as_mut().poll(context));
        this.lease.lost();
        Poll::Ready(Some(Err(Stalled::Silent(stall_timeout).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

async fn send(
    lease: &mut Lease<Client>,
    request: HttpRequest,
) -> Result<http::Response<reqwest::Body>, ConnectorError> {
    let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
    let request = request
        .map(reqwest::Body::wrap)
        .try_into()
        .map_err(|error: reqwest::Error| ConnectorError::user(error.into()))?;
    let response = lease.execute(request).await;
    let response = lease.ended(response, reqwest::Error::is_connect).map_err(|error| {
        let is_timeout = error.is_timeout();
        let error = error.without_url().into();
        if is_timeout { ConnectorError::timeout(error) } else { ConnectorError::io(error) }
    })?;
    Ok(response.into())
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_for_its_own_bytes_has_not_stalled() {
        let (stall_timeout, long) = (Duration::from_secs(2), Duration::from_mins(10));
        let progress = Progress::default();
        progress.awaits_bytes.store(true, Ordering::Relaxed);
        assert!(timeout(long, progress.stalled(stall_timeout)).await.is_err());
        progress.awaits_bytes.store(false, Ordering::Relaxed);
        progress.note(false);
        assert!(timeout(long, progress.stalled(stall_timeout)).await.is_ok());
    }
}

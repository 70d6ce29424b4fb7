//! The HTTP client under the SDK: fails requests that move no byte, whatever the operation.
//!
//! The SDK's own read timeout counts from the start of a request, so it would cut a large part on a slow line; its
//! stalled-stream protection asks for a throughput. Here only silence counts.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use aws_sdk_s3::primitives::SdkBody;
use aws_smithy_http_client::Connector;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

/// A body goes out in slices of this size, so that its progress can be seen.
const SLICE_BYTES: usize = 32 << 10;
/// A connection that takes longer to open will hardly open at all.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// A request moved no byte for as long as the remote is configured to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no byte moved for {} seconds", .0.as_secs_f64())]
pub(crate) struct Stalled(pub(crate) Duration);

/// A client for requests that may be silent for at most `stall_timeout`.
pub(crate) fn http_client(stall_timeout: Duration, plain_http: bool, local: bool) -> SharedHttpClient {
    let settings = HttpConnectorSettings::builder()
        .connect_timeout(stall_timeout.min(LONGEST_CONNECT))
        .build();
    let proxy = if local {
        ProxyConfig::disabled()
    } else {
        ProxyConfig::from_env()
    };
    let builder = Connector::builder()
        .connector_settings(settings)
        .proxy_config(proxy);
    // Loading the system's certificates takes a while; nothing needs them over plain HTTP.
    let connector = if plain_http {
        builder.build_http()
    } else {
        builder.tls_provider(Provider::Rustls(CryptoMode::AwsLc)).build()
    };
    SharedHttpClient::new(Watched {
        inner: SharedHttpConnector::new(connector),
        stall_timeout,
    })
}

#[derive(Debug, Clone)]
struct Watched {
    inner: SharedHttpConnector,
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
        let body = std::mem::replace(request.body_mut(), SdkBody::taken());
        let mut lent = None;
        *request.body_mut() = if body.content_length() == Some(0) {
            body
        } else {
            let sliced = SlicedBody::new(body, Arc::clone(&progress));
            lent = Some(TakeBack(Arc::clone(&sliced.lent)));
            SdkBody::from_body_1_x(sliced)
        };
        let answer = self.inner.call(request);
        HttpConnectorFuture::new(async move {
            let _lent = lent;
            let response = tokio::select! {
                response = answer => response?,
                () = progress.stalled(stall_timeout) => {
                    return Err(ConnectorError::timeout(Stalled(stall_timeout).into()));
                }
            };
            Ok(response.map(|body| SdkBody::from_body_1_x(WatchedBody::new(body, stall_timeout))))
        })
    }
}

/// When a request last moved a byte towards the store.
#[derive(Debug)]
struct Progress {
    start: Instant,
    last_milliseconds: AtomicU64,
    whole: AtomicBool,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            last_milliseconds: AtomicU64::new(0),
            whole: AtomicBool::new(false),
        }
    }
}

impl Progress {
    fn note(&self, whole: bool) {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_milliseconds.store(elapsed, Ordering::Relaxed);
        self.whole.store(whole, Ordering::Relaxed);
    }

    /// Ends when nothing has moved for too long. After the last slice the kernel's buffer is still on its way, for
    /// about as long as the body took to get that far; the answer is waited for that much longer, within reason.
    async fn stalled(&self, stall_timeout: Duration) {
        loop {
            let sent = Duration::from_millis(self.last_milliseconds.load(Ordering::Relaxed));
            let grace = if self.whole.load(Ordering::Relaxed) {
                sent.min(stall_timeout * 4)
            } else {
                Duration::ZERO
            };
            let deadline = self.start + sent + grace + stall_timeout;
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }
}

/// What is left of a request body, and the request's means to take it back.
type Lent = Arc<Mutex<Option<Remainder>>>;

struct Remainder {
    inner: SdkBody,
    rest: Bytes,
}

/// Frees a request's body when the request is over, however it ended. A connection to a peer that has stopped reading
/// outlives the request by up to a quarter of an hour, and would keep the buffer from whoever needs it next.
struct TakeBack(Lent);

impl Drop for TakeBack {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// A request body in slices that notes each one taken. Slices are copies: what a dead connection has queued must not
/// keep the whole buffer alive.
struct SlicedBody {
    lent: Lent,
    progress: Arc<Progress>,
}

impl SlicedBody {
    fn new(inner: SdkBody, progress: Arc<Progress>) -> Self {
        let remainder = Remainder {
            inner,
            rest: Bytes::new(),
        };
        Self {
            lent: Arc::new(Mutex::new(Some(remainder))),
            progress,
        }
    }
}

impl Body for SlicedBody {
    type Data = Bytes;
    type Error = aws_smithy_types::body::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(remainder) = lent.as_mut() else {
            return Poll::Ready(Some(Err("the request was given up".into())));
        };
        if remainder.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut remainder.inner).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => remainder.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let length = remainder.rest.len().min(SLICE_BYTES);
        let slice = Bytes::copy_from_slice(&remainder.rest.split_to(length));
        self.progress.note(remainder.is_end());
        Poll::Ready(Some(Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        lent.as_ref().is_some_and(Remainder::is_end)
    }

    fn size_hint(&self) -> SizeHint {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(remainder) = lent.as_ref() else {
            return SizeHint::new();
        };
        let inner = remainder.inner.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + remainder.rest.len() as u64);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + remainder.rest.len() as u64);
        }
        hint
    }
}

impl Remainder {
    fn is_end(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }
}

/// A response body that fails when nothing comes for too long. The time runs only while somebody waits for it.
struct WatchedBody {
    inner: SdkBody,
    stall_timeout: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl WatchedBody {
    fn new(inner: SdkBody, stall_timeout: Duration) -> Self {
        Self {
            inner,
            stall_timeout,
            deadline: None,
        }
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
            return Poll::Ready(frame);
        }
        let stall_timeout = this.stall_timeout;
        let sleep = this
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(stall_timeout)));
        ready!(sleep.as_mut().poll(context));
        Poll::Ready(Some(Err(Stalled(stall_timeout).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

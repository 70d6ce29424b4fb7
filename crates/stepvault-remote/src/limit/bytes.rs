//! Bounds the bytes a second, and the silence that a read may keep.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{BoxStream, unfold};
use governor::clock::{Clock as _, MonotonicClock};
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use stepvault_core::digest::{FileDigest, PartDigest};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::timeout;

use crate::payload::Payload;
use crate::store::{
    Created, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore, StoreAbilities,
};

type Limiter = RateLimiter<NotKeyed, InMemoryState, MonotonicClock>;

/// Bounds the bytes that are sent and received in a second, and fails reads that bring no byte for too long.
///
/// The innermost decorator: what is sent again counts again. A part is paid for before it is sent, so on the wire it
/// comes in one burst, of at most its own length.
#[derive(Debug)]
pub struct FlowStore {
    inner: Arc<dyn RemoteStore>,
    limiter: Option<Arc<Limiter>>,
    stall_timeout: Duration,
}

impl FlowStore {
    /// Wraps `inner`. Without a limit only the silence of reads is watched.
    pub fn new(inner: Arc<dyn RemoteStore>, bytes_per_second: Option<u64>, stall_timeout: Duration) -> Self {
        let limiter = bytes_per_second.map(|limit| {
            let limit = NonZeroU32::new(u32::try_from(limit).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN);
            Arc::new(RateLimiter::direct_with_clock(
                Quota::per_second(limit),
                MonotonicClock,
            ))
        });
        Self {
            inner,
            limiter,
            stall_timeout,
        }
    }

    async fn pay(&self, bytes: u64) {
        if let Some(limiter) = &self.limiter {
            pay(limiter, bytes).await;
        }
    }

    fn stalled(&self, what: &str, key: &str) -> Error {
        stalled(what, &format!("{}/{key}", self.url()), self.stall_timeout)
    }
}

/// Waits until `bytes` may pass, in pieces that the limiter's burst can hold.
async fn pay(limiter: &Limiter, bytes: u64) {
    let mut rest = u32::try_from(bytes).unwrap_or(u32::MAX);
    let mut piece = rest;
    while let Some(wanted) = NonZeroU32::new(piece.min(rest)) {
        match limiter.check_n(wanted) {
            Ok(Ok(())) => rest -= wanted.get(),
            Ok(Err(not_until)) => tokio::time::sleep(not_until.wait_time_from(limiter.clock().now())).await,
            Err(capacity) => piece = capacity.0,
        }
    }
}

fn stalled(what: &str, subject: &str, stall_timeout: Duration) -> Error {
    Error::new(ErrorKind::Unreachable, what)
        .on(subject)
        .because(format!(
            "no byte moved for {} seconds",
            stall_timeout.as_secs_f64()
        ))
        .hint("check the endpoint, the network and any proxy between")
}

#[async_trait]
impl RemoteStore for FlowStore {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn abilities(&self) -> StoreAbilities {
        self.inner.abilities()
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        self.pay(body.size_bytes()).await;
        self.inner.create(key, body, digest).await
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        self.pay(body.len() as u64).await;
        self.inner.replace(key, body, digest).await
    }

    async fn start_upload(&self, key: &str, size_bytes: u64) -> Result<String> {
        self.inner.start_upload(key, size_bytes).await
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        self.pay(body.size_bytes()).await;
        self.inner.upload_part(key, upload, index, body, digest).await
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        self.inner.complete_upload(key, upload, parts, digest).await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        self.inner.abort_upload(key, upload).await
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        self.inner.pending_uploads(prefix).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        self.inner.head(key).await
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>> {
        let what = "cannot read the object";
        let Ok(body) = timeout(self.stall_timeout, self.inner.read(key, range)).await else {
            return Err(self.stalled(what, key));
        };
        let (limiter, stall_timeout) = (self.limiter.clone(), self.stall_timeout);
        let subject = format!("{}/{key}", self.url());
        let watched = unfold(Some(body?), move |body| {
            let (limiter, subject) = (limiter.clone(), subject.clone());
            async move {
                let mut body = body?;
                match timeout(stall_timeout, body.next()).await {
                    Err(_) => Some((Err(stalled(what, &subject, stall_timeout)), None)),
                    Ok(None) => None,
                    Ok(Some(Err(error))) => Some((Err(error), None)),
                    Ok(Some(Ok(bytes))) => {
                        if let Some(limiter) = &limiter {
                            pay(limiter, bytes.len() as u64).await;
                        }
                        Some((Ok(bytes), Some(body)))
                    }
                }
            }
        });
        Ok(watched.boxed())
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        self.inner.list(prefix)
    }

    async fn sync(&self, keys: &[String]) -> Result<()> {
        self.inner.sync(keys).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.inner.delete(keys).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        self.inner.copy(from, to).await
    }

    async fn copy_part(
        &self,
        from: &str,
        key: &str,
        upload: &str,
        index: u32,
        start: u64,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        self.inner
            .copy_part(from, key, upload, index, start, digest)
            .await
    }
}

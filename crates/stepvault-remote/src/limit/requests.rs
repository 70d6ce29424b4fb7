//! Bounds the requests under way.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{BoxStream, unfold};
use stepvault_core::digest::{FileDigest, PartDigest};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::payload::Payload;
use crate::store::{
    Created, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore, StoreAbilities,
};

/// Bounds the requests under way. The outermost decorator: a request that waits to be retried keeps its place, so
/// that no other goes out to a failing remote in its stead.
///
/// A read counts until its stream is dropped. Whoever holds one must not wait for another request to the same remote.
#[derive(Debug)]
pub struct RequestLimitStore {
    inner: Arc<dyn RemoteStore>,
    requests: Arc<Semaphore>,
}

impl RequestLimitStore {
    /// Lets through at most `most` requests at once, and at least one.
    pub fn new(inner: Arc<dyn RemoteStore>, most: usize) -> Self {
        let requests = Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)));
        Self { inner, requests }
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.requests).acquire_owned().await;
        // Nobody closes the semaphore.
        permit.map_err(|error| {
            Error::new(ErrorKind::Failed, "cannot send a request")
                .on(self.url())
                .caused_by(error)
        })
    }
}

#[async_trait]
impl RemoteStore for RequestLimitStore {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn abilities(&self) -> StoreAbilities {
        self.inner.abilities()
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        let _permit = self.permit().await?;
        self.inner.create(key, body, digest).await
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        let _permit = self.permit().await?;
        self.inner.replace(key, body, digest).await
    }

    async fn start_upload(&self, key: &str, size_bytes: u64) -> Result<String> {
        let _permit = self.permit().await?;
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
        let _permit = self.permit().await?;
        self.inner.upload_part(key, upload, index, body, digest).await
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        let _permit = self.permit().await?;
        self.inner.complete_upload(key, upload, parts, digest).await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        let _permit = self.permit().await?;
        self.inner.abort_upload(key, upload).await
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        let _permit = self.permit().await?;
        self.inner.pending_uploads(prefix).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        let _permit = self.permit().await?;
        self.inner.head(key).await
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>> {
        let permit = self.permit().await?;
        let body = self.inner.read(key, range).await?;
        let held = unfold((body, permit), |(mut body, permit)| async move {
            let next = body.next().await?;
            Some((next, (body, permit)))
        });
        Ok(held.boxed())
    }

    /// Counts only while an entry is waited for: callers send requests between two entries.
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        let entries = self.inner.list(prefix);
        unfold(entries, move |mut entries| async move {
            let next = match self.permit().await {
                Ok(_permit) => entries.next().await?,
                Err(error) => Err(error),
            };
            Some((next, entries))
        })
        .boxed()
    }

    async fn sync(&self, keys: &[String]) -> Result<()> {
        let _permit = self.permit().await?;
        self.inner.sync(keys).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        let _permit = self.permit().await?;
        self.inner.delete(keys).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        let _permit = self.permit().await?;
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
        let _permit = self.permit().await?;
        self.inner
            .copy_part(from, key, upload, index, start, digest)
            .await
    }
}

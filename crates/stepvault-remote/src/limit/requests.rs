//! Limits concurrent requests.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, unfold};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::decorator::{Answer, Request, StoreDecorator};
use crate::store::{ObjectInfo, RemoteStore};

/// Limits concurrent requests. The outermost decorator: a request that waits for its retry keeps its permit, so that no
/// other request replaces it at a failing remote.
///
/// A read counts until its stream is dropped. A caller that holds one must not wait for another request to the same
/// remote.
#[derive(Debug)]
pub struct RequestLimitStore {
    inner: Arc<dyn RemoteStore>,
    requests: Arc<Semaphore>,
}

impl RequestLimitStore {
    /// Permits at most `most` concurrent requests, and at least one.
    pub fn new(inner: Arc<dyn RemoteStore>, most: usize) -> Self {
        let requests = Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)));
        Self { inner, requests }
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.requests).acquire_owned().await;
        // The semaphore is never closed.
        permit.map_err(|error| {
            Error::new(ErrorKind::Failed, "cannot send a request")
                .on(self.url())
                .caused_by(error)
        })
    }
}

#[async_trait]
impl StoreDecorator for RequestLimitStore {
    fn inner(&self) -> &dyn RemoteStore {
        &*self.inner
    }

    async fn around<'a, T, C>(&'a self, _request: Request, call: C) -> Result<T>
    where
        T: Answer + 'a,
        C: Fn() -> BoxFuture<'a, Result<T>> + Send + Sync + 'a,
    {
        let _permit = self.permit().await?;
        call().await
    }

    async fn read_decorated(
        &self,
        key: &str,
        range: Option<Range<u64>>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let permit = self.permit().await?;
        let body = self.inner.read(key, range).await?;
        let held = unfold((body, permit), |(mut body, permit)| async move {
            let next = body.next().await?;
            Some((next, (body, permit)))
        });
        Ok(held.boxed())
    }

    /// Counts only while an entry is awaited: callers send requests between two entries.
    fn list_decorated<'a>(&'a self, prefix: &str) -> BoxStream<'a, Result<ObjectInfo>> {
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
}

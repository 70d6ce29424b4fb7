//! Limits concurrent requests.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, unfold};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::concurrency::{AdaptiveLimit, ConcurrencyPermit};
use crate::decorator::{Answer, Request, StoreDecorator};
use crate::store::{BodyStream, ConcurrencyLimit, ObjectInfo, RemoteStore};

/// The answer to a request that sends no more than this takes as long as the way to the store and back, and so does the
/// beginning of any read.
const SMALL_BYTES: u64 = 16 << 10;

/// Limits concurrent requests. The outermost decorator: a request that waits for its retry keeps its permit, so that no
/// other request replaces it at a failing remote.
///
/// A read counts until its stream is dropped. A caller that holds one must not wait for another request to the same
/// remote.
#[derive(Debug)]
pub struct RequestLimitStore {
    inner: Arc<dyn RemoteStore>,
    limit: Arc<AdaptiveLimit>,
}

impl RequestLimitStore {
    /// Permits at most `maximum` concurrent requests, and at least one.
    pub fn new(inner: Arc<dyn RemoteStore>, maximum: usize) -> Self {
        Self { inner, limit: AdaptiveLimit::new(maximum) }
    }

    async fn permit(&self) -> Result<ConcurrencyPermit> {
        // The semaphore is never closed.
        self.limit.acquire().await.map_err(|error| {
            Error::new(ErrorKind::Failed, "cannot send a request").on(self.url()).caused_by(error)
        })
    }
}

#[async_trait]
impl StoreDecorator for RequestLimitStore {
    fn inner(&self) -> &dyn RemoteStore {
        &*self.inner
    }

    fn concurrency_limit_decorated(&self) -> Option<&dyn ConcurrencyLimit> {
        Some(&*self.limit)
    }

    async fn around<'a, T, C>(&'a self, request: Request, call: C) -> Result<T>
    where
        T: Answer + 'a,
        C: Fn() -> BoxFuture<'a, Result<T>> + Send + Sync + 'a,
    {
        let _permit = self.permit().await?;
        let begun = Instant::now();
        let answer = call().await;
        if answer.is_ok() {
            // What sends nothing may be no request: not every store has something to begin or to sync.
            if (1..=SMALL_BYTES).contains(&request.sent_bytes) {
                self.limit.record_latency(begun.elapsed());
            }
            self.limit.record_success(request.sent_bytes);
        }
        answer
    }

    async fn read_decorated(&self, key: &str, range: Option<Range<u64>>) -> Result<BodyStream> {
        let permit = self.permit().await?;
        let begun = Instant::now();
        let body = self.inner.read(key, range).await?;
        self.limit.record_latency(begun.elapsed());
        let limit = Arc::clone(&self.limit);
        let held = unfold((body, permit, 0), move |(mut body, permit, bytes)| {
            let limit = Arc::clone(&limit);
            async move {
                let Some(next) = body.next().await else {
                    limit.record_success(bytes);
                    return None;
                };
                let bytes = bytes + next.as_ref().map_or(0, |piece| piece.len() as u64);
                Some((next, (body, permit, bytes)))
            }
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

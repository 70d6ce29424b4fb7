//! A store that answers soon or counts as unreachable: for questions that must not hold up the taking over of steps.

use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use stepvault_core::digest::{FileDigest, PartDigest};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::payload::Payload;
use stepvault_remote::store::{
    Created, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore, StoreAbilities,
};
use tokio::time::Instant;

/// Longest wait for one answer, or for the next page or piece of one.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// A store that did not answer is not asked again for this long.
const LEFT_ALONE: Duration = Duration::from_secs(30);

/// Passes everything on, and gives up on a store that takes too long, then for a while at once.
///
/// Without it a store that hangs would be waited for at every single step, for as long as its retries may take.
#[derive(Debug)]
pub(crate) struct PromptStore {
    inner: Arc<dyn RemoteStore>,
    gate: Gate,
}

#[derive(Debug, Clone, Default)]
struct Gate {
    silent_until: Arc<Mutex<Option<Instant>>>,
}

impl Gate {
    fn check(&self, url: &str) -> Result<()> {
        let until = *self.silent_until.lock().unwrap_or_else(PoisonError::into_inner);
        match until {
            Some(until) if until > Instant::now() => Err(unanswered(url, "it did not answer a moment ago")),
            _ => Ok(()),
        }
    }

    fn close(&self) {
        *self.silent_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + LEFT_ALONE);
    }

    async fn within<T>(&self, url: &str, answer: impl Future<Output = T> + Send) -> Result<T> {
        tokio::time::timeout(ANSWER_WITHIN, answer).await.map_err(|_| {
            self.close();
            unanswered(
                url,
                &format!("it did not answer within {} s", ANSWER_WITHIN.as_secs()),
            )
        })
    }
}

fn unanswered(url: &str, why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, "cannot ask the remote")
        .on(url)
        .because(why)
}

impl PromptStore {
    pub(crate) fn new(inner: Arc<dyn RemoteStore>) -> Self {
        Self {
            inner,
            gate: Gate::default(),
        }
    }

    async fn ask<T>(&self, answer: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.gate.check(self.inner.url())?;
        let answer = self.gate.within(self.inner.url(), answer).await?;
        if answer
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Unreachable)
        {
            self.gate.close();
        }
        answer
    }

    /// The same stream, whose every item has to come in time; it ends with the one that does not.
    fn prompt<'a, T: Send + 'a>(&self, items: BoxStream<'a, Result<T>>) -> BoxStream<'a, Result<T>> {
        let (gate, url) = (self.gate.clone(), self.inner.url().to_owned());
        let next = move |items: Option<BoxStream<'a, Result<T>>>| {
            let (gate, url) = (gate.clone(), url.clone());
            async move {
                let mut items = items?;
                let open = gate.check(&url);
                let item = match open {
                    Ok(()) => gate.within(&url, items.next()).await,
                    Err(error) => Err(error),
                };
                match item {
                    Ok(item) => Some((item?, Some(items))),
                    Err(error) => Some((Err(error), None)),
                }
            }
        };
        futures::stream::unfold(Some(items), next).boxed()
    }
}

#[async_trait]
impl RemoteStore for PromptStore {
    fn url(&self) -> &str {
        self.inner.url()
    }

    fn abilities(&self) -> StoreAbilities {
        self.inner.abilities()
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        self.ask(self.inner.create(key, body, digest)).await
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        self.ask(self.inner.replace(key, body, digest)).await
    }

    async fn start_upload(&self, key: &str, size_bytes: u64) -> Result<String> {
        self.ask(self.inner.start_upload(key, size_bytes)).await
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        self.ask(self.inner.upload_part(key, upload, index, body, digest))
            .await
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        self.ask(self.inner.complete_upload(key, upload, parts, digest))
            .await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        self.ask(self.inner.abort_upload(key, upload)).await
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        self.ask(self.inner.pending_uploads(prefix)).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        self.ask(self.inner.head(key)).await
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>> {
        let pieces = self.ask(self.inner.read(key, range)).await?;
        Ok(self.prompt(pieces))
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        self.prompt(self.inner.list(prefix))
    }

    async fn sync(&self, keys: &[String]) -> Result<()> {
        self.ask(self.inner.sync(keys)).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.ask(self.inner.delete(keys)).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        self.ask(self.inner.copy(from, to)).await
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
        self.ask(self.inner.copy_part(from, key, upload, index, start, digest))
            .await
    }
}

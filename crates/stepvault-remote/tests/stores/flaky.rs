//! A store that does nothing but answer by a script, on the test's own clock.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::payload::Payload;
use stepvault_remote::store::{
    ArchivePlace, Created, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore, StoreCapabilities,
};
use tokio::time::Instant;

/// What becomes of a request: the key, how many requests came before it, and the time since the start.
type Script = Box<dyn Fn(&str, usize, Duration) -> Result<()> + Send + Sync>;

pub(crate) struct Flaky {
    script: Script,
    /// How long a request takes that succeeds.
    takes: Duration,
    began: Instant,
    times: Mutex<Vec<Duration>>,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
}

impl std::fmt::Debug for Flaky {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Flaky")
    }
}

impl Flaky {
    pub(crate) fn new(
        takes: Duration,
        script: impl Fn(&str, usize, Duration) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            script: Box::new(script),
            takes,
            began: Instant::now(),
            times: Mutex::default(),
            under_way: AtomicUsize::new(0),
            most_under_way: AtomicUsize::new(0),
        }
    }

    /// When requests came.
    pub(crate) fn times(&self) -> Vec<Duration> {
        self.times.lock().unwrap().clone()
    }

    pub(crate) fn most_under_way(&self) -> usize {
        self.most_under_way.load(Ordering::SeqCst)
    }

    async fn serve(&self, key: &str) -> Result<()> {
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_under_way.fetch_max(now, Ordering::SeqCst);
        let before = {
            let mut times = self.times.lock().unwrap();
            times.push(self.began.elapsed());
            times.len() - 1
        };
        let answer = (self.script)(key, before, self.began.elapsed());
        tokio::time::sleep(if answer.is_ok() { self.takes } else { Duration::from_millis(20) }).await;
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        answer
    }
}

pub(crate) fn busy() -> Error {
    Error::new(ErrorKind::Unreachable, "cannot send a part").because("the store asks to slow down")
}

fn unused<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Failed, "not part of the script"))
}

#[async_trait]
impl RemoteStore for Flaky {
    fn url(&self) -> &'static str {
        "flaky://store"
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            checks_checksums: false,
            creates_atomically: true,
            multipart_is_create_only: false,
            streams_bodies: false,
            checks_sha256_alone: false,
            deletes_in_batches: false,
            lists_pending_uploads: false,
            copies: false,
            copies_parts: false,
        }
    }

    async fn begin(&self, _place: ArchivePlace) -> Result<bool> {
        Ok(false)
    }

    async fn create(&self, _key: &str, _body: Payload, _digest: &PartDigest) -> Result<Created> {
        unused()
    }

    async fn replace(&self, key: &str, _body: Bytes, _digest: &PartDigest) -> Result<()> {
        self.serve(key).await
    }

    async fn start_upload(
        &self,
        _key: &str,
        _size_bytes: u64,
        _algorithm: DigestAlgorithm,
    ) -> Result<String> {
        unused()
    }

    async fn upload_part(
        &self,
        key: &str,
        _upload: &str,
        index: u32,
        _body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        self.serve(key).await?;
        Ok(PartReceipt { index, tag: String::new(), digest: *digest })
    }

    async fn complete_upload(
        &self,
        _key: &str,
        _upload: &str,
        _parts: &[PartReceipt],
        _digest: &FileDigest,
    ) -> Result<Created> {
        unused()
    }

    async fn abort_upload(&self, _key: &str, _upload: &str) -> Result<()> {
        unused()
    }

    async fn pending_uploads(&self, _prefix: &str) -> Result<Vec<PendingUpload>> {
        unused()
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        self.serve(key).await?;
        Ok(None)
    }

    /// Two pieces of four bytes; then silence.
    async fn read(&self, key: &str, _range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>> {
        self.serve(key).await?;
        let pieces =
            futures::stream::iter([Ok(Bytes::from_static(b"1234")), Ok(Bytes::from_static(b"5678"))]);
        Ok(pieces.chain(futures::stream::pending()).boxed())
    }

    fn list(&self, _prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        futures::stream::empty().boxed()
    }

    async fn delete(&self, _keys: &[String]) -> Result<()> {
        unused()
    }

    async fn copy(&self, _from: &str, _to: &str) -> Result<Created> {
        unused()
    }
    async fn copy_part(
        &self,
        _from: &str,
        _key: &str,
        _upload: &str,
        _index: u32,
        _start: u64,
        _digest: &PartDigest,
    ) -> Result<PartReceipt> {
        unused()
    }
}

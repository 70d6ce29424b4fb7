//! Decorators of [`RemoteStore`]: each says what it does around a request; how requests are forwarded stands here, once.

use std::fmt::Debug;
use std::ops::Range;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use stepvault_core::{DigestAlgorithm, Error, FileDigest, PartDigest, Result};

use crate::payload::Payload;
use crate::store::{
    ArchivePlace, BodyStream, ConcurrencyLimit, Created, IgnoredAttribute, ObjectHead, ObjectInfo,
    PartReceipt, PendingUpload, RemoteStore, StoreCapabilities, ThawSpeed, Thawed,
};

/// What a decorator knows of a request before it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Whether the request changes the store.
    pub is_write: bool,
    /// Bytes of an object or part that are sent with it.
    pub sent_bytes: u64,
}

impl Request {
    /// A request that changes nothing.
    pub const READ: Self = Self { is_write: false, sent_bytes: 0 };
    /// A request that changes the store and sends no data.
    pub const WRITE: Self = Self::sending(0);

    /// A request that writes an object or part of `sent_bytes`.
    pub const fn sending(sent_bytes: u64) -> Self {
        Self { is_write: true, sent_bytes }
    }
}

/// An answer of a store.
pub trait Answer: Send {
    /// Whether it says that something does not exist.
    fn is_absent(&self) -> bool {
        false
    }

    /// The time of what the request has written, by the store's clock.
    fn written_at(&self) -> Option<SystemTime> {
        None
    }
}

impl Answer for () {}
impl Answer for bool {}
impl Answer for String {}
impl Answer for PartReceipt {}
impl Answer for BodyStream {}
impl Answer for Vec<IgnoredAttribute> {}
impl Answer for Thawed {}

impl Answer for Created {
    fn written_at(&self) -> Option<SystemTime> {
        // A store may have sent no time.
        self.written().map(|info| info.modified).filter(|time| *time > SystemTime::UNIX_EPOCH)
    }
}

impl Answer for Vec<PendingUpload> {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

impl Answer for Option<ObjectHead> {
    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

/// Sends a request to the inner store; may be called again.
pub trait Call<'a, T>: Fn() -> BoxFuture<'a, Result<T>> + Send + Sync + 'a {}
impl<'a, T, C: Fn() -> BoxFuture<'a, Result<T>> + Send + Sync + 'a> Call<'a, T> for C {}

/// A store that does something around each request to another store. Everything that implements this is a
/// [`RemoteStore`]; the methods with a default are for requests that a decorator treats in a way of their own.
#[async_trait]
pub trait StoreDecorator: Send + Sync + Debug {
    /// Returns the store that requests are forwarded to.
    fn inner(&self) -> &dyn RemoteStore;

    /// Sends one request, by `call`, which may be called again.
    async fn around<'a, T: Answer + 'a, C: Call<'a, T>>(&'a self, request: Request, call: C) -> Result<T>;

    /// [`RemoteStore::concurrency_limit`].
    fn concurrency_limit_decorated(&self) -> Option<&dyn ConcurrencyLimit> {
        self.inner().concurrency_limit()
    }

    /// [`RemoteStore::begin`].
    async fn begin_decorated(&self, place: ArchivePlace) -> Result<bool> {
        self.around(Request::WRITE, || self.inner().begin(place)).await
    }

    /// [`RemoteStore::complete_upload`].
    async fn complete_decorated(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        self.around(Request::WRITE, || self.inner().complete_upload(key, upload, parts, digest)).await
    }

    /// [`RemoteStore::read`]; `around` covers the opening alone.
    async fn read_decorated(&self, key: &str, range: Option<Range<u64>>) -> Result<BodyStream> {
        self.around(Request::READ, || self.inner().read(key, range.clone())).await
    }

    /// [`RemoteStore::list`]; forwarded without `around`.
    fn list_decorated<'a>(&'a self, prefix: &str) -> BoxStream<'a, Result<ObjectInfo>> {
        self.inner().list(prefix)
    }
}

/// Sends a body. If its source failed, that is the error, and no retry of this store helps: the source has its own.
fn fault_of<'a, T: 'a>(body: &Payload, sent: BoxFuture<'a, Result<T>>) -> BoxFuture<'a, Result<T>> {
    let body = body.clone();
    sent.map(move |sent| sent.map_err(|error| body.source_fault().map_or(error, Error::lasting))).boxed()
}

#[async_trait]
impl<D: StoreDecorator> RemoteStore for D {
    fn url(&self) -> &str {
        self.inner().url()
    }

    fn capabilities(&self) -> StoreCapabilities {
        self.inner().capabilities()
    }

    fn concurrency_limit(&self) -> Option<&dyn ConcurrencyLimit> {
        self.concurrency_limit_decorated()
    }

    async fn begin(&self, place: ArchivePlace) -> Result<bool> {
        self.begin_decorated(place).await
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        let create = || fault_of(&body, self.inner().create(key, body.clone(), digest));
        self.around(Request::sending(body.size_bytes()), create).await
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        self.around(Request::sending(body.len() as u64), || self.inner().replace(key, body.clone(), digest))
            .await
    }

    async fn start_upload(&self, key: &str, size_bytes: u64, algorithm: DigestAlgorithm) -> Result<String> {
        let start = || self.inner().start_upload(key, size_bytes, algorithm);
        self.around(Request::WRITE, start).await
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let send = || fault_of(&body, self.inner().upload_part(key, upload, index, body.clone(), digest));
        self.around(Request::sending(body.size_bytes()), send).await
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        self.complete_decorated(key, upload, parts, digest).await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        self.around(Request::WRITE, || self.inner().abort_upload(key, upload)).await
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        self.around(Request::READ, || self.inner().pending_uploads(prefix)).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        self.around(Request::READ, || self.inner().head(key)).await
    }

    async fn ignored_attributes(&self, key: &str) -> Result<Vec<IgnoredAttribute>> {
        self.around(Request::READ, || self.inner().ignored_attributes(key)).await
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BodyStream> {
        self.read_decorated(key, range).await
    }

    async fn thaw(&self, key: &str, speed: ThawSpeed) -> Result<Thawed> {
        self.around(Request::WRITE, || self.inner().thaw(key, speed)).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        self.list_decorated(prefix)
    }

    async fn sync(&self, keys: &[String]) -> Result<()> {
        self.around(Request::WRITE, || self.inner().sync(keys)).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.around(Request::WRITE, || self.inner().delete(keys)).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        self.around(Request::WRITE, || self.inner().copy(from, to)).await
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
        self.around(Request::WRITE, || self.inner().copy_part(from, key, upload, index, start, digest)).await
    }
}

//! The seam between the engine and every kind of store.

use std::fmt::Debug;
use std::ops::Range;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use stepvault_core::Result;
use stepvault_core::digest::{Crc32c, FileDigest, PartDigest, Sha256Digest};

use crate::payload::Payload;

/// What a store says of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Key relative to the remote's prefix.
    pub key: String,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Last modification by the store's own clock.
    pub modified: SystemTime,
    /// Entity tag or generation: changes whenever the object does. `None` where the store has neither.
    pub version: Option<String>,
}

/// The checksum that a store keeps for an object, as it reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredChecksum {
    /// SHA-256 of the whole object.
    Sha256(Sha256Digest),
    /// SHA-256 over the SHA-256 digests of its parts (S3 multipart), with the number of parts.
    CompositeSha256 {
        /// The digest.
        digest: Sha256Digest,
        /// How many parts.
        parts: u32,
    },
    /// CRC-32C of the whole object (GCS).
    Crc32c(Crc32c),
    /// The store keeps none, or none that stepvault uses: the bytes must be read back.
    None,
}

impl StoredChecksum {
    /// Whether this checksum proves that the object holds the file with `digest`, cut into `parts`.
    /// `None` when it cannot tell either way.
    pub fn proves(&self, digest: &FileDigest, parts: &[Sha256Digest]) -> Option<bool> {
        match self {
            Self::Sha256(stored) => match parts {
                [only] => Some(stored == only),
                _ => None,
            },
            Self::CompositeSha256 {
                digest: stored,
                parts: count,
            } => Some(*stored == digest.sha256 && *count as usize == parts.len()),
            Self::Crc32c(stored) => Some(*stored == digest.crc32c),
            Self::None => None,
        }
    }
}

/// An object with its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectHead {
    /// Size, time, version.
    pub info: ObjectInfo,
    /// What the store keeps to prove its bytes.
    pub checksum: StoredChecksum,
}

/// A part that a store has acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartReceipt {
    /// Index from 0.
    pub index: u32,
    /// What completion has to quote: the part's entity tag, or the store's own handle.
    pub tag: String,
    /// What was sent.
    pub digest: PartDigest,
}

/// A multipart upload that was begun and neither completed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingUpload {
    /// Key relative to the remote's prefix.
    pub key: String,
    /// The store's id for it.
    pub upload: String,
    /// When it was begun, by the store's clock; `None` where the store does not say.
    pub initiated: Option<SystemTime>,
}

/// What a kind of store can do by itself. What the one at hand really does is probed, not assumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// Each is yes or no, and independent of the others.
#[allow(clippy::struct_excessive_bools)]
pub struct StoreAbilities {
    /// It is given a checksum with each object and each part, and refuses bytes that do not match.
    pub checks_checksums: bool,
    /// A completed multipart upload never replaces an existing object.
    pub multipart_is_create_only: bool,
    /// Pending multipart uploads can be listed.
    pub lists_pending_uploads: bool,
    /// Objects can be copied inside the store.
    pub copies: bool,
    /// Parts of an upload can be copied from objects, each proven to be what was asked for. A store that copies
    /// objects and no parts copies one of any size in one go.
    pub copies_parts: bool,
}

/// Outcome of a create-if-absent write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// The object was written; its head as the store acknowledged it.
    Written(ObjectHead),
    /// The key was taken; nothing was written. Whether by the same bytes is for the caller to find out: an
    /// answer that was lost looks the same.
    Exists,
}

/// One object store under one URL, narrow on purpose: what implementations must do, and no more.
///
/// # Contract
/// - Keys are relative to the URL's prefix, UTF-8, without leading slash, and mean the same bytes in every store.
/// - Every method is one logical request: no retries of its own (the retry decorator adds them), and no wait
///   without an end: implementations fail with [`stepvault_core::ErrorKind::Unreachable`] when no byte has moved for
///   the configured stall time.
/// - Errors: `NotFound` when the object or upload does not exist; `Denied` for credentials or rights; `Conflict`
///   when a precondition failed; `Damaged` when the store refused the bytes for their checksum; `Unreachable`
///   for transport failures, throttling and 5xx; `Usage` when the bucket does not exist or the configuration does
///   not fit it; `Failed` otherwise. An error that may pass says so by
///   [`is_transient`](stepvault_core::Error::is_transient): everything `Unreachable`, and what is marked besides.
/// - A write is acknowledged only when it is durable by the store's own promise.
/// - Dropping a future cancels its request; an upload cut off so is either absent or whole.
#[async_trait]
pub trait RemoteStore: Send + Sync + Debug {
    /// The URL without secrets, for messages.
    fn url(&self) -> &str;

    /// What this kind of store does by itself.
    fn abilities(&self) -> StoreAbilities;

    /// Writes a whole object if the key is free. `digest` is of `body` and is given to the store to check.
    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created>;

    /// Writes a whole object over whatever is there: only for the few mutable records (leases, sweeps).
    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()>;

    /// Begins a multipart upload of a file of `size_bytes`, cut as
    /// [`FileParts`](stepvault_core::file_parts::FileParts) cuts it, and returns its id.
    async fn start_upload(&self, key: &str, size_bytes: u64) -> Result<String>;

    /// Sends one part. `digest` is of `body` and is given to the store to check.
    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt>;

    /// Completes an upload from all its parts in order, create-only where the store can, and lets the store check
    /// size and composite checksum where it can. After [`Created::Exists`] or an error the upload may still be
    /// pending, with its parts: abort it when it is of no more use.
    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created>;

    /// Drops an upload and its parts. An upload that is already gone is no error.
    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()>;

    /// Uploads pending under a prefix; empty where the store cannot tell (see [`StoreAbilities`]).
    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>>;

    /// Size, time, version and checksum of an object; `None` when it does not exist.
    async fn head(&self, key: &str) -> Result<Option<ObjectHead>>;

    /// The bytes of a range, as they arrive, in pieces of at most a few hundred KiB; the whole object for `None`.
    /// Ends with an error, never early without one, when fewer bytes come than asked for: `Unreachable` where the
    /// answer broke off, `Damaged` where the object is shorter than the range. An empty range has no bytes.
    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>>;

    /// All objects under a prefix, in any order; pages are fetched as the stream is polled.
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>>;

    /// Makes sure that what was found at these keys stays there: whoever wrote it may have been killed before the write
    /// was durable. What an object store answers with is durable; a directory may show a name that is not on disk yet.
    /// Keys at which nothing stands any more are no error.
    async fn sync(&self, _keys: &[String]) -> Result<()> {
        Ok(())
    }

    /// Deletes objects. Missing ones are no error. On an error some may be gone.
    async fn delete(&self, keys: &[String]) -> Result<()>;

    /// Copies an object inside the store to a free key, without its bytes passing through this machine.
    async fn copy(&self, from: &str, to: &str) -> Result<Created>;

    /// Copies part `index` of an upload inside the store, from the same place of an object of the same size: the bytes
    /// from `start` on, of which `digest` is.
    ///
    /// # Errors
    /// `Damaged` when the object has other bytes there; `Failed` where the store cannot do this, or does not prove
    /// what it copied. Either way the part may be sent afterwards as if it had never been copied.
    async fn copy_part(
        &self,
        from: &str,
        key: &str,
        upload: &str,
        index: u32,
        start: u64,
        digest: &PartDigest,
    ) -> Result<PartReceipt>;
}

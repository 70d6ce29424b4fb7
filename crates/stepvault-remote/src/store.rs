//! The interface between the engine and every kind of store.

use std::fmt::{self, Debug};
use std::ops::Range;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use stepvault_core::digest::{
    ContentDigest, Crc32c, Crc64Nvme, DigestAlgorithm, FileDigest, PartDigest, Sha256Digest, TrustedChecksum,
};
use stepvault_core::manifest::FileEntry;
use stepvault_core::{Error, ErrorKind, Result};

use crate::payload::Payload;

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Key relative to the remote's prefix.
    pub key: String,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Last modification by the store's own clock.
    pub modified: SystemTime,
    /// Entity tag or generation, which changes whenever the object does. `None` where the store has neither.
    pub version: Option<String>,
}

/// The checksum that a store reports for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredChecksum {
    /// SHA-256 of the whole object.
    Sha256(Sha256Digest),
    /// SHA-256 over the SHA-256 digests of its parts (S3 multipart), with the number of parts.
    CompositeSha256 {
        /// The digest.
        digest: Sha256Digest,
        /// The number of parts.
        parts: u32,
    },
    /// CRC-32C of the whole object, in one part or several (GCS, and S3 where its writer chose it).
    Crc32c(Crc32c),
    /// CRC-64/NVME of the whole object, in one part or several (S3).
    Crc64Nvme(Crc64Nvme),
    /// The store has none, or none that stepvault uses: the bytes must be read back.
    None,
}

impl StoredChecksum {
    /// Returns the checksum that S3 keeps of a part, or of an object sent at once.
    pub fn of_part(digest: &PartDigest) -> Self {
        match &digest.content {
            ContentDigest::Sha256(sha256) => Self::Sha256(*sha256),
            ContentDigest::Blake3(_) => digest.crc64nvme.map_or(Self::None, Self::Crc64Nvme),
        }
    }

    /// Returns the checksum that S3 keeps of an object sent in `parts` parts.
    pub fn of_file(digest: &FileDigest, parts: u32) -> Self {
        match &digest.content {
            ContentDigest::Sha256(sha256) => Self::CompositeSha256 { digest: *sha256, parts },
            ContentDigest::Blake3(_) => digest.crc64nvme.map_or(Self::None, Self::Crc64Nvme),
        }
    }

    /// Returns whether this checksum proves that the object holds the file with `digest`, split into `parts`. `None`
    /// when it proves neither.
    pub fn proves(&self, digest: &FileDigest, parts: &[ContentDigest]) -> Option<bool> {
        match self {
            Self::Sha256(stored) => match parts {
                [ContentDigest::Sha256(only)] => Some(stored == only),
                _ => None,
            },
            Self::CompositeSha256 { digest: stored, parts: count } => match &digest.content {
                ContentDigest::Sha256(own) => Some(stored == own && *count as usize == parts.len()),
                ContentDigest::Blake3(_) => None,
            },
            Self::Crc32c(stored) => Some(*stored == digest.crc32c),
            Self::Crc64Nvme(stored) => digest.crc64nvme.map(|own| own == *stored),
            Self::None => None,
        }
    }

    /// Returns whether this checksum proves that the object holds a file of a manifest. `None` when it proves neither.
    pub fn proves_entry(&self, entry: &FileEntry) -> Option<bool> {
        match (entry.digest(), self.of_whole(), entry.trusted_checksum()) {
            (Some(digest), ..) => {
                let parts = entry.digests().map_or(&[][..], |digests| &digests.parts);
                self.proves(&digest, parts)
            }
            (None, Some(TrustedChecksum::Crc32c(found)), Some(TrustedChecksum::Crc32c(recorded))) => {
                Some(found == recorded)
            }
            (None, Some(TrustedChecksum::Crc64Nvme(found)), Some(TrustedChecksum::Crc64Nvme(recorded))) => {
                Some(found == recorded)
            }
            _ => None,
        }
    }

    /// Returns it if it is a checksum of the whole object that can be computed from those of ranges of it. The SHA-256 of an
    /// object cannot.
    pub fn of_whole(&self) -> Option<TrustedChecksum> {
        match self {
            Self::Crc32c(checksum) => Some(TrustedChecksum::Crc32c(*checksum)),
            Self::Crc64Nvme(checksum) => Some(TrustedChecksum::Crc64Nvme(*checksum)),
            Self::Sha256(_) | Self::CompositeSha256 { .. } | Self::None => None,
        }
    }
}

/// An object with its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectHead {
    /// Size, time, version.
    pub info: ObjectInfo,
    /// The store's checksum of its bytes.
    pub checksum: StoredChecksum,
}

/// A part that a store has acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartReceipt {
    /// Index from 0.
    pub index: u32,
    /// The value that completion requires: the part's entity tag, or the store's own handle.
    pub tag: String,
    /// Digest of the sent bytes.
    pub digest: PartDigest,
}

/// A multipart upload that was neither completed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingUpload {
    /// Key relative to the remote's prefix.
    pub key: String,
    /// The store's upload ID.
    pub upload: String,
    /// When it was begun, by the store's clock; `None` where the store does not report it.
    pub initiated: Option<SystemTime>,
}

/// The capabilities of a kind of store. What a particular store enforces is probed, not assumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
// Independent capabilities, each true or false.
#[allow(clippy::struct_excessive_bools)]
pub struct StoreCapabilities {
    /// The store receives a checksum with each object and each part, and rejects bytes that do not match.
    pub checks_checksums: bool,
    /// A create-only write is one request, which the store refuses if the key is taken. Otherwise the store is asked for
    /// the key first, and two writers at the same moment may not notice each other.
    pub creates_atomically: bool,
    /// A completed multipart upload never replaces an existing object.
    pub multipart_is_create_only: bool,
    /// A body is sent block by block, so that it can be read from its source meanwhile. Otherwise it is held as a whole.
    pub streams_bodies: bool,
    /// Of the digests of bytes, only the SHA-256 is sent with them, if they have one: the others may be found while they are
    /// sent.
    pub checks_sha256_alone: bool,
    /// Several objects are deleted by one request.
    pub deletes_in_batches: bool,
    /// Pending multipart uploads can be listed.
    pub lists_pending_uploads: bool,
    /// Objects can be copied inside the store.
    pub copies: bool,
    /// Parts of an upload can be copied from objects. A store that copies objects but not parts copies an object of any
    /// size at once.
    pub copies_parts: bool,
}

/// An attribute that was requested for an object and that the object does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredAttribute {
    /// The key of the setting that requests it.
    pub setting: &'static str,
    /// The requested value.
    pub requested: String,
    /// What the store reports; `None` for nothing.
    pub reported: Option<String>,
}

impl IgnoredAttribute {
    pub(crate) fn new(setting: &'static str, requested: impl Into<String>, reported: Option<&str>) -> Self {
        Self { setting, requested: requested.into(), reported: reported.map(str::to_owned) }
    }
}

impl fmt::Display for IgnoredAttribute {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, requested, reported } = self;
        match reported {
            Some(reported) => {
                write!(out, "{setting} = {requested:?} is ignored: the store reports {reported:?}")
            }
            None => write!(out, "{setting} = {requested:?} is ignored: the store reports none"),
        }
    }
}

/// Outcome of a create-if-absent write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// The object was written; holds its head as the store acknowledged it.
    Written(ObjectHead),
    /// The key was taken; nothing was written. The caller must determine whether the object has the same bytes: the
    /// result is the same after a lost answer.
    Exists,
}

impl Created {
    /// Returns the object that was written, or `None` when the key was taken.
    pub fn written(&self) -> Option<ObjectInfo> {
        match self {
            Self::Written(head) => Some(head.info.clone()),
            Self::Exists => None,
        }
    }
}

/// How soon an archived object is to be readable. The sooner, the more the store charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThawSpeed {
    /// Within minutes, where the class has it.
    Expedited,
    /// Within hours.
    Standard,
    /// Within half a day or two days, at the lowest price.
    Bulk,
}

impl ThawSpeed {
    /// Returns its name, as in options and requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expedited => "expedited",
            Self::Standard => "standard",
            Self::Bulk => "bulk",
        }
    }

    /// Returns how long it takes from a class of S3, by its documentation.
    pub fn expected(self, class: &str) -> &'static str {
        match (self, class) {
            (Self::Expedited, _) => "1 to 5 minutes",
            (Self::Standard, "DEEP_ARCHIVE") => "up to 12 hours",
            (Self::Standard, _) => "3 to 5 hours",
            (Self::Bulk, "DEEP_ARCHIVE") => "up to 48 hours",
            (Self::Bulk, _) => "5 to 12 hours",
        }
    }
}

/// Whether an object can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Thawed {
    /// It can be read.
    Readable,
    /// It was requested from the archive, now or before.
    Pending {
        /// Its storage class.
        class: String,
    },
}

/// The bytes of an object, or of a range of it, in pieces.
pub type BodyStream = BoxStream<'static, Result<Bytes>>;

/// The measured limit of concurrent requests to a store.
pub trait ConcurrencyLimit {
    /// Returns how many are permitted now.
    fn current(&self) -> usize;

    /// Returns how many are permitted now if that was measured.
    fn measured(&self) -> Option<usize>;

    /// Starts with as many as an earlier process measured, unless this one has measured it since.
    fn start_at(&self, limit: usize);
}

/// Where the directory of a new archive may be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchivePlace {
    /// In any directory.
    Anywhere,
    /// Beside other files. A directory without any may be where a filesystem with the archive should be mounted.
    BesideFiles,
}

/// One object store under one URL. Deliberately narrow: only what implementations must provide.
///
/// # Contract
/// - Keys are relative to the URL's prefix, UTF-8, without leading slash, and mean the same bytes in every store.
/// - Every method is one logical request: it does no retries of its own (the retry decorator adds them), and every wait
///   is bounded: implementations fail with [`stepvault_core::ErrorKind::Unreachable`] when no byte has moved for the
///   configured stall time.
/// - Errors: `NotFound` when the object or upload does not exist; `Denied` for credentials or permissions; `Conflict`
///   when a precondition failed; `Damaged` when the store rejected the bytes for their checksum; `Unreachable` for
///   transport failures, throttling and 5xx; `Usage` when the bucket does not exist or the configuration does not fit
///   it; `Failed` otherwise. [`is_transient`](stepvault_core::Error::is_transient) marks an error that may pass: every
///   `Unreachable`, and others that are marked explicitly.
/// - A write is acknowledged only when it is durable by the store's own guarantee.
/// - Dropping a future cancels its request; an upload cancelled this way is either absent or complete.
#[async_trait]
pub trait RemoteStore: Send + Sync + Debug {
    /// Returns the URL without secrets, for messages.
    fn url(&self) -> &str;

    /// Returns the capabilities of this kind of store.
    fn capabilities(&self) -> StoreCapabilities;

    /// Returns how many concurrent requests the store is worth; `None` where their number is not limited.
    fn concurrency_limit(&self) -> Option<&dyn ConcurrencyLimit> {
        None
    }

    /// Prepares the store for the first object; for callers that know that it has never held any of ours. Creates a
    /// directory whose parent exists, and returns whether it did. A bucket must exist already.
    ///
    /// # Errors
    /// `Unreachable` when the parent of the directory does not exist, or is not what `place` asks for.
    async fn begin(&self, _place: ArchivePlace) -> Result<bool> {
        Ok(false)
    }

    /// Writes a whole object if the key is unused. `digest` is the digest of `body`, for the store to check.
    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created>;

    /// Writes a whole object and overwrites an existing one. Only for the few mutable records (leases, gc records).
    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()>;

    /// Begins a multipart upload of a file of `size_bytes`, split as defined by
    /// [`FileParts`](stepvault_core::file_parts::FileParts), and returns its upload ID. All its parts have digests by
    /// `algorithm`.
    async fn start_upload(&self, key: &str, size_bytes: u64, algorithm: DigestAlgorithm) -> Result<String>;

    /// Sends one part. `digest` is the digest of `body`, for the store to check.
    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt>;

    /// Completes an upload from all its parts in order, create-only where the store supports it, and lets the store
    /// check size and composite checksum where it can. After [`Created::Exists`] or an error the upload may still be
    /// pending, with its parts: abort it when it is no longer needed.
    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created>;

    /// Aborts an upload and deletes its parts. An upload that no longer exists is not an error.
    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()>;

    /// Returns the pending uploads under a prefix; empty where the store cannot list them (see [`StoreCapabilities`]).
    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>>;

    /// Returns size, time, version and checksum of an object, or `None` when it does not exist.
    async fn head(&self, key: &str) -> Result<Option<ObjectHead>>;

    /// Returns the attributes requested for new objects (encryption, storage class, tags, owner of the bucket) that the
    /// object at `key`, written by this store, does not have as the store reports it. Sends no request where none is
    /// requested.
    async fn ignored_attributes(&self, key: &str) -> Result<Vec<IgnoredAttribute>> {
        let _ = key;
        Ok(Vec::new())
    }

    /// Reads the bytes of a range as they arrive, in pieces of at most a few hundred KiB; the whole object for `None`.
    /// The stream never ends early without an error: `Unreachable` where the answer ended early, `Damaged` where the
    /// object is shorter than the range. An empty range has no bytes.
    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BodyStream>;

    /// Requests that an archived object becomes readable for some days, unless it is, or was requested before.
    ///
    /// # Errors
    /// `Usage` where this kind of store makes no archived object readable by a request.
    async fn thaw(&self, key: &str, _speed: ThawSpeed) -> Result<Thawed> {
        Err(Error::new(ErrorKind::Usage, "cannot request the object from the archive")
            .on(format!("{}/{key}", self.url()))
            .because("only S3 makes an archived object readable by a request")
            .hint("change its class or tier with the provider's own tools, and restore when that is done"))
    }

    /// Lists all objects under a prefix, in any order; pages are fetched as the stream is polled.
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>>;

    /// Makes the objects at these keys durable: their writer may have been killed before they were. Whatever an object
    /// store returns is durable, but a directory may show a name that is not on disk yet. Missing objects are not an
    /// error.
    async fn sync(&self, _keys: &[String]) -> Result<()> {
        Ok(())
    }

    /// Deletes objects. Missing ones are not an error. After an error some may be deleted.
    async fn delete(&self, keys: &[String]) -> Result<()>;

    /// Copies an object inside the store to an unused key; its bytes do not pass through this machine.
    async fn copy(&self, from: &str, to: &str) -> Result<Created>;

    /// Copies part `index` of an upload inside the store, from the same range of an object of the same size: the bytes
    /// from `start` on, whose digest is `digest`. A store that returns no checksum of a copied part has not proved it: what
    /// the completed object holds must be checked as for any other.
    ///
    /// # Errors
    /// `Damaged` when the object has different bytes there; `Failed` where the store does not support this operation.
    /// Either way the part may then be sent as if it had never been copied.
    async fn copy_part(
        &self,
        from: &str,
        key: &str,
        upload: &str,
        index: u32,
        start: u64,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let _ = (from, upload, index, start, digest);
        Err(Error::new(ErrorKind::Failed, "cannot copy a part")
            .on(format!("{}/{key}", self.url()))
            .because("this kind of store copies whole objects only"))
    }
}

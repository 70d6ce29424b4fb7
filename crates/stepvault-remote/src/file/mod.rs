//! `file:///directory`: a directory (on a disk or a network mount) as an object store, with durable writes.
//!
//! An object is a regular file named by its key. It gets its name only when all its bytes are on disk, and only if the
//! name is unused; unfinished files have reserved names that are never listed. The store keeps no checksum: the engine
//! reads back and hashes what was written before it counts.

mod beneath;
mod blocking;
mod copying;
mod deleting;
mod layout;
mod listing;
mod placing;
mod reading;
mod uploads;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::remote_settings::{RemoteSettings, Scheme};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable::{self, CreateOutcome};

use self::beneath::another_root;
use self::blocking::Blocking;
use self::layout::Layout;
use self::uploads::Upload;
use crate::causes::if_found;
use crate::options::{check_scheme, refuse_options};
use crate::payload::Payload;
use crate::store::{
    BodyStream, Created, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore, StoreCapabilities,
    StoredChecksum,
};

/// Error of a write that succeeded but whose object is missing.
const REMOVED: &str = "it was removed right after it was written";

/// Opens `file:///directory`. Only [`RemoteStore::begin`] creates the directory; its parent must exist. While the
/// directory does not exist, every other request reports the store as unreachable: its filesystem may not be mounted.
///
/// # Errors
/// `Usage` for another scheme or an option that a directory does not support.
pub fn open(settings: &RemoteSettings) -> Result<Arc<dyn RemoteStore>> {
    check_scheme(settings, Scheme::File)?;
    refuse_options(settings)?;
    let stall_timeout = settings.stall_timeout();
    Ok(Arc::new(FileStore {
        url: settings.url.to_string(),
        layout: Layout { root: PathBuf::from(&settings.url.prefix) },
        blocking: Blocking { stall_timeout },
    }))
}

#[derive(Debug)]
struct FileStore {
    url: String,
    layout: Layout,
    blocking: Blocking,
}

impl FileStore {
    /// Runs `work` on copies of the layout and the key, on a thread where it may block.
    async fn run<T: Send + 'static>(
        &self,
        what: &str,
        key: &str,
        size_bytes: u64,
        work: impl FnOnce(&Layout, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (layout, path) = (self.layout.clone(), self.layout.root.join(key));
        let (operation, key) = (what.to_owned(), key.to_owned());
        let watched = move || {
            let root = layout.root_identity(&operation)?;
            let outcome = work(&layout, &key)?;
            if layout.root_identity(&operation)? != root {
                return Err(another_root(&operation, &layout.root));
            }
            Ok(outcome)
        };
        self.blocking.run(what, &path, size_bytes, watched).await
    }

    /// Like [`Self::run`], for work that only reads.
    async fn read_by<T: Send + 'static>(
        &self,
        what: &str,
        key: &str,
        work: impl FnOnce(&Layout, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (layout, path) = (self.layout.clone(), self.layout.root.join(key));
        let (operation, key) = (what.to_owned(), key.to_owned());
        let checked = move || {
            layout.directory(&operation, "")?;
            work(&layout, &key)
        };
        self.blocking.read(what, &path, 0, checked).await
    }

    fn upload(&self, upload: &str) -> Result<Upload> {
        Upload::parse(&self.layout, upload)
    }

    /// Returns the result of a write at `key`, of `size_bytes` where that is known.
    async fn created(
        &self,
        what: &str,
        key: &str,
        outcome: CreateOutcome,
        size_bytes: Option<u64>,
    ) -> Result<Created> {
        if outcome == CreateOutcome::Exists {
            return Ok(Created::Exists);
        }
        let fault =
            |kind, why: String| Error::new(kind, what).on(self.layout.root.join(key).display()).because(why);
        let head = self.head(key).await?;
        // Not retried here: the caller must check the remote's marker first.
        let head = head.ok_or_else(|| fault(ErrorKind::Unreachable, REMOVED.to_owned()).lasting())?;
        let found_bytes = head.info.size_bytes;
        match size_bytes {
            Some(size_bytes) if size_bytes != found_bytes => {
                let why = format!("{size_bytes} bytes were written and the file has {found_bytes}");
                Err(fault(ErrorKind::Damaged, why))
            }
            _ => Ok(Created::Written(head)),
        }
    }
}

#[async_trait]
impl RemoteStore for FileStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            checks_checksums: false,
            creates_atomically: true,
            multipart_is_create_only: true,
            streams_bodies: false,
            deletes_in_batches: false,
            lists_pending_uploads: true,
            copies: true,
            copies_parts: true,
        }
    }

    async fn begin(&self) -> Result<()> {
        let layout = self.layout.clone();
        self.blocking
            .run("cannot begin an archive", &self.layout.root, 0, move || placing::create_root(&layout))
            .await
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        const WHAT: &str = "cannot write the object";
        let work = move |layout: &Layout, key: &str| {
            let blocks = body.held(WHAT, key)?;
            placing::in_directory_of(WHAT, layout, key, |path| durable::create_new_of(path, &blocks))
        };
        let outcome = self.run(WHAT, key, digest.size_bytes, work).await?;
        self.created(WHAT, key, outcome, Some(digest.size_bytes)).await
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        const WHAT: &str = "cannot replace the object";
        let work = move |layout: &Layout, key: &str| {
            placing::in_directory_of(WHAT, layout, key, |path| durable::replace(path, &body))
        };
        self.run(WHAT, key, digest.size_bytes, work).await
    }

    async fn start_upload(&self, key: &str, size_bytes: u64, _algorithm: DigestAlgorithm) -> Result<String> {
        let start = move |layout: &Layout, key: &str| Upload::start(layout, key, size_bytes);
        self.run("cannot begin an upload", key, 0, start).await
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let (upload, digest) = (self.upload(upload)?, *digest);
        let what = format!("cannot upload part {}", index + 1);
        let write = move |_: &Layout, _: &str| upload.write_part(index, &body, &digest);
        self.run(&what, key, digest.size_bytes, write).await
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        const WHAT: &str = "cannot complete the upload";
        let (upload, parts, size_bytes) = (self.upload(upload)?, parts.to_vec(), digest.size_bytes);
        let work = move |layout: &Layout, key: &str| upload.complete(layout, key, &parts, size_bytes);
        // Each part was synced when it was written; only the rename is left to wait for.
        let outcome = self.run(WHAT, key, 0, work).await?;
        self.created(WHAT, key, outcome, Some(size_bytes)).await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        let Some(upload) = if_found(self.upload(upload))? else {
            return Ok(());
        };
        let abort = move |_: &Layout, _: &str| upload.abort();
        self.run("cannot abort the upload", key, 0, abort).await
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        let list = |layout: &Layout, _: &str| uploads::pending(layout);
        let listed = self.read_by("cannot list the pending uploads", "", list).await?;
        Ok(crate::listed::uploads(prefix, listed))
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        let info = self.read_by("cannot read the object's metadata", key, reading::info);
        Ok(info.await?.map(|info| ObjectHead { info, checksum: StoredChecksum::None }))
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BodyStream> {
        reading::read(&self.layout, self.blocking, key, range).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        crate::listed::objects(prefix, listing::list(&self.layout, self.blocking, prefix))
    }

    async fn sync(&self, keys: &[String]) -> Result<()> {
        let owned = keys.to_vec();
        let sync = move |layout: &Layout, _: &str| placing::sync_names(layout, &owned);
        self.run("cannot sync the objects", "", 0, sync).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        let owned = keys.to_vec();
        // Each key may wait for the disk once, so the time limit counts a few KiB for each.
        let size_bytes = keys.len() as u64 * (64 << 10);
        let delete = move |layout: &Layout, _: &str| deleting::delete(layout, &owned);
        self.run("cannot delete the objects", "", size_bytes, delete).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        let outcome = copying::copy(&self.layout, self.blocking, from, to).await?;
        self.created(copying::WHAT, to, outcome, None).await
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
        let (upload, from, digest) = (self.upload(upload)?, from.to_owned(), *digest);
        let work =
            move |layout: &Layout, _: &str| copying::copy_part(layout, &from, &upload, index, start, &digest);
        self.run(copying::WHAT, key, digest.size_bytes, work).await
    }
}

//! `file:///directory`: a directory (on a disk or a network mount) as an object store, with durable writes.
//!
//! An object is a regular file named by its key. It gets its name only when all its bytes are on disk, and only if the
//! name is unused; unfinished files have reserved names that are never listed. The store keeps no checksum: the engine
//! reads back and hashes what was written before it counts.

mod layout;
mod placing;
mod reading;
mod uploads;

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::remote_settings::{RemoteSettings, Scheme};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable::{self, CreateOutcome};
use stepvault_local::errors;

use self::layout::{Blocking, Layout, TEMPORARY_PREFIX, another_root, parent};
use self::uploads::Upload;
use crate::causes::if_found;
use crate::options::{check_scheme, refuse_options};
use crate::payload::Payload;
use crate::store::{
    ArchivePlace, BodyStream, Created, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore,
    StoreCapabilities, StoredChecksum,
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

/// Returns whether the remote is a directory that [`ArchivePlace::BesideFiles`] allows to create: only its last component
/// is missing, and other files are beside it. Blocks.
pub fn will_be_begun(settings: &RemoteSettings) -> bool {
    let root = Path::new(&settings.url.prefix);
    settings.url.scheme == Scheme::File
        && matches!(root.try_exists(), Ok(false))
        && placing::holds_files(parent(root))
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
        let fault = |kind, why: String| Error::at(kind, what, &self.layout.root.join(key)).because(why);
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
            creates_atomically: true,
            multipart_is_create_only: true,
            lists_pending_uploads: true,
            copies: true,
            copies_parts: true,
            ..StoreCapabilities::default()
        }
    }

    async fn begin(&self, place: ArchivePlace) -> Result<bool> {
        let layout = self.layout.clone();
        self.blocking
            .run("cannot begin an archive", &self.layout.root, 0, move || {
                placing::create_root(&layout, place)
            })
            .await
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        const WHAT: &str = "cannot write the object";
        let work = move |layout: &Layout, key: &str| {
            let blocks = body.held(WHAT, key)?;
            placing::in_directory_of(WHAT, layout, key, |path| {
                durable::create_new_with(path, |file| {
                    blocks.iter().try_for_each(|block| file.write_all(block))
                })
            })
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
        let (upload, digest) = (Upload::parse(&self.layout, upload)?, *digest);
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
        let (upload, parts, size_bytes) =
            (Upload::parse(&self.layout, upload)?, parts.to_vec(), digest.size_bytes);
        let work = move |layout: &Layout, key: &str| upload.complete(layout, key, &parts, size_bytes);
        // Each part was synced when it was written; only the rename is left to wait for.
        let outcome = self.run(WHAT, key, 0, work).await?;
        self.created(WHAT, key, outcome, Some(size_bytes)).await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        let Some(upload) = if_found(Upload::parse(&self.layout, upload))? else {
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
        crate::listed::objects(prefix, reading::list(&self.layout, self.blocking, prefix))
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
        let delete = move |layout: &Layout, _: &str| delete(layout, &owned);
        self.run("cannot delete the objects", "", size_bytes, delete).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        let outcome = placing::copy(&self.layout, self.blocking, from, to).await?;
        self.created(placing::CANNOT_COPY, to, outcome, None).await
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
        let (upload, from, digest) = (Upload::parse(&self.layout, upload)?, from.to_owned(), *digest);
        let work =
            move |layout: &Layout, _: &str| placing::copy_part(layout, &from, &upload, index, start, &digest);
        self.run(placing::CANNOT_COPY, key, digest.size_bytes, work).await
    }
}

const WHAT: &str = "cannot delete the object";
/// An older temporary file belongs to no write in progress.
const STALE: Duration = Duration::from_hours(24);

/// Deletes `keys`; missing ones are ignored. The deletion is durable when this returns: callers that delete a commit
/// before its data rely on that order.
fn delete(layout: &Layout, keys: &[String]) -> Result<()> {
    let mut emptied = BTreeSet::new();
    let mut looked_at = BTreeSet::new();
    let mut failed = None;
    for key in keys {
        let path = layout.path(key)?;
        looked_at.insert(parent(&path).to_path_buf());
        match remove(layout, key, &path) {
            // Only where something was removed: removing a directory used by a writer makes that writer try again.
            Ok(true) => {
                emptied.insert(parent(&path).to_path_buf());
            }
            Ok(false) => {}
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    for directory in emptied {
        looked_at.insert(remove_emptied(layout, directory));
    }
    // Also where the object was already gone: the process that removed it may have been killed before its sync.
    let existing: BTreeSet<PathBuf> =
        looked_at.iter().map(|directory| first_existing(layout, directory)).collect();
    for directory in existing.iter().filter(|directory| directory.is_dir()) {
        if_found(durable::fsync_directory(directory))?;
    }
    failed.map_or(Ok(()), Err)
}

/// Removes one object. Returns false when it did not exist.
fn remove(layout: &Layout, key: &str, path: &Path) -> Result<bool> {
    let (directories, _) = key.rsplit_once('/').unwrap_or(("", key));
    if layout.directory(WHAT, directories)?.is_none() {
        return Ok(false);
    }
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // A directory is not an object.
        Err(_) if path.is_dir() && !path.is_symlink() => Ok(false),
        Err(error) => Err(errors::io(WHAT, path, error)),
    }
}

/// Removes `directory` and its ancestors as long as they are empty; best effort. Returns the deepest one that remains.
fn remove_emptied(layout: &Layout, mut directory: PathBuf) -> PathBuf {
    while directory != layout.root && directory.starts_with(&layout.root) {
        let removed = std::fs::remove_dir(&directory).or_else(|error| {
            // The kernel decides whether it is empty; only leftovers of crashed writes are removed first.
            if error.kind() == io::ErrorKind::DirectoryNotEmpty && remove_stale(&directory) {
                return std::fs::remove_dir(&directory);
            }
            Err(error)
        });
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return directory,
            _ => {}
        }
        directory.pop();
    }
    directory
}

/// Removes temporary files of writes that crashed long ago if nothing else is there. Returns false when something
/// remains.
fn remove_stale(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return false;
    };
    let mut stale = Vec::new();
    for entry in entries.take(1000) {
        let is_stale = |entry: &std::fs::DirEntry| {
            let named = entry.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX);
            let old =
                entry.metadata().ok().filter(std::fs::Metadata::is_file)?.modified().ok()?.elapsed().ok()?
                    > STALE;
            Some(named && old)
        };
        match entry {
            Ok(entry) if is_stale(&entry) == Some(true) => stale.push(entry.path()),
            _ => return false,
        }
    }
    stale.iter().all(|path| std::fs::remove_file(path).is_ok())
}

/// Returns `directory` or its deepest existing ancestor: syncing that directory makes the removal of a name durable.
fn first_existing(layout: &Layout, directory: &Path) -> PathBuf {
    let mut directory = directory;
    while !directory.is_dir() && directory != layout.root && directory.starts_with(&layout.root) {
        directory = parent(directory);
    }
    directory.to_path_buf()
}

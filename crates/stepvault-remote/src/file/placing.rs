//! Renames finished temporary files to their final names, durably and only if the name is unused; copies objects.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::digest::{ContentDigest, ContentHasher, DigestAlgorithm, PartDigest};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable::{self, CreateOutcome};
use stepvault_local::errors::{self, IoAt as _};

use super::layout::{Blocking, Layout, another_root, no_root, parent, temporary_name};
use super::uploads::Upload;
use crate::causes::if_found;
use crate::store::{ArchivePlace, PartReceipt};

/// How often a directory may be removed by another process between its creation and its use.
const MAXIMUM_ATTEMPTS: u32 = 100;

/// Syncs `file` at `temporary`, and renames it to `target` unless that name is taken.
pub(super) fn place(
    what: &str,
    layout: &Layout,
    file: &File,
    temporary: &Path,
    key: &str,
) -> Result<CreateOutcome> {
    file.sync_all().at(what, temporary)?;
    in_directory_of(what, layout, key, |target| {
        let outcome = durable::rename_new(what, temporary, target)?;
        durable::fsync_directory(parent(target))?;
        Ok(outcome)
    })
}

/// Returns the result of a write at a key that is taken, after making the existing name durable: its writer may have
/// been killed before it was, and the caller relies on it.
pub(super) fn taken(layout: &Layout, key: &str) -> Result<CreateOutcome> {
    match durable::fsync_directory(parent(&layout.path(key)?)) {
        Ok(()) => Ok(CreateOutcome::Exists),
        // Removed since, with its directory.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(error.with_kind(ErrorKind::Unreachable).lasting())
        }
        Err(error) => Err(error),
    }
}

/// Syncs the names of the files at these keys. Missing files are ignored.
pub(super) fn sync_names(layout: &Layout, keys: &[String]) -> Result<()> {
    let mut directories = BTreeSet::new();
    for key in keys {
        let path = layout.path(key)?;
        if directories.insert(parent(&path).to_path_buf()) {
            if_found(durable::fsync_name_found(&path))?;
        }
    }
    Ok(())
}

/// Creates the directories above `key`, then runs `write`, which creates something there, on its path.
pub(super) fn in_directory_of<T>(
    what: &str,
    layout: &Layout,
    key: &str,
    mut write: impl FnMut(&Path) -> Result<T>,
) -> Result<T> {
    let target = layout.path(key)?;
    let directory = parent(&target);
    let root = layout.root_identity(what)?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        if layout.root_identity(what)? != root {
            return Err(another_root(what, &layout.root));
        }
        // Checked before and after: existing directories may be links, and new ones may have been replaced by links.
        let (directories, _) = key.rsplit_once('/').unwrap_or(("", key));
        layout.directory(what, directories)?;
        let outcome =
            durable::create_directories_below(&layout.root, directory).and_then(|()| write(&target));
        match outcome {
            // Another process that deletes objects removes emptied directories.
            Err(error) if error.kind() == ErrorKind::NotFound && attempts < MAXIMUM_ATTEMPTS => {}
            // This call does not require anything to exist.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(error.with_kind(ErrorKind::Unreachable).lasting());
            }
            outcome => return outcome,
        }
    }
}

/// Creates the root when missing, but none of its ancestors: a missing parent means an unmounted filesystem or a typing
/// error. Returns whether it was created.
pub(super) fn create_root(layout: &Layout, place: ArchivePlace) -> Result<bool> {
    const WHAT: &str = "cannot begin an archive";
    let root = &layout.root;
    let above = parent(root);
    match std::fs::metadata(root) {
        Ok(metadata) if metadata.is_dir() => Ok(false),
        Ok(_) => Err(Error::at(ErrorKind::Failed, WHAT, root).because("it is not a directory")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(errors::io(WHAT, root, error)),
        Err(_) if place == ArchivePlace::BesideFiles && above.is_dir() && !holds_files(above) => {
            Err(no_root(WHAT, root))
        }
        Err(_) => match durable::create_directories_below(above, root) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Error::at(ErrorKind::Unreachable, WHAT, root)
                    .because(format!("its parent directory {} does not exist", above.display()))
                    .hint("create or mount it, or correct the remote's URL")
                    .lasting())
            }
            created => created.map(|()| true),
        },
    }
}

/// Returns whether a directory exists and is not empty. A mount point without its filesystem is empty.
pub(super) fn holds_files(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}

pub(super) const CANNOT_COPY: &str = "cannot copy the object";
/// Bytes copied in one call. The copy can be cancelled between calls.
const CHUNK_BYTES: u64 = 64 << 20;
/// Bytes hashed at once.
const SLICE_BYTES: usize = 256 << 10;

/// An unfinished file that is removed unless it is placed.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Fails when the file has been placed already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Copies `from` to the unused key `to`.
///
/// Copies inside the directory, through the file system where it can share blocks. Never by hard link, so that editing
/// one file in place does not change another.
pub(super) async fn copy(layout: &Layout, blocking: Blocking, from: &str, to: &str) -> Result<CreateOutcome> {
    let target = layout.path(to)?;
    let begin = {
        let (layout, from, to) = (layout.clone(), from.to_owned(), to.to_owned());
        move || begin(&layout, &from, &to)
    };
    let Some((source, temporary, size_bytes)) = blocking.run(CANNOT_COPY, &target, 0, begin).await? else {
        return Ok(CreateOutcome::Exists);
    };
    let (source, temporary) = (Arc::new(source), Arc::new(temporary));
    let mut copied_bytes = 0;
    while copied_bytes < size_bytes {
        let wanted = CHUNK_BYTES.min(size_bytes - copied_bytes);
        let (source, temporary) = (Arc::clone(&source), Arc::clone(&temporary));
        let chunk = move || copy_chunk(&source, &temporary, wanted);
        copied_bytes += blocking.run(CANNOT_COPY, &target, wanted, chunk).await?;
    }
    let (layout, to) = (layout.clone(), to.to_owned());
    blocking
        .run(CANNOT_COPY, &target, 0, move || {
            place(CANNOT_COPY, &layout, &temporary.file, &temporary.path, &to)
        })
        .await
}

/// Opens source and target. Returns `None` when the target key is taken.
fn begin(layout: &Layout, from: &str, to: &str) -> Result<Option<(File, Temporary, u64)>> {
    let (source, size_bytes) = layout.open_existing(CANNOT_COPY, from)?;
    if layout.open(CANNOT_COPY, to)?.is_some() {
        taken(layout, to)?;
        return Ok(None);
    }
    let path = parent(&layout.path(to)?).join(temporary_name());
    let file = in_directory_of(CANNOT_COPY, layout, to, |_| create(&path))?;
    Ok(Some((source, Temporary { path, file }, size_bytes)))
}

fn create(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).at(CANNOT_COPY, path)
}

/// Continues from the current positions of both files; the standard library lets the kernel copy.
fn copy_chunk(source: &File, temporary: &Temporary, wanted_bytes: u64) -> Result<u64> {
    let copied = io::copy(&mut source.take(wanted_bytes), &mut &temporary.file);
    match copied.at(CANNOT_COPY, &temporary.path)? {
        0 => Err(Error::at(ErrorKind::Damaged, CANNOT_COPY, &temporary.path)
            .because("its source was truncated while it was copied")),
        copied => Ok(copied),
    }
}

/// Copies part `index` of an upload from the same range of an object and hashes the copied bytes, because a directory
/// stores no checksum that would prove them.
pub(super) fn copy_part(
    layout: &Layout,
    from: &str,
    upload: &Upload,
    index: u32,
    start: u64,
    digest: &PartDigest,
) -> Result<PartReceipt> {
    let source_path = layout.path(from)?;
    let (target, range) = (upload.open(CANNOT_COPY)?, upload.parts.range(index));
    if range != (start..start.saturating_add(digest.size_bytes)) {
        return Err(Error::at(ErrorKind::Failed, CANNOT_COPY, &source_path)
            .because(format!("part {} of the upload has different bounds", index + 1)));
    }
    let (mut source, _) = layout.open_existing(CANNOT_COPY, from)?;
    source.seek(SeekFrom::Start(start)).at(CANNOT_COPY, &source_path)?;
    (&target).seek(SeekFrom::Start(start)).at(CANNOT_COPY, &source_path)?;
    // The digest reveals missing bytes.
    io::copy(&mut (&source).take(digest.size_bytes), &mut &target).at(CANNOT_COPY, &source_path)?;
    target.sync_data().at(CANNOT_COPY, &source_path)?;
    let found = content_of(&target, range, digest.content.algorithm()).at(CANNOT_COPY, &source_path)?;
    if found != digest.content {
        return Err(Error::at(ErrorKind::Damaged, CANNOT_COPY, &source_path)
            .because(format!("part {} of it has different content than expected", index + 1)));
    }
    Ok(PartReceipt { index, tag: digest.crc32c.to_string(), digest: *digest })
}

fn content_of(file: &File, range: Range<u64>, algorithm: DigestAlgorithm) -> io::Result<ContentDigest> {
    let mut hasher = ContentHasher::new(algorithm);
    let mut slice = vec![0; SLICE_BYTES];
    let mut position = range.start;
    while position < range.end {
        let length = usize::try_from(range.end - position).map_or(SLICE_BYTES, |rest| rest.min(SLICE_BYTES));
        file.read_exact_at(&mut slice[..length], position)?;
        hasher.update(&slice[..length]);
        position += length as u64;
    }
    Ok(hasher.finish())
}

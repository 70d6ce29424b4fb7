//! Copies inside the directory, through the file system where it can share blocks. Never by hard link, so that editing
//! one file in place does not change another.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::digest::{ContentDigest, ContentHasher, DigestAlgorithm, PartDigest};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable::CreateOutcome;
use stepvault_local::errors;

use super::blocking::Blocking;
use super::layout::{Layout, parent, temporary_name};
use super::placing::{in_directory_of, place, taken};
use super::uploads::Upload;
use crate::store::PartReceipt;

pub(super) const WHAT: &str = "cannot copy the object";
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
pub(super) async fn copy(layout: &Layout, blocking: Blocking, from: &str, to: &str) -> Result<CreateOutcome> {
    let target = layout.path(to)?;
    let begin = {
        let (layout, from, to) = (layout.clone(), from.to_owned(), to.to_owned());
        move || begin(&layout, &from, &to)
    };
    let Some((source, temporary, size_bytes)) = blocking.run(WHAT, &target, 0, begin).await? else {
        return Ok(CreateOutcome::Exists);
    };
    let (source, temporary) = (Arc::new(source), Arc::new(temporary));
    let mut copied_bytes = 0;
    while copied_bytes < size_bytes {
        let wanted = CHUNK_BYTES.min(size_bytes - copied_bytes);
        let (source, temporary) = (Arc::clone(&source), Arc::clone(&temporary));
        let chunk = move || copy_chunk(&source, &temporary, wanted);
        copied_bytes += blocking.run(WHAT, &target, wanted, chunk).await?;
    }
    let (layout, to) = (layout.clone(), to.to_owned());
    blocking.run(WHAT, &target, 0, move || place(WHAT, &layout, &temporary.file, &temporary.path, &to)).await
}

/// Opens source and target. Returns `None` when the target key is taken.
fn begin(layout: &Layout, from: &str, to: &str) -> Result<Option<(File, Temporary, u64)>> {
    let (source, size_bytes) = layout.open_existing(WHAT, from)?;
    if layout.open(WHAT, to)?.is_some() {
        taken(layout, to)?;
        return Ok(None);
    }
    let path = parent(&layout.path(to)?).join(temporary_name());
    let file = in_directory_of(WHAT, layout, to, |_| create(&path))?;
    Ok(Some((source, Temporary { path, file }, size_bytes)))
}

fn create(path: &Path) -> Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| errors::io(WHAT, path, error))
}

/// Continues from the current positions of both files; the standard library lets the kernel copy.
fn copy_chunk(source: &File, temporary: &Temporary, wanted_bytes: u64) -> Result<u64> {
    let copied = io::copy(&mut source.take(wanted_bytes), &mut &temporary.file);
    match copied.map_err(|error| errors::io(WHAT, &temporary.path, error))? {
        0 => Err(Error::new(ErrorKind::Damaged, WHAT)
            .on(temporary.path.display())
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
    let (target, range) = upload.open_part(WHAT, index)?;
    if range != (start..start.saturating_add(digest.size_bytes)) {
        return Err(Error::new(ErrorKind::Failed, WHAT)
            .on(source_path.display())
            .because(format!("part {} of the upload has different bounds", index + 1)));
    }
    let (mut source, _) = layout.open_existing(WHAT, from)?;
    let io_fault = |error| errors::io(WHAT, &source_path, error);
    source.seek(SeekFrom::Start(start)).map_err(io_fault)?;
    (&target).seek(SeekFrom::Start(start)).map_err(io_fault)?;
    // The digest reveals missing bytes.
    io::copy(&mut (&source).take(digest.size_bytes), &mut &target).map_err(io_fault)?;
    target.sync_data().map_err(io_fault)?;
    let found = content_of(&target, range, digest.content.algorithm()).map_err(io_fault)?;
    if found != digest.content {
        return Err(Error::new(ErrorKind::Damaged, WHAT)
            .on(source_path.display())
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

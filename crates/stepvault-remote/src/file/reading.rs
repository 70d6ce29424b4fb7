//! Metadata and content of objects that are files.

use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::errors;

use super::blocking::Blocking;
use super::layout::Layout;
use crate::pieces::{MAXIMUM_PIECE_BYTES, shorter_than_asked};
use crate::store::{BodyStream, ObjectInfo};

const WHAT: &str = "cannot read the object";
/// Bytes read at once and returned in pieces, which saves thread switches.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// Converts file metadata to the object's metadata.
pub(super) fn info_of(key: &str, metadata: &Metadata) -> ObjectInfo {
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let version =
        format!("{:x}-{}.{:09}-{}", metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len());
    ObjectInfo { key: key.to_owned(), size_bytes: metadata.len(), modified, version: Some(version) }
}

/// Returns the metadata of an object, or `None` when it does not exist.
pub(super) fn info(layout: &Layout, key: &str) -> Result<Option<ObjectInfo>> {
    const WHAT: &str = "cannot read the object's metadata";
    let Some(file) = layout.open(WHAT, key)? else {
        return Ok(None);
    };
    let metadata = file.metadata().map_err(|error| errors::io(WHAT, &layout.root.join(key), error))?;
    Ok(Some(info_of(key, &metadata)))
}

struct Reader {
    file: Arc<File>,
    path: PathBuf,
    blocking: Blocking,
    rest: Range<u64>,
    pending: Bytes,
}

/// Reads a range. All bytes come from the file opened first, even if its name changes meanwhile.
pub(super) async fn read(
    layout: &Layout,
    blocking: Blocking,
    key: &str,
    range: Option<Range<u64>>,
) -> Result<BodyStream> {
    let path = layout.path(key)?;
    let opened = {
        let (layout, key) = (layout.clone(), key.to_owned());
        move || layout.open_existing(WHAT, &key)
    };
    let (file, size_bytes) = blocking.read(WHAT, &path, 0, opened).await?;
    let range = range.unwrap_or(0..size_bytes);
    if range.end > size_bytes {
        return Err(shorter_than_asked(&path.display().to_string(), size_bytes, &range));
    }
    let reader = Reader { file: Arc::new(file), path, blocking, rest: range, pending: Bytes::new() };
    Ok(stream::try_unfold(reader, |mut reader| async move {
        if reader.pending.is_empty() && !reader.rest.is_empty() {
            reader.fetch().await?;
        }
        if reader.pending.is_empty() {
            return Ok(None);
        }
        let piece = reader.pending.split_to(reader.pending.len().min(MAXIMUM_PIECE_BYTES));
        Ok(Some((piece, reader)))
    })
    .boxed())
}

impl Reader {
    async fn fetch(&mut self) -> Result<()> {
        let start = self.rest.start;
        let wanted = usize::try_from(self.rest.end - start).unwrap_or(usize::MAX).min(READ_AHEAD_BYTES);
        let size_bytes = wanted as u64;
        let (file, path) = (self.file.clone(), self.path.clone());
        let work = move || {
            let mut buffer = vec![0; wanted];
            file.read_exact_at(&mut buffer, start).map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => Error::new(ErrorKind::Damaged, WHAT)
                    .on(path.display())
                    .because("it was truncated while it was read"),
                _ => errors::io(WHAT, &path, error),
            })?;
            Ok(Bytes::from(buffer))
        };
        self.pending = self.blocking.read(WHAT, &self.path, size_bytes, work).await?;
        self.rest.start += size_bytes;
        Ok(())
    }
}

//! Metadata and content of objects that are files, and their listing.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable::with_retries;
use stepvault_local::errors;

use super::layout::{Blocking, Layout, is_reserved};
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
                io::ErrorKind::UnexpectedEof => Error::new(ErrorKind::Damaged, WHAT)
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

const CANNOT_LIST: &str = "cannot list the objects";

struct Walk {
    layout: Layout,
    blocking: Blocking,
    prefix: String,
    /// Directories to visit: keys with a trailing slash, or empty for the root.
    directories: Vec<String>,
    found: VecDeque<ObjectInfo>,
}

#[derive(Default)]
struct Level {
    directories: Vec<String>,
    objects: VecDeque<ObjectInfo>,
}

/// Lists all regular files whose keys begin with `prefix`.
pub(super) fn list(
    layout: &Layout,
    blocking: Blocking,
    prefix: &str,
) -> BoxStream<'static, Result<ObjectInfo>> {
    let start = match Layout::directory_of(prefix) {
        Ok(start) => start.to_owned(),
        Err(error) => return stream::once(async { Err(error) }).boxed(),
    };
    let walk = Walk {
        layout: layout.clone(),
        blocking,
        prefix: prefix.to_owned(),
        directories: vec![start],
        found: VecDeque::new(),
    };
    stream::try_unfold(walk, |mut walk| async move {
        while walk.found.is_empty() {
            let Some(directory) = walk.directories.pop() else {
                return Ok(None);
            };
            walk.visit(directory).await?;
        }
        Ok(walk.found.pop_front().map(|info| (info, walk)))
    })
    .into_stream()
    .boxed()
}

impl Walk {
    async fn visit(&mut self, directory: String) -> Result<()> {
        let path = self.layout.root.join(&directory);
        let (layout, prefix) = (self.layout.clone(), self.prefix.clone());
        let level = self
            .blocking
            .read(CANNOT_LIST, &path, 0, move || read_level(&layout, &directory, &prefix))
            .await?;
        self.directories.extend(level.directories);
        self.found = level.objects;
        Ok(())
    }
}

fn read_level(layout: &Layout, directory: &str, prefix: &str) -> Result<Level> {
    let mut level = Level::default();
    // Refuses links on the way. A directory that another process has just emptied and removed is not an error.
    if layout.directory(CANNOT_LIST, directory)?.is_none() {
        return Ok(level);
    }
    let path = layout.root.join(directory);
    let Some(entries) = unless_gone(with_retries(|| std::fs::read_dir(&path)), &path)? else {
        return Ok(level);
    };
    for entry in entries {
        let Some(entry) = unless_gone(entry, &path)? else {
            continue;
        };
        // Keys are UTF-8, so other names are not objects.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if is_reserved(&name) {
            continue;
        }
        let key = format!("{directory}{name}");
        let Some(kind) = unless_gone(with_retries(|| entry.file_type()), &entry.path())? else {
            continue;
        };
        if kind.is_dir() {
            let inner = format!("{key}/");
            if inner.starts_with(prefix) || prefix.starts_with(&inner) {
                level.directories.push(inner);
            }
        } else if kind.is_file() && key.starts_with(prefix) {
            let Some(metadata) = unless_gone(with_retries(|| entry.metadata()), &entry.path())? else {
                continue;
            };
            level.objects.push_back(info_of(&key, &metadata));
        }
    }
    Ok(level)
}

/// Returns the result of a call, or `None` when the file or directory was removed meanwhile.
fn unless_gone<T>(outcome: io::Result<T>, path: &Path) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(errors::io(CANNOT_LIST, &PathBuf::from(path), error)),
    }
}

//! Metadata and content of objects that are files, and their listing.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable::with_retries;
use stepvault_local::errors::{self, IoAt as _};

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
    let metadata = file.metadata().at(WHAT, &layout.root.join(key))?;
    Ok(Some(info_of(key, &metadata)))
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
    let (file, end) = (Arc::new(file), range.end);
    let read_ahead = stream::try_unfold(range.start, move |start| {
        let (file, path, shown) = (Arc::clone(&file), path.clone(), path.clone());
        async move {
            let wanted =
                usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX).min(READ_AHEAD_BYTES);
            if wanted == 0 {
                return Ok::<_, Error>(None);
            }
            let work = move || read_at(&file, &path, start, wanted);
            let bytes = blocking.read(WHAT, &shown, wanted as u64, work).await?;
            Ok(Some((bytes, start + wanted as u64)))
        }
    });
    let pieces = |bytes: Bytes| {
        let starts = (0..bytes.len()).step_by(MAXIMUM_PIECE_BYTES);
        let piece = move |start| bytes.slice(start..bytes.len().min(start + MAXIMUM_PIECE_BYTES));
        stream::iter(starts.map(piece).map(Ok))
    };
    Ok(read_ahead.map_ok(pieces).try_flatten().boxed())
}

fn read_at(file: &File, path: &Path, start: u64, wanted: usize) -> Result<Bytes> {
    let mut buffer = vec![0; wanted];
    file.read_exact_at(&mut buffer, start).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::at(ErrorKind::Damaged, WHAT, path).because("it was truncated while it was read")
        }
        _ => errors::io(WHAT, path, error),
    })?;
    Ok(Bytes::from(buffer))
}

const CANNOT_LIST: &str = "cannot list the objects";

#[derive(Default)]
struct Level {
    /// Keys with a trailing slash.
    directories: Vec<String>,
    objects: Vec<ObjectInfo>,
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
    let (layout, prefix) = (layout.clone(), prefix.to_owned());
    stream::try_unfold(vec![start], move |mut directories| {
        let (layout, prefix) = (layout.clone(), prefix.clone());
        async move {
            let Some(directory) = directories.pop() else {
                return Ok::<_, Error>(None);
            };
            let path = layout.root.join(&directory);
            let read = move || read_level(&layout, &directory, &prefix);
            let level = blocking.read(CANNOT_LIST, &path, 0, read).await?;
            directories.extend(level.directories);
            Ok(Some((stream::iter(level.objects).map(Ok), directories)))
        }
    })
    .try_flatten()
    .boxed()
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
            level.objects.push(info_of(&key, &metadata));
        }
    }
    Ok(level)
}

/// Returns the result of a call, or `None` when the file or directory was removed meanwhile.
fn unless_gone<T>(outcome: io::Result<T>, path: &Path) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(errors::io(CANNOT_LIST, path, error)),
    }
}

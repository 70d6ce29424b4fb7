//! Lists the directory tree one directory at a time, so that memory is bounded by the largest directory.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use stepvault_core::Result;
use stepvault_local::{errors, reading};

use super::blocking::Blocking;
use super::layout::{Layout, is_reserved};
use super::reading::info_of;
use crate::store::ObjectInfo;

const WHAT: &str = "cannot list the objects";

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
        let level =
            self.blocking.read(WHAT, &path, 0, move || read_level(&layout, &directory, &prefix)).await?;
        self.directories.extend(level.directories);
        self.found = level.objects;
        Ok(())
    }
}

fn read_level(layout: &Layout, directory: &str, prefix: &str) -> Result<Level> {
    let mut level = Level::default();
    // Refuses links on the way. A directory that another process has just emptied and removed is not an error.
    if layout.directory(WHAT, directory)?.is_none() {
        return Ok(level);
    }
    let path = layout.root.join(directory);
    let Some(entries) = unless_gone(reading::with_retries(|| std::fs::read_dir(&path)), &path)? else {
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
        let Some(kind) = unless_gone(reading::with_retries(|| entry.file_type()), &entry.path())? else {
            continue;
        };
        if kind.is_dir() {
            let inner = format!("{key}/");
            if inner.starts_with(prefix) || prefix.starts_with(&inner) {
                level.directories.push(inner);
            }
        } else if kind.is_file() && key.starts_with(prefix) {
            let Some(metadata) = unless_gone(reading::with_retries(|| entry.metadata()), &entry.path())?
            else {
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
        Err(error) => Err(errors::io(WHAT, &PathBuf::from(path), error)),
    }
}

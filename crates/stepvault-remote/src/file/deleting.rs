//! Deletes objects, and directories that become empty.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stepvault_core::Result;
use stepvault_local::{durable, errors};

use super::layout::{Layout, TEMPORARY_PREFIX, parent};
use crate::causes::if_found;

const WHAT: &str = "cannot delete the object";
/// An older temporary file belongs to no write in progress.
const STALE: Duration = Duration::from_hours(24);

/// Deletes `keys`; missing ones are ignored. The deletion is durable when this returns: callers that delete a commit
/// before its data rely on that order.
pub(super) fn delete(layout: &Layout, keys: &[String]) -> Result<()> {
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

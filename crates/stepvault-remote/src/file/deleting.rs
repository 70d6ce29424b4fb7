//! Deleting objects, and the directories that they leave empty.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stepvault_core::Result;
use stepvault_local::{durable, errors};

use super::layout::{Layout, TEMPORARY_PREFIX, parent};

const WHAT: &str = "cannot delete the object";
/// A temporary that is older belongs to no write that is still under way.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// Deletes `keys`; missing ones are no error. They are durably gone when this returns: whoever deletes a commit
/// before its data relies on that order.
pub(super) fn delete(layout: &Layout, keys: &[String]) -> Result<()> {
    let mut directories = BTreeSet::new();
    let mut failed = None;
    for key in keys {
        let path = layout.path(key)?;
        match remove(layout, key, &path) {
            Ok(()) => {
                directories.insert(parent(&path).to_path_buf());
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    for directory in directories {
        sync_first_existing(layout, &remove_emptied(layout, directory))?;
    }
    failed.map_or(Ok(()), Err)
}

fn remove(layout: &Layout, key: &str, path: &Path) -> Result<()> {
    let (directories, _) = key.rsplit_once('/').unwrap_or(("", key));
    if layout.directory(WHAT, directories)?.is_none() {
        return Ok(());
    }
    match std::fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A directory is no object.
        Err(_) if path.is_dir() && !path.is_symlink() => Ok(()),
        Err(error) => Err(errors::io(WHAT, path, error)),
    }
}

/// Removes `directory` and those above it as long as they are empty; best effort. The deepest that stays.
fn remove_emptied(layout: &Layout, mut directory: PathBuf) -> PathBuf {
    while directory != layout.root && directory.starts_with(&layout.root) {
        let removed = std::fs::remove_dir(&directory).or_else(|error| {
            // The system decides what is empty; only what crashed writes left is swept first.
            if error.kind() == io::ErrorKind::DirectoryNotEmpty && sweep_stale(&directory) {
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

/// Removes temporaries of writes that crashed long ago, if nothing else is there. False when something stayed.
fn sweep_stale(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    let mut stale = Vec::new();
    for entry in entries.take(1000) {
        let is_stale = |entry: &std::fs::DirEntry| {
            let named = entry.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX);
            let old = entry.metadata().ok().filter(std::fs::Metadata::is_file)?.modified().ok()?.elapsed().ok()? > STALE;
            Some(named && old)
        };
        match entry {
            Ok(entry) if is_stale(&entry) == Some(true) => stale.push(entry.path()),
            _ => return false,
        }
    }
    stale.iter().all(|path| std::fs::remove_file(path).is_ok())
}

/// Another process may remove a directory at any time; the removal of its name is then in the one above.
fn sync_first_existing(layout: &Layout, directory: &Path) -> Result<()> {
    let mut directory = directory;
    while !directory.is_dir() && directory != layout.root {
        directory = parent(directory);
    }
    if !directory.is_dir() {
        return Ok(());
    }
    durable::fsync_directory(directory)
}

//! From a finished temporary to its final name, which must be free, and durably.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable::{self, CreateOutcome};
use stepvault_local::errors;

use super::layout::{Layout, parent};

/// How often a directory may be removed by another process between its creation and its use.
const MAXIMUM_ATTEMPTS: u32 = 100;

/// Syncs `file`, which stands at `temporary`, and gives it the name `target` unless that is taken.
pub(super) fn place(
    what: &str,
    layout: &Layout,
    file: &File,
    temporary: &Path,
    key: &str,
) -> Result<CreateOutcome> {
    let target = layout.path(key)?;
    file.sync_all()
        .map_err(|error| errors::io(what, temporary, error))?;
    in_directory_of(what, layout, key, || {
        let outcome = rename_if_free(what, temporary, &target)?;
        durable::fsync_directory(parent(&target))?;
        Ok(outcome)
    })
}

/// The answer to a write at a key that was found taken, once its name is on disk: whoever took it may have been killed
/// before it was, and the caller goes on as if it were.
pub(super) fn taken(layout: &Layout, key: &str) -> Result<CreateOutcome> {
    match durable::fsync_directory(parent(&layout.path(key)?)) {
        Ok(()) => Ok(CreateOutcome::Exists),
        // Removed since, with what was in it.
        Err(error) if error.kind() == ErrorKind::NotFound => Err(error.with_kind(ErrorKind::Unreachable)),
        Err(error) => Err(error),
    }
}

/// Syncs the names of what was found at these keys. What is gone since has none.
pub(super) fn make_sure(layout: &Layout, keys: &[String]) -> Result<()> {
    let mut directories = BTreeSet::new();
    for key in keys {
        let path = layout.path(key)?;
        if directories.insert(parent(&path).to_path_buf()) {
            match durable::fsync_name_found(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                outcome => outcome?,
            }
        }
    }
    Ok(())
}

/// Runs `write`, which creates something at `key`, with the directories above it in place.
pub(super) fn in_directory_of<T>(
    what: &str,
    layout: &Layout,
    key: &str,
    mut write: impl FnMut() -> Result<T>,
) -> Result<T> {
    let target = layout.path(key)?;
    let directory = parent(&target);
    let mut attempts = 0;
    loop {
        attempts += 1;
        prepare_root(what, layout)?;
        // Looked at before and after: directories that exist may be links, and new ones may have become ones.
        let (directories, _) = key.rsplit_once('/').unwrap_or(("", key));
        layout.directory(what, directories)?;
        let outcome = durable::create_directories(directory).and_then(|()| write());
        match outcome {
            // Another process that deletes takes emptied directories with it.
            Err(error) if error.kind() == ErrorKind::NotFound && attempts < MAXIMUM_ATTEMPTS => {}
            // Nobody asked for something that has to exist.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(error.with_kind(ErrorKind::Unreachable));
            }
            outcome => return outcome,
        }
    }
}

/// Creates the root, but nothing above it: a missing parent is a file system that is not mounted, or a typing error.
pub(super) fn prepare_root(what: &str, layout: &Layout) -> Result<()> {
    let root = &layout.root;
    match std::fs::metadata(root) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::new(ErrorKind::Failed, what)
            .on(root.display())
            .because("it is not a directory")),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(errors::io(what, root, error)),
        Err(_) if !parent(root).is_dir() => Err(Error::new(ErrorKind::Failed, what)
            .on(root.display())
            .because(format!(
                "its parent directory {} does not exist",
                parent(root).display()
            ))
            .hint("create or mount it, or correct the remote's URL")),
        Err(_) => durable::create_directories(root),
    }
}

fn rename_if_free(what: &str, from: &Path, to: &Path) -> Result<CreateOutcome> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(CreateOutcome::Written),
        Err(Errno::EXIST) => Ok(CreateOutcome::Exists),
        // Network file systems often cannot; a second name fails on a taken one just the same.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => link_if_free(what, from, to),
        Err(error) => Err(errors::io(what, to, error)),
    }
}

fn link_if_free(what: &str, from: &Path, to: &Path) -> Result<CreateOutcome> {
    match std::fs::hard_link(from, to) {
        Ok(()) => {
            // The file has its name; a temporary left behind is swept later.
            let _ = std::fs::remove_file(from);
            Ok(CreateOutcome::Written)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(CreateOutcome::Exists),
        Err(error) => Err(errors::io(what, to, error)
            .hint("the file system must be able to rename without replacing, or to make hard links")),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_leave_a_taken_name_alone() {
        let directory = tempfile::tempdir().unwrap();
        for way in [rename_if_free, link_if_free] {
            let (from, to) = (directory.path().join("from"), directory.path().join("to"));
            std::fs::write(&from, "new").unwrap();
            std::fs::write(&to, "old").unwrap();
            assert_eq!(way("cannot write", &from, &to).unwrap(), CreateOutcome::Exists);
            assert_eq!(std::fs::read(&to).unwrap(), b"old");
            std::fs::remove_file(&to).unwrap();
            assert_eq!(way("cannot write", &from, &to).unwrap(), CreateOutcome::Written);
            assert_eq!(std::fs::read(&to).unwrap(), b"new");
            assert!(!from.exists());
            std::fs::remove_file(&to).unwrap();
        }
    }
}

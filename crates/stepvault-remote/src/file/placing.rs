//! Renames finished temporary files to their final names, durably and only if the name is unused.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable::{self, CreateOutcome};
use stepvault_local::errors;

use super::beneath::another_root;
use super::layout::{Layout, parent};
use crate::causes::if_found;

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
    file.sync_all().map_err(|error| errors::io(what, temporary, error))?;
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
/// error.
pub(super) fn create_root(layout: &Layout) -> Result<()> {
    const WHAT: &str = "cannot begin an archive";
    let root = &layout.root;
    let above = parent(root);
    match std::fs::metadata(root) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::new(ErrorKind::Failed, WHAT).on(root.display()).because("it is not a directory")),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(errors::io(WHAT, root, error)),
        Err(_) => match durable::create_directories_below(above, root) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Error::new(ErrorKind::Unreachable, WHAT)
                    .on(root.display())
                    .because(format!("its parent directory {} does not exist", above.display()))
                    .hint("create or mount it, or correct the remote's URL")
                    .lasting())
            }
            created => created,
        },
    }
}

//! Recursive deletion. The only place that deletes more than one file.

use std::fs;
use std::io::ErrorKind::{NotFound, PermissionDenied};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use stepvault_core::Result;

use crate::errors;

/// Deletes whatever stands at `path`, without following links. Nothing there is fine.
pub(crate) fn tree(path: &Path) -> Result<()> {
    match remove(path) {
        Err(error) if error.kind() == PermissionDenied => {
            // A trainer may have left directories that even their owner cannot write.
            open_up(path);
            remove(path).map_err(|error| errors::io("cannot delete", path, error))
        }
        done => done.map_err(|error| errors::io("cannot delete", path, error)),
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where it is wrapped; it never follows links")]
fn remove(path: &Path) -> std::io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(facts) if facts.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    removed.or_else(|error| if error.kind() == NotFound { Ok(()) } else { Err(error) })
}

/// Gives the owner access to the directories of a tree, as far as that goes; the deletion reports what did not.
fn open_up(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|facts| facts.is_dir()) {
        let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            open_up(&entry.path());
        }
    }
}

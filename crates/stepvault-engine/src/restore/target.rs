//! Where a restored step is to stand.

use std::path::{Path, PathBuf};

use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::compare;
use stepvault_local::staging::Existing;

use super::RestoreRequest;
use super::resolve::Resolved;
use crate::blocking::blocking;

/// Where a restored step is to stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// In this directory, under the step's own name.
    Into(PathBuf),
    /// At this path.
    As(PathBuf),
}

impl Target {
    /// The path at which a step called `name` will stand.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        let path = match self {
            Self::Into(directory) => directory.join(name),
            Self::As(path) => path.clone(),
        };
        let absolute = std::path::absolute(&path).map_err(|error| {
            Error::new(ErrorKind::Usage, "not a path")
                .on(path.display())
                .caused_by(error)
        })?;
        match absolute.file_name() {
            Some(_) => Ok(absolute),
            None => Err(Error::new(ErrorKind::Usage, "cannot restore to this path")
                .on(absolute.display())
                .because("it has no last component")),
        }
    }
}

/// Whether the step stands at the target already, byte for byte. Something else there is refused unless it may be
/// replaced.
pub(super) async fn holds_already(
    path: &Path,
    resolved: &Resolved,
    request: &RestoreRequest,
) -> Result<bool> {
    let target = path.to_owned();
    if !blocking(move || Ok(std::fs::symlink_metadata(&target).is_ok())).await? {
        return Ok(false);
    }
    let target = path.to_owned();
    let (files, directories, symlinks) = (
        resolved.files.clone(),
        resolved.directories.clone(),
        resolved.symlinks.clone(),
    );
    let difference = blocking(move || compare::differs(&target, &files, &directories, &symlinks)).await;
    match (difference, request.existing) {
        (Ok(None), _) => Ok(true),
        (_, Existing::Replace) => Ok(false),
        (Ok(Some(difference)), Existing::Refuse) => Err(refused(path, &difference)),
        (Err(error), Existing::Refuse) => Err(refused(path, &error.to_string())),
    }
}

fn refused(path: &Path, difference: &str) -> Error {
    Error::new(ErrorKind::Conflict, "the target exists and is something else")
        .on(path.display())
        .because(difference)
        .hint("move it away, restore elsewhere with --as PATH, or put the step in its place with --replace")
}

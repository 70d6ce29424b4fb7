//! Paths of a restored step.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::staging::Existing;
use stepvault_local::{compare, durable};

use super::RestoreRequest;
use super::resolve::Resolved;
use crate::blocking::blocking;

/// Where to put a restored step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// In this directory, under the step's own name; a multi-path step at the trainer's original paths.
    Into(PathBuf),
    /// At this path, as one directory or file.
    As(PathBuf),
}

impl Target {
    /// Returns the paths that a step has, or will have.
    pub(super) fn place(&self, resolved: &Resolved) -> Result<Place> {
        let path = match self {
            Self::Into(directory) if resolved.members.is_empty() => directory.join(&resolved.name),
            Self::Into(directory) => directory.clone(),
            Self::As(path) => path.clone(),
        };
        let path = std::path::absolute(&path).map_err(|error| {
            Error::new(ErrorKind::Usage, "not a path")
                .on(path.display())
                .caused_by(error)
        })?;
        if !resolved.members.is_empty() {
            let members = resolved.members.iter();
            return Ok(Place {
                names: members.map(|member| member.as_str().into()).collect(),
                directory: path,
            });
        }
        match (path.parent(), path.file_name()) {
            (Some(directory), Some(name)) => Ok(Place {
                names: vec![name.to_owned()],
                directory: directory.to_owned(),
            }),
            _ => Err(Error::new(ErrorKind::Usage, "cannot restore to this path")
                .on(path.display())
                .because("it has no last component")),
        }
    }
}

/// The paths that a step has, or will have.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The directory in which the trainer looks for it.
    pub(super) directory: PathBuf,
    /// The step's names in it: one, or all of a multi-path step.
    pub(super) names: Vec<OsString>,
}

impl Place {
    /// Returns the step's paths.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.names.iter().map(|name| self.directory.join(name)).collect()
    }
}

/// The remaining work for a step.
pub(super) struct Left {
    /// The files that are not in place yet.
    pub(super) resolved: Arc<Resolved>,
    /// Whether existing files may be replaced.
    pub(super) existing: Existing,
}

/// Returns the part of the step that is not in place yet, byte for byte; `None` when all of it is. Different files at
/// its paths are refused unless they may be replaced.
///
/// A directory that holds only files of the step is completed: with separate disks, every node's trainer has written
/// its ranks' files there, and loses nothing when the other nodes' files are added.
pub(super) async fn left_to_place(
    path: &Path,
    resolved: &Arc<Resolved>,
    request: &RestoreRequest,
) -> Result<Option<Left>> {
    let (place, step, existing) = (path.to_owned(), Arc::clone(resolved), request.existing);
    if resolved.members.is_empty() {
        let existing = blocking(move || what_may_become(&place, &step, existing)).await?;
        return Ok(existing.map(|existing| Left {
            resolved: Arc::clone(resolved),
            existing,
        }));
    }
    let left = blocking(move || members_left(&place, &step, existing)).await?;
    Ok((!left.is_empty()).then(|| Left {
        resolved: Arc::new(resolved.only(&left)),
        existing,
    }))
}

/// A path that is already in place is kept: an interrupted restore put it there, or it is the trainer's own.
fn members_left(directory: &Path, resolved: &Resolved, existing: Existing) -> Result<Vec<RelativePath>> {
    let mut left = Vec::new();
    for member in &resolved.members {
        let path = directory.join(member);
        if std::fs::symlink_metadata(&path).is_ok() {
            let one = resolved.only(std::slice::from_ref(member));
            let difference =
                compare::member_differs(directory, member, &one.files, &one.directories, &one.symlinks);
            match (difference, existing) {
                (Ok(None), _) => {
                    make_sure_of(directory, member)?;
                    continue;
                }
                (_, Existing::Replace) => {}
                (Ok(Some(difference)), Existing::Refuse) => return Err(refused(&path, &difference)),
                (Err(error), Existing::Refuse) => return Err(refused(&path, &error.to_string())),
            }
        }
        left.push(member.clone());
    }
    Ok(left)
}

/// Syncs a path: a killed restore may have put the step in place before its name or its directory's mode was on disk.
fn make_sure_of_one(path: &Path) -> Result<()> {
    if path.is_dir() {
        durable::fsync_directory(path)?;
    }
    durable::fsync_name_found(path)
}

/// Syncs one path of a multi-path step, and the directories above it.
fn make_sure_of(directory: &Path, member: &RelativePath) -> Result<()> {
    for above in member.ancestors() {
        durable::fsync_name_found(&directory.join(above))?;
    }
    make_sure_of_one(&directory.join(member))
}

/// Decides whether existing files at the path may be replaced; `None` when they are already the step.
fn what_may_become(path: &Path, resolved: &Resolved, existing: Existing) -> Result<Option<Existing>> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(Some(existing));
    }
    let (files, directories, symlinks) = (&resolved.files, &resolved.directories, &resolved.symlinks);
    let difference = compare::differs(path, files, directories, symlinks);
    match (difference, existing) {
        (Ok(None), _) => make_sure_of_one(path).map(|()| None),
        (_, Existing::Replace) => Ok(Some(Existing::Replace)),
        (Ok(Some(difference)), Existing::Refuse) => {
            if compare::is_part(path, files, directories, symlinks)? {
                return Ok(Some(Existing::Replace));
            }
            Err(refused(path, &difference))
        }
        (Err(error), Existing::Refuse) => Err(refused(path, &error.to_string())),
    }
}

fn refused(path: &Path, difference: &str) -> Error {
    Error::new(ErrorKind::Conflict, "the target exists and differs from the step")
        .on(path.display())
        .because(difference)
        .hint("move it away, restore elsewhere with --as PATH, or replace it with --replace")
}

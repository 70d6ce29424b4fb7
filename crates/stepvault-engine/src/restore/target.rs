//! Where a restored step is to stand.

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

/// Where a restored step is to stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// In this directory, under the step's own name; a step of several paths where the trainer had them.
    Into(PathBuf),
    /// At this path, as one directory or file.
    As(PathBuf),
}

impl Target {
    /// Where a step stands, or will.
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

/// Where a step stands, or will.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Where the trainer looks for it.
    pub(super) directory: PathBuf,
    /// The step's paths there: one, or all of a step of several.
    pub(super) names: Vec<OsString>,
}

impl Place {
    /// The step's paths.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.names.iter().map(|name| self.directory.join(name)).collect()
    }
}

/// What is left to do for a step.
pub(super) struct Left {
    /// What of it is not in place yet.
    pub(super) resolved: Arc<Resolved>,
    /// What may become of what stands in its place.
    pub(super) existing: Existing,
}

/// What of the step is not in place yet, byte for byte; `None` when all of it is. Something else in its place is refused
/// unless it may be replaced.
///
/// A directory that holds a part of the step and nothing else is completed: on disks of their own every node's trainer
/// has written its ranks' files there, and loses nothing when the other nodes' come beside them.
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

/// A path that is in place already is kept: it is what an interrupted restore has put there, or the trainer's own.
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

/// A restore that was killed may have put the step there without its name being on disk, or its directory's mode.
fn make_sure_of_one(path: &Path) -> Result<()> {
    if path.is_dir() {
        durable::fsync_directory(path)?;
    }
    durable::fsync_name_found(path)
}

/// The same for a path of several, and the directories above it.
fn make_sure_of(directory: &Path, member: &RelativePath) -> Result<()> {
    for above in member.ancestors() {
        durable::fsync_name_found(&directory.join(above))?;
    }
    make_sure_of_one(&directory.join(member))
}

/// What may become of what stands at the path; `None` when it is the step already.
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
    Error::new(ErrorKind::Conflict, "the target exists and is something else")
        .on(path.display())
        .because(difference)
        .hint("move it away, restore elsewhere with --as PATH, or put the step in its place with --replace")
}

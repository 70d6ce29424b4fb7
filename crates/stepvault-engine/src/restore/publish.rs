//! Publishes a step: finds what is missing at the target, and puts the staged files there by one rename for each path.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::{Error, ErrorKind, RelativePath, Result};
use stepvault_local::staging::{Existing, Staging};
use stepvault_local::{compare, durable};

use super::fetch::open_staging;
use super::handoff::{Handoff, HandoffReport, PreparedHandoff};
use super::plan::RestorePlan;
use super::request::Restore;
use super::resolve::ResolvedStep;
use crate::blocking::blocking;

/// What is missing at the target.
pub(super) struct Missing {
    /// The files that are not in place yet.
    pub(super) step: Arc<ResolvedStep>,
    /// Whether existing files may be replaced.
    existing: Existing,
    /// Other content at the step's paths, which is moved aside.
    pub(super) displaced: Vec<PathBuf>,
}

/// What happens to other content at a step's paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    /// The restore fails.
    Refused,
    /// It is deleted once the step is in place.
    Replaced,
    /// It is moved aside: the trainer saves every step under this name.
    Displaced,
}

/// Returns the part of the step that is not in place yet, byte for byte; `None` when all of it is. Different files at
/// its paths are refused unless they may be replaced, or the handoff moves them aside.
///
/// A directory that holds only files of the step is completed: with separate disks, every node's trainer has written
/// its ranks' files there, and loses nothing when the other nodes' files are added.
///
/// # Errors
/// [`ErrorKind::Conflict`] when the target exists and differs.
pub(super) async fn find_missing(
    plan: &RestorePlan,
    existing: Existing,
    handoff: Option<&Handoff>,
) -> Result<Option<Missing>> {
    let (path, step) = (plan.path.clone(), Arc::clone(&plan.step));
    let other = match existing {
        Existing::Replace => Other::Replaced,
        Existing::Refuse if handoff.is_some_and(Handoff::displaces) => Other::Displaced,
        Existing::Refuse => Other::Refused,
    };
    blocking(move || {
        let mut displaced = Vec::new();
        if step.members.is_empty() {
            let existing = replaceable(&path, &step, other, &mut displaced)?;
            return Ok(existing.map(|existing| Missing { step, existing, displaced }));
        }
        let members = missing_members(&path, &step, other, &mut displaced)?;
        Ok((!members.is_empty()).then(|| Missing {
            step: Arc::new(step.only(&members)),
            existing,
            displaced,
        }))
    })
    .await
}

/// Publishes the staged files between the two halves of the handoff: other checkpoints are moved away before, and the
/// trainer's pointers are written after.
pub(super) async fn publish(
    staging: Staging,
    missing: Missing,
    handoff: Option<Handoff>,
) -> Result<Option<HandoffReport>> {
    blocking(move || {
        let step = &missing.step;
        for link in &step.symlinks {
            staging.symlink(&link.path, &link.target)?;
        }
        let handoff = handoff
            .map(|handoff| handoff.displacing(&missing.displaced).prepare(Some(&staging)))
            .transpose()?;
        staging.finish(step.shape, &step.directories, missing.existing)?;
        handoff.map(PreparedHandoff::finish).transpose()
    })
    .await
}

/// Deletes what a killed restore replaced by a multi-path step whose paths are all in place now.
pub(super) async fn end_replacement(restore: Restore<'_>, plan: &RestorePlan) -> Result<()> {
    if plan.step.members.is_empty() || restore.request.existing == Existing::Refuse {
        return Ok(());
    }
    let staging = open_staging(restore.context, &plan.step, &plan.path).await?;
    blocking(move || staging.end_replacement()).await
}

/// A path that is already in place is kept: an interrupted restore put it there, or it is the trainer's own.
fn missing_members(
    directory: &Path,
    resolved: &ResolvedStep,
    other: Other,
    displaced: &mut Vec<PathBuf>,
) -> Result<Vec<RelativePath>> {
    let mut missing = Vec::new();
    for member in &resolved.members {
        let path = directory.join(member);
        if std::fs::symlink_metadata(&path).is_ok() {
            let one = resolved.only(std::slice::from_ref(member));
            let difference = compare::member_differs(directory, member, one.entries());
            if is_right(&path, difference, other)? {
                for above in member.ancestors() {
                    durable::fsync_name_found(&directory.join(above))?;
                }
                sync_path(&path)?;
                continue;
            }
            displaced.extend((other == Other::Displaced).then_some(path));
        }
        missing.push(member.clone());
    }
    Ok(missing)
}

/// Syncs a path: a killed restore may have put the step in place before its name or its directory's mode was on disk.
fn sync_path(path: &Path) -> Result<()> {
    if path.is_dir() {
        durable::fsync_directory(path)?;
    }
    durable::fsync_name_found(path)
}

/// Decides whether existing files at the path may be replaced; `None` when they are already the step.
fn replaceable(
    path: &Path,
    resolved: &ResolvedStep,
    other: Other,
    displaced: &mut Vec<PathBuf>,
) -> Result<Option<Existing>> {
    if std::fs::symlink_metadata(path).is_err() {
        let is_replaced = other == Other::Replaced;
        return Ok(Some(if is_replaced { Existing::Replace } else { Existing::Refuse }));
    }
    let difference = compare::differs(path, resolved.entries());
    if other != Other::Replaced
        && matches!(difference, Ok(Some(_)))
        && compare::is_part(path, resolved.entries())?
    {
        return Ok(Some(Existing::Replace));
    }
    if is_right(path, difference, other)? {
        return sync_path(path).map(|()| None);
    }
    if other == Other::Displaced {
        displaced.push(path.to_owned());
        return Ok(Some(Existing::Refuse));
    }
    Ok(Some(Existing::Replace))
}

/// Returns whether existing files do not differ from the step. Different ones are refused unless they are
/// replaced or moved aside.
fn is_right(path: &Path, difference: Result<Option<String>>, other: Other) -> Result<bool> {
    let difference = match difference {
        Ok(None) => return Ok(true),
        _ if other != Other::Refused => return Ok(false),
        Ok(Some(difference)) => difference,
        Err(error) => error.to_string(),
    };
    Err(Error::new(ErrorKind::Conflict, "the target exists and differs from the step")
        .on(path.display())
        .because(difference)
        .hint("move it away, restore elsewhere with --as PATH, or replace it with --replace"))
}

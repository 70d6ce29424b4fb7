//! Publishes a step: finds what is missing at the target, and puts the staged files there by one rename for each path.

use std::path::Path;
use std::sync::Arc;

use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::staging::{Existing, Staging};
use stepvault_local::{compare, durable};

use super::fetch::open_staging;
use super::handoff::{Handoff, HandoffReport, PreparedHandoff};
use super::plan::RestorePlan;
use super::resolve::ResolvedStep;
use super::{RestoreContext, RestoreRequest};
use crate::blocking::blocking;

/// What is missing at the target.
pub(super) struct Missing {
    /// The files that are not in place yet.
    pub(super) step: Arc<ResolvedStep>,
    /// Whether existing files may be replaced.
    existing: Existing,
}

/// Returns the part of the step that is not in place yet, byte for byte; `None` when all of it is. Different files at
/// its paths are refused unless they may be replaced.
///
/// A directory that holds only files of the step is completed: with separate disks, every node's trainer has written
/// its ranks' files there, and loses nothing when the other nodes' files are added.
///
/// # Errors
/// [`ErrorKind::Conflict`] when the target exists and differs.
pub(super) async fn find_missing(plan: &RestorePlan, existing: Existing) -> Result<Option<Missing>> {
    let (path, step) = (plan.path.clone(), Arc::clone(&plan.step));
    blocking(move || {
        if step.members.is_empty() {
            let existing = replaceable(&path, &step, existing)?;
            return Ok(existing.map(|existing| Missing { step, existing }));
        }
        let members = missing_members(&path, &step, existing)?;
        Ok((!members.is_empty()).then(|| Missing {
            step: Arc::new(step.only(&members)),
            existing,
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
            .map(|handoff| handoff.prepare(Some(&staging)))
            .transpose()?;
        staging.finish(step.shape, &step.directories, missing.existing)?;
        handoff.map(PreparedHandoff::finish).transpose()
    })
    .await
}

/// Deletes what a killed restore replaced by a multi-path step whose paths are all in place now.
pub(super) async fn end_replacement(
    context: &RestoreContext,
    request: &RestoreRequest,
    plan: &RestorePlan,
) -> Result<()> {
    if plan.step.members.is_empty() || request.existing == Existing::Refuse {
        return Ok(());
    }
    let staging = open_staging(context, &plan.step, &plan.path).await?;
    blocking(move || staging.end_replacement()).await
}

/// A path that is already in place is kept: an interrupted restore put it there, or it is the trainer's own.
fn missing_members(
    directory: &Path,
    resolved: &ResolvedStep,
    existing: Existing,
) -> Result<Vec<RelativePath>> {
    let mut missing = Vec::new();
    for member in &resolved.members {
        let path = directory.join(member);
        if std::fs::symlink_metadata(&path).is_ok() {
            let one = resolved.only(std::slice::from_ref(member));
            let difference =
                compare::member_differs(directory, member, &one.files, &one.directories, &one.symlinks);
            if is_right(&path, difference, existing)? {
                sync_member(directory, member)?;
                continue;
            }
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

/// Syncs one path of a multi-path step, and the directories above it.
fn sync_member(directory: &Path, member: &RelativePath) -> Result<()> {
    for above in member.ancestors() {
        durable::fsync_name_found(&directory.join(above))?;
    }
    sync_path(&directory.join(member))
}

/// Decides whether existing files at the path may be replaced; `None` when they are already the step.
fn replaceable(path: &Path, resolved: &ResolvedStep, existing: Existing) -> Result<Option<Existing>> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(Some(existing));
    }
    let (files, directories, symlinks) = (&resolved.files, &resolved.directories, &resolved.symlinks);
    let difference = compare::differs(path, files, directories, symlinks);
    if existing == Existing::Refuse
        && matches!(difference, Ok(Some(_)))
        && compare::is_part(path, files, directories, symlinks)?
    {
        return Ok(Some(Existing::Replace));
    }
    if is_right(path, difference, existing)? {
        return sync_path(path).map(|()| None);
    }
    Ok(Some(Existing::Replace))
}

/// Returns whether existing files do not differ from the step. Different ones are refused unless they may be replaced.
fn is_right(path: &Path, difference: Result<Option<String>>, existing: Existing) -> Result<bool> {
    let difference = match difference {
        Ok(None) => return Ok(true),
        _ if existing == Existing::Replace => return Ok(false),
        Ok(Some(difference)) => difference,
        Err(error) => error.to_string(),
    };
    Err(
        Error::new(ErrorKind::Conflict, "the target exists and differs from the step")
            .on(path.display())
            .because(difference)
            .hint("move it away, restore elsewhere with --as PATH, or replace it with --replace"),
    )
}

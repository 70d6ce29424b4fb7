//! Follows a run from another machine: which steps are durable, and one of them restored into a follower's directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::join_all;
use parking_lot::Mutex;
use stepvault_core::{Error, ErrorKind, Result, RunName, StepId, Tier};
use stepvault_local::follow_directory::FollowDirectory;

use crate::blocking::blocking;
use crate::restore::{
    RestoreContext, RestoreReport, RestoreRequest, Target, ThawOptions, WantedSteps, restore,
};
use crate::tier::catalog::committed_ids;
use crate::tier::removed::{removal_record, removed_steps};
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::{Durability, without_removed};

/// The steps that are durable, as far as the remotes answer.
#[derive(Debug, Default)]
pub struct DurableSteps {
    /// The steps that are durable on every required remote; if none is required, on at least one. Of selective remotes alone,
    /// those that one of them has.
    pub ids: BTreeSet<StepId>,
    /// The remotes that did not answer, each with the error. A step that has to be on one of them is not durable as far as
    /// is known.
    pub unreachable: Vec<(RunRemote, Error)>,
}

/// Lists the durable steps. A step that is not new may be among them although it is being removed.
///
/// Without a new step this takes one LIST for each remote.
pub async fn durable_steps(remotes: &[RunRemote], is_new: impl Fn(StepId) -> bool) -> DurableSteps {
    let listed = join_all(remotes.iter().map(|remote| remote.answers_soon(visible(remote, &is_new)))).await;
    let mut found = DurableSteps::default();
    let mut on: BTreeMap<Tier, BTreeSet<StepId>> = BTreeMap::new();
    for (remote, listed) in remotes.iter().zip(listed) {
        match listed {
            Ok(ids) => {
                on.insert(remote.tier.clone(), ids);
            }
            Err(error) => found.unreachable.push((remote.clone(), error)),
        }
    }
    let all: BTreeSet<StepId> = on.values().flatten().copied().collect();
    let has = |remote: &RunRemote, id| on.get(&remote.tier).is_some_and(|ids| ids.contains(&id));
    // No step is durable by them, and what was copied to one of them was durable elsewhere.
    let are_selective = remotes.iter().all(|remote| remote.settings.is_selective());
    let is_durable = |id: &StepId| {
        if are_selective {
            return true;
        }
        let durability = Durability::of(remotes, |remote| Ok(has(remote, *id)));
        durability.is_ok_and(|durability| durability.is_durable())
    };
    found.ids = all.into_iter().filter(is_durable).collect();
    found
}

/// Returns the committed steps; if any is new, without the steps that are being removed.
async fn visible(remote: &RunRemote, is_new: impl Fn(StepId) -> bool) -> Result<BTreeSet<StepId>> {
    remote.expect_marker().await?;
    let committed = committed_ids(remote).await?;
    if !committed.keys().any(|id| is_new(*id)) {
        return Ok(committed.into_keys().collect());
    }
    // Listed after the commits: a step whose removal begins meanwhile is left out.
    let removed = removed_steps(remote).await?;
    Ok(without_removed(committed, &removed).into_keys().collect())
}

/// A step that is in a follower's directory.
#[derive(Debug)]
pub struct FollowedStep {
    /// Its path.
    pub path: PathBuf,
    /// How it was restored; `None` if it was there before, unchanged.
    pub report: Option<RestoreReport>,
}

/// What is restored of a followed step.
#[derive(Debug, Clone)]
pub struct FollowRequest {
    /// The run.
    pub run: RunName,
    /// The step.
    pub id: StepId,
    /// As in a [`RestoreRequest`].
    pub include: Vec<String>,
    /// As in a [`RestoreRequest`].
    pub thaw: Option<ThawOptions>,
}

/// Restores one step, verified, and places it in the follower's directory by a rename.
///
/// # Errors
/// As for [`restore`], and those of the directory. [`unfollowed`] tells what they mean.
pub async fn restore_followed(
    context: &RestoreContext,
    directory: &Arc<Mutex<FollowDirectory>>,
    FollowRequest { run, id, include, thaw }: FollowRequest,
) -> Result<FollowedStep> {
    let asked = Arc::clone(directory);
    if let Some(path) = blocking(move || asked.lock().unchanged(id)).await? {
        return Ok(FollowedStep { path, report: None });
    }
    let asked = Arc::clone(directory);
    let target = Target::Into(blocking(move || asked.lock().begin(id)).await?);
    let wanted = WantedSteps { step: Some(id.step), attempt: Some(id.attempt), revision: Some(id.revision) };
    let request = RestoreRequest { wanted, include, thaw, ..RestoreRequest::newest(run, target) };
    let report = restore(context, &request).await?;
    let (asked, restored) = (Arc::clone(directory), report.plan.path.clone());
    let path = blocking(move || asked.lock().place(id, &restored)).await?;
    Ok(FollowedStep { path, report: Some(report) })
}

/// What is to be done with a step whose restore failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfollowed {
    /// It cannot be followed, while others may: it is not tried again.
    Damaged,
    /// It was removed, or is being removed. If it is kept after all, it is listed again.
    Removed,
    /// It may still be there: it is tried again.
    Unknown,
}

/// Returns what an error of [`restore_followed`] means for the step, by what the remotes list now.
///
/// # Invariants
/// L4: a step is given up only if it is there and damaged. A filesystem that was not mounted for a moment, or a remote that
/// need not have the step and removed it, proves nothing.
pub async fn unfollowed(remotes: &[RunRemote], id: StepId, error: &Error) -> Unfollowed {
    // Of the follower's own directory.
    if error.kind() == ErrorKind::Conflict {
        return Unfollowed::Damaged;
    }
    let is_durable = durable_steps(remotes, |_| true).await.ids.contains(&id);
    match error.kind() {
        ErrorKind::NoneValid | ErrorKind::Damaged if is_durable => Unfollowed::Damaged,
        _ if !is_durable && is_removed(remotes, id).await => Unfollowed::Removed,
        _ => Unfollowed::Unknown,
    }
}

/// Returns whether a step was removed from a remote, or is being removed. A remote that does not answer says nothing.
async fn is_removed(remotes: &[RunRemote], id: StepId) -> bool {
    let records = remotes.iter().map(|remote| remote.answers_soon(removal_record(remote, id)));
    join_all(records).await.into_iter().any(|record| matches!(record, Ok(Some(_))))
}

//! Determines how far a step has come, for a trainer that waits for it.
//!
//! The agent, and commands without one, use the same checks: first of the vault, then of the remotes for a step that
//! the vault does not hold.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepvault_core::retention::abandoned_steps;
use stepvault_core::{Attempt, RemoteName, Result, Revision, RunName, Step, StepId};
use stepvault_engine::tier::step_state::{recorded_state, visible_steps};
use stepvault_engine::{RunRemote, blocking};
use stepvault_local::sealed::{SealedStep, UploadState};
use stepvault_local::vault::Vault;

use crate::remotes::TimeoutStore;

/// How far a step can come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Goal {
    /// Sealed in the vault: the trainer may modify or delete its files.
    Staged,
    /// This node's part is verified on every required remote.
    Uploaded,
    /// Every part and the commit are on every required remote, confirmed by reading the commit back.
    Durable,
}

/// The outcome of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The step has reached the goal.
    Reached,
    /// Waiting will not help.
    Failed,
    /// There is no such step, as far as could be checked.
    Unknown,
    /// The step is known but has not reached the goal yet.
    Late,
}

/// How far a step has come on one remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteProgress {
    /// The remote.
    pub remote: RemoteName,
    /// Whether the step has to be on this remote.
    pub required: bool,
    /// How far it has come on this remote; null when it is not on it.
    pub reached: Option<Goal>,
    /// Whether the fault needs an operator. It is retried regardless.
    pub failed: bool,
    /// Why it is not durable on this remote; null if unknown.
    pub reason: Option<String>,
}

/// How far a step has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepProgress {
    /// The run.
    pub run: RunName,
    /// The step.
    pub step: Step,
    /// Its attempt; null when there is no such step.
    pub attempt: Option<Attempt>,
    /// Its revision; omitted when it is the first.
    #[serde(default, skip_serializing_if = "Revision::is_first")]
    pub revision: Revision,
    /// Whether the attempt may still change because no remote has answered since the step was sealed.
    #[serde(default)]
    pub provisional: bool,
    /// How far it has come on every required remote, or on one if none is required; null when it is not sealed.
    pub reached: Option<Goal>,
    /// By remote, in the configured order.
    pub remotes: Vec<RemoteProgress>,
    /// Why there is no such step, or why it is damaged; null if unknown.
    pub reason: Option<String>,
    /// Whether that reason is final.
    pub failed: bool,
}

/// A requested step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepQuery {
    /// The run.
    pub run: RunName,
    /// The step.
    pub step: Step,
    /// Its attempt; `None` for the newest attempt that has this step.
    pub attempt: Option<Attempt>,
}

impl StepQuery {
    /// Returns the step among these. An attempt superseded by a later one does not match a request without an attempt:
    /// a trainer that went back would otherwise get the step that it wrote before it failed.
    fn among(&self, ids: impl IntoIterator<Item = StepId>) -> Option<StepId> {
        let ids: BTreeSet<StepId> = ids.into_iter().collect();
        let abandoned = match self.attempt {
            Some(_) => BTreeSet::new(),
            None => abandoned_steps(ids.iter().copied()),
        };
        let fits =
            |id: &&StepId| id.step == self.step && self.attempt.is_none_or(|attempt| id.attempt == attempt);
        ids.iter().rev().filter(fits).find(|id| !abandoned.contains(id)).copied()
    }
}

impl StepProgress {
    /// Creates the state of an unknown step.
    pub fn unknown(query: &StepQuery, remotes: &[RunRemote]) -> Self {
        let on = |remote: &RunRemote| RemoteProgress {
            remote: remote.name().clone(),
            required: remote.settings.required,
            reached: None,
            failed: false,
            reason: None,
        };
        Self {
            run: query.run.clone(),
            step: query.step,
            attempt: None,
            revision: Revision::FIRST,
            provisional: false,
            reached: None,
            remotes: remotes.iter().map(on).collect(),
            reason: None,
            failed: false,
        }
    }

    /// Returns the remotes that decide: the required ones, or all if none is required.
    fn deciding(&self) -> impl Iterator<Item = &RemoteProgress> {
        let some_required = self.remotes.iter().any(|remote| remote.required);
        self.remotes.iter().filter(move |remote| remote.required || !some_required)
    }

    /// Derives the step's progress from its progress on each remote. `sealed` if the vault holds it.
    fn conclude(&mut self, sealed: bool) {
        let some_required = self.remotes.iter().any(|remote| remote.required);
        let on_remotes = self.deciding().map(|remote| remote.reached);
        let there = if some_required { on_remotes.min() } else { on_remotes.max() };
        let floor = sealed.then_some(Goal::Staged);
        self.reached = there.flatten().max(floor);
    }

    /// Returns the outcome of waiting for `goal` in the current state.
    pub fn outcome(&self, goal: Goal) -> Outcome {
        if self.reached.is_some_and(|reached| reached >= goal) {
            return Outcome::Reached;
        }
        let some_required = self.remotes.iter().any(|remote| remote.required);
        let mut deciding = self.deciding().peekable();
        let given_up = if some_required {
            deciding.any(|remote| remote.failed)
        } else {
            deciding.peek().is_some() && deciding.all(|remote| remote.failed)
        };
        if self.failed || self.attempt.is_some() && given_up {
            Outcome::Failed
        } else if self.attempt.is_none() {
            Outcome::Unknown
        } else {
            Outcome::Late
        }
    }

    /// Returns the identity of the step, once known.
    pub fn id(&self) -> Option<StepId> {
        self.attempt.map(|attempt| StepId { revision: self.revision, ..StepId::new(attempt, self.step) })
    }

    fn set_id(&mut self, id: StepId) {
        (self.attempt, self.revision) = (Some(id.attempt), id.revision);
    }
}

/// Checks once: the vault, and the remotes for a step that the vault does not hold. For a remote that does not answer
/// in time the state is unknown, with the cause.
///
/// # Errors
/// When the vault cannot be read.
pub async fn read_progress(
    vault: Option<&Vault>,
    remotes: &[RunRemote],
    query: &StepQuery,
) -> Result<StepProgress> {
    if let Some(vault) = vault
        && let Some(progress) = progress_in_vault(vault, remotes, query).await?
    {
        return Ok(progress);
    }
    progress_elsewhere(vault, remotes, query).await
}

/// Checks for a step that the vault does not hold: on the remotes, then in quarantine.
pub(crate) async fn progress_elsewhere(
    vault: Option<&Vault>,
    remotes: &[RunRemote],
    query: &StepQuery,
) -> Result<StepProgress> {
    let progress = progress_on_remotes(remotes, query).await;
    match vault {
        Some(vault) if progress.attempt.is_none() => {
            let (vault, query) = (vault.clone(), query.clone());
            blocking(move || in_quarantine(&vault, progress, &query)).await
        }
        _ => Ok(progress),
    }
}

/// Checks only the vault; `None` when the step is not in it.
pub(crate) async fn progress_in_vault(
    vault: &Vault,
    remotes: &[RunRemote],
    query: &StepQuery,
) -> Result<Option<StepProgress>> {
    let (vault, remotes, query) = (vault.clone(), remotes.to_vec(), query.clone());
    blocking(move || {
        let steps = vault.steps(&query.run)?.steps;
        let id = renamed(&steps, &query).or_else(|| query.among(steps.iter().map(SealedStep::id)));
        let sealed = steps.into_iter().find(|step| Some(step.id()) == id);
        sealed.map(|step| of_sealed(&step, &remotes, &query)).transpose()
    })
    .await
}

/// Returns the step that had the requested attempt when it was announced, and has another one since. Other steps that have
/// or had the requested attempt were not requested.
fn renamed(steps: &[SealedStep], query: &StepQuery) -> Option<StepId> {
    let attempt = query.attempt?;
    let was_called_so =
        |step: &&SealedStep| step.id().step == query.step && step.record().attempt.former.contains(&attempt);
    steps.iter().rev().find(was_called_so).map(SealedStep::id)
}

fn of_sealed(step: &SealedStep, remotes: &[RunRemote], query: &StepQuery) -> Result<StepProgress> {
    let mut progress = StepProgress::unknown(query, remotes);
    progress.set_id(step.id());
    progress.provisional = step.record().is_provisional();
    for (remote, on) in remotes.iter().zip(&mut progress.remotes) {
        on.reached = recorded_state(step, remote)?.map(|state| match state.state {
            UploadState::Uploaded => Goal::Uploaded,
            UploadState::Durable => Goal::Durable,
        });
    }
    progress.conclude(true);
    Ok(progress)
}

fn in_quarantine(vault: &Vault, progress: StepProgress, query: &StepQuery) -> Result<StepProgress> {
    let found = vault.quarantined(&query.run)?;
    let Some(id) = query.among(found.iter().map(|bad| bad.id)) else {
        return Ok(progress);
    };
    let reason = found.into_iter().rfind(|bad| bad.id == id).map(|bad| bad.reason);
    Ok(StepProgress {
        attempt: Some(id.attempt),
        revision: id.revision,
        reason: Some(format!("it was found damaged and quarantined: {}", reason.unwrap_or_default())),
        failed: true,
        ..progress
    })
}

/// Checks only the remotes, for committed steps.
async fn progress_on_remotes(remotes: &[RunRemote], query: &StepQuery) -> StepProgress {
    let found = join_all(remotes.iter().map(visible_commits)).await;
    let mut progress = StepProgress::unknown(query, remotes);
    let all = found.iter().flatten().flatten().copied();
    let Some(id) = query.among(all) else {
        progress.reason = not_asked(remotes, &found);
        for (found, on) in found.into_iter().zip(&mut progress.remotes) {
            on.reason = found.err().map(|error| error.to_string());
        }
        return progress;
    };
    progress.set_id(id);
    for (found, on) in found.into_iter().zip(&mut progress.remotes) {
        match found {
            Ok(ids) if ids.contains(&id) => on.reached = Some(Goal::Durable),
            Ok(_) => on.reason = Some("it is not committed on this remote".to_owned()),
            Err(error) => on.reason = Some(error.to_string()),
        }
    }
    progress.conclude(false);
    progress
}

fn not_asked(remotes: &[RunRemote], found: &[Result<BTreeSet<StepId>>]) -> Option<String> {
    let text = |(remote, found): (&RunRemote, &Result<_>)| {
        Some(format!("{} was not queried: {}", remote.name(), found.as_ref().err()?))
    };
    let mut texts: Vec<String> = remotes.iter().zip(found).filter_map(text).collect();
    texts.sort_unstable();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Returns the steps that are committed on a remote and not being removed.
async fn visible_commits(remote: &RunRemote) -> Result<BTreeSet<StepId>> {
    let timed = remote.through(Arc::new(TimeoutStore::new(Arc::clone(&remote.store))));
    Ok(visible_steps(&timed).await?.into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(attempt: u32, step: u64) -> StepId {
        StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
    }

    fn query(attempt: Option<u32>, step: u64) -> StepQuery {
        StepQuery {
            run: "a".parse().unwrap(),
            step: Step::new(step).unwrap(),
            attempt: attempt.map(|number| Attempt::new(number).unwrap()),
        }
    }

    fn progress(remotes: &[(bool, Option<Goal>, bool)], sealed: bool) -> StepProgress {
        let on =
            |(index, (required, reached, failed)): (usize, &(bool, Option<Goal>, bool))| RemoteProgress {
                remote: format!("r{index}").parse().unwrap(),
                required: *required,
                reached: *reached,
                failed: *failed,
                reason: None,
            };
        let mut progress = StepProgress {
            remotes: remotes.iter().enumerate().map(on).collect(),
            attempt: Some(Attempt::new(1).unwrap()),
            revision: Revision::FIRST,
            ..StepProgress::unknown(&query(None, 5), &[])
        };
        progress.conclude(sealed);
        progress
    }

    #[test]
    fn a_step_of_an_attempt_that_was_left_behind_is_no_answer_unless_it_is_named() {
        let ids = [id(1, 50), id(1, 100), id(2, 60)];
        assert_eq!(query(None, 50).among(ids), Some(id(1, 50)));
        assert_eq!(query(None, 100).among(ids), None);
        assert_eq!(query(Some(1), 100).among(ids), Some(id(1, 100)));
        assert_eq!(query(Some(2), 50).among(ids), None);
        assert_eq!(query(None, 60).among(ids), Some(id(2, 60)));
    }

    #[test]
    fn the_slowest_required_remote_decides_and_an_optional_one_does_not() {
        let (uploaded, durable) = (Some(Goal::Uploaded), Some(Goal::Durable));
        let step = progress(&[(true, durable, false), (true, uploaded, false)], true);
        assert_eq!(step.reached, uploaded);
        assert_eq!(step.outcome(Goal::Uploaded), Outcome::Reached);
        assert_eq!(step.outcome(Goal::Durable), Outcome::Late);
        let step = progress(&[(true, durable, false), (false, None, true)], true);
        assert_eq!(step.outcome(Goal::Durable), Outcome::Reached);
        let step = progress(&[(true, durable, false), (true, None, true)], true);
        assert_eq!((step.reached, step.outcome(Goal::Durable)), (Some(Goal::Staged), Outcome::Failed));
        assert_eq!(step.outcome(Goal::Staged), Outcome::Reached);
    }

    #[test]
    fn where_none_is_required_one_is_enough_and_all_have_to_fail() {
        let durable = Some(Goal::Durable);
        assert_eq!(
            progress(&[(false, None, true), (false, durable, false)], true).outcome(Goal::Durable),
            Outcome::Reached
        );
        assert_eq!(
            progress(&[(false, None, true), (false, None, false)], true).outcome(Goal::Durable),
            Outcome::Late
        );
        assert_eq!(
            progress(&[(false, None, true), (false, None, true)], true).outcome(Goal::Durable),
            Outcome::Failed
        );
        assert_eq!(progress(&[], true).outcome(Goal::Durable), Outcome::Late);
    }

    #[test]
    fn what_is_nowhere_is_unknown() {
        let nothing = StepProgress::unknown(&query(None, 5), &[]);
        assert_eq!(nothing.outcome(Goal::Staged), Outcome::Unknown);
    }
}

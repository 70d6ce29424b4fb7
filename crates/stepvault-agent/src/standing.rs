//! Determines how far a step has come, for a trainer that waits for it.
//!
//! The agent, and commands without one, use the same checks: first of the vault, then of the remotes for a step that
//! the vault does not hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use stepvault_core::ids::{Attempt, RemoteName, RunName, Step, StepId};
use stepvault_core::retention::abandoned_steps;
use stepvault_core::{Error, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::run_remote::RunRemote;
use stepvault_engine::step_state::{recorded_state, visible_steps};
use stepvault_local::sealed::{SealedStep, UploadState};
use stepvault_local::vault::Vault;

use crate::timeout_store::TimeoutStore;

/// How far a step can come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Sealed in the vault: the trainer may modify or delete its files.
    Staged,
    /// This node's part is verified on every required remote.
    Uploaded,
    /// Every part and the commit are on every required remote, confirmed by reading the commit back.
    Durable,
}

impl Goal {
    /// Every goal, the nearest first.
    pub const ALL: [Self; 3] = [Self::Staged, Self::Uploaded, Self::Durable];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::Uploaded => "uploaded",
            Self::Durable => "durable",
        }
    }
}

/// The outcome of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteStanding {
    /// The remote.
    pub remote: RemoteName,
    /// Whether the step has to be on this remote.
    pub required: bool,
    /// How far it has come on this remote; null when it is not on it.
    pub reached: Option<Goal>,
    /// Whether the fault needs an operator. It is retried regardless.
    pub failed: bool,
    /// Why it is not durable on this remote, if known.
    pub reason: Option<String>,
}

/// How far a step has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The run.
    pub run: RunName,
    /// The step.
    pub step: Step,
    /// Its attempt; null when there is no such step.
    pub attempt: Option<Attempt>,
    /// Whether the attempt may still change because no remote has answered since the step was sealed.
    #[serde(default)]
    pub provisional: bool,
    /// How far it has come on every required remote, or on one if none is required; null when it is not sealed.
    pub reached: Option<Goal>,
    /// By remote, in the configured order.
    pub remotes: Vec<RemoteStanding>,
    /// Why there is no such step, or why it is damaged, if known.
    pub reason: Option<String>,
    /// Whether that reason is final.
    pub failed: bool,
}

/// A requested step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The run.
    pub run: RunName,
    /// The step.
    pub step: Step,
    /// Its attempt; `None` for the newest attempt that has this step.
    pub attempt: Option<Attempt>,
}

impl Wanted {
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
        ids.iter()
            .rev()
            .filter(fits)
            .find(|id| !abandoned.contains(id))
            .copied()
    }
}

impl Standing {
    /// Creates the state of an unknown step.
    fn unknown(wanted: &Wanted, remotes: &[RunRemote]) -> Self {
        let on = |remote: &RunRemote| RemoteStanding {
            remote: remote.name().clone(),
            required: remote.settings.required,
            reached: None,
            failed: false,
            reason: None,
        };
        Self {
            run: wanted.run.clone(),
            step: wanted.step,
            attempt: None,
            provisional: false,
            reached: None,
            remotes: remotes.iter().map(on).collect(),
            reason: None,
            failed: false,
        }
    }

    /// Returns the remotes that decide: the required ones, or all if none is required.
    fn deciding(&self) -> impl Iterator<Item = &RemoteStanding> {
        let some_required = self.remotes.iter().any(|remote| remote.required);
        self.remotes
            .iter()
            .filter(move |remote| remote.required || !some_required)
    }

    /// Derives the step's progress from its progress on each remote. `sealed` if the vault holds it.
    fn conclude(&mut self, sealed: bool) {
        let some_required = self.remotes.iter().any(|remote| remote.required);
        let on_remotes = self.deciding().map(|remote| remote.reached);
        let there = if some_required {
            on_remotes.min()
        } else {
            on_remotes.max()
        };
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

    /// Returns step and attempt, once known.
    pub fn id(&self) -> Option<StepId> {
        self.attempt.map(|attempt| StepId::new(attempt, self.step))
    }
}

/// Checks once: the vault, and the remotes for a step that the vault does not hold. For a remote that does not answer
/// in time the state is unknown, with the cause.
///
/// # Errors
/// When the vault cannot be read.
pub async fn look(vault: Option<&Vault>, remotes: &[RunRemote], wanted: &Wanted) -> Result<Standing> {
    if let Some(vault) = vault
        && let Some(standing) = look_in_vault(vault, remotes, wanted).await?
    {
        return Ok(standing);
    }
    look_elsewhere(vault, remotes, wanted).await
}

/// Checks for a step that the vault does not hold: on the remotes, then in quarantine.
pub(crate) async fn look_elsewhere(
    vault: Option<&Vault>,
    remotes: &[RunRemote],
    wanted: &Wanted,
) -> Result<Standing> {
    let standing = look_on_remotes(remotes, wanted).await;
    match vault {
        Some(vault) if standing.attempt.is_none() => {
            let (vault, wanted) = (vault.clone(), wanted.clone());
            blocking(move || in_quarantine(&vault, standing, &wanted)).await
        }
        _ => Ok(standing),
    }
}

/// Checks only the vault; `None` when the step is not in it.
pub(crate) async fn look_in_vault(
    vault: &Vault,
    remotes: &[RunRemote],
    wanted: &Wanted,
) -> Result<Option<Standing>> {
    let (vault, remotes, wanted) = (vault.clone(), remotes.to_vec(), wanted.clone());
    blocking(move || {
        let steps = vault.steps(&wanted.run)?.steps;
        let id = renamed(&steps, &wanted).or_else(|| wanted.among(steps.iter().map(SealedStep::id)));
        let sealed = steps.into_iter().find(|step| Some(step.id()) == id);
        sealed.map(|step| of_sealed(&step, &remotes, &wanted)).transpose()
    })
    .await
}

/// Returns the step that had the wanted attempt when it was announced, and has another one since. Other steps that have
/// or had the wanted attempt were not requested.
fn renamed(steps: &[SealedStep], wanted: &Wanted) -> Option<StepId> {
    let attempt = wanted.attempt?;
    let was_called_so =
        |step: &&SealedStep| step.id().step == wanted.step && step.record().attempt.former.contains(&attempt);
    steps.iter().rev().find(was_called_so).map(SealedStep::id)
}

fn of_sealed(step: &SealedStep, remotes: &[RunRemote], wanted: &Wanted) -> Result<Standing> {
    let mut standing = Standing::unknown(wanted, remotes);
    standing.attempt = Some(step.id().attempt);
    standing.provisional = step.record().is_provisional();
    for (remote, on) in remotes.iter().zip(&mut standing.remotes) {
        on.reached = recorded_state(step, remote)?.map(|state| match state.state {
            UploadState::Uploaded => Goal::Uploaded,
            UploadState::Durable => Goal::Durable,
        });
    }
    standing.conclude(true);
    Ok(standing)
}

fn in_quarantine(vault: &Vault, standing: Standing, wanted: &Wanted) -> Result<Standing> {
    let found = vault.quarantined(&wanted.run)?;
    let Some(id) = wanted.among(found.iter().map(|bad| bad.id)) else {
        return Ok(standing);
    };
    let reason = found.into_iter().rfind(|bad| bad.id == id).map(|bad| bad.reason);
    Ok(Standing {
        attempt: Some(id.attempt),
        reason: Some(format!(
            "it was found damaged and quarantined: {}",
            reason.unwrap_or_default()
        )),
        failed: true,
        ..standing
    })
}

/// Checks only the remotes, for committed steps.
async fn look_on_remotes(remotes: &[RunRemote], wanted: &Wanted) -> Standing {
    let found = join_all(remotes.iter().map(standing_commits)).await;
    let mut standing = Standing::unknown(wanted, remotes);
    let all = found.iter().flatten().flatten().copied();
    let Some(id) = wanted.among(all) else {
        standing.reason = not_asked(remotes, &found);
        for (found, on) in found.into_iter().zip(&mut standing.remotes) {
            on.reason = found.err().map(|error| error.to_string());
        }
        return standing;
    };
    standing.attempt = Some(id.attempt);
    for (found, on) in found.into_iter().zip(&mut standing.remotes) {
        match found {
            Ok(ids) if ids.contains(&id) => on.reached = Some(Goal::Durable),
            Ok(_) => on.reason = Some("it is not committed on this remote".to_owned()),
            Err(error) => on.reason = Some(error.to_string()),
        }
    }
    standing.conclude(false);
    standing
}

fn not_asked(remotes: &[RunRemote], found: &[Result<BTreeSet<StepId>>]) -> Option<String> {
    let unanswered: BTreeMap<&RemoteName, &Error> = remotes
        .iter()
        .zip(found)
        .filter_map(|(remote, found)| Some((remote.name(), found.as_ref().err()?)))
        .collect();
    let texts: Vec<String> = unanswered
        .iter()
        .map(|(remote, error)| format!("{remote} was not queried: {error}"))
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Returns the steps that are committed on a remote and not being removed.
async fn standing_commits(remote: &RunRemote) -> Result<BTreeSet<StepId>> {
    let prompt = remote.through(Arc::new(TimeoutStore::new(Arc::clone(&remote.store))));
    Ok(visible_steps(&prompt).await?.into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(attempt: u32, step: u64) -> StepId {
        StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
    }

    fn wanted(attempt: Option<u32>, step: u64) -> Wanted {
        Wanted {
            run: "a".parse().unwrap(),
            step: Step::new(step).unwrap(),
            attempt: attempt.map(|number| Attempt::new(number).unwrap()),
        }
    }

    fn standing(remotes: &[(bool, Option<Goal>, bool)], sealed: bool) -> Standing {
        let on =
            |(index, (required, reached, failed)): (usize, &(bool, Option<Goal>, bool))| RemoteStanding {
                remote: format!("r{index}").parse().unwrap(),
                required: *required,
                reached: *reached,
                failed: *failed,
                reason: None,
            };
        let mut standing = Standing {
            remotes: remotes.iter().enumerate().map(on).collect(),
            attempt: Some(Attempt::new(1).unwrap()),
            ..Standing::unknown(&wanted(None, 5), &[])
        };
        standing.conclude(sealed);
        standing
    }

    #[test]
    fn a_step_of_an_attempt_that_was_left_behind_is_no_answer_unless_it_is_named() {
        let ids = [id(1, 50), id(1, 100), id(2, 60)];
        assert_eq!(wanted(None, 50).among(ids), Some(id(1, 50)));
        assert_eq!(wanted(None, 100).among(ids), None);
        assert_eq!(wanted(Some(1), 100).among(ids), Some(id(1, 100)));
        assert_eq!(wanted(Some(2), 50).among(ids), None);
        assert_eq!(wanted(None, 60).among(ids), Some(id(2, 60)));
    }

    #[test]
    fn the_slowest_required_remote_decides_and_an_optional_one_does_not() {
        let (uploaded, durable) = (Some(Goal::Uploaded), Some(Goal::Durable));
        let step = standing(&[(true, durable, false), (true, uploaded, false)], true);
        assert_eq!(step.reached, uploaded);
        assert_eq!(step.outcome(Goal::Uploaded), Outcome::Reached);
        assert_eq!(step.outcome(Goal::Durable), Outcome::Late);
        let step = standing(&[(true, durable, false), (false, None, true)], true);
        assert_eq!(step.outcome(Goal::Durable), Outcome::Reached);
        let step = standing(&[(true, durable, false), (true, None, true)], true);
        assert_eq!(
            (step.reached, step.outcome(Goal::Durable)),
            (Some(Goal::Staged), Outcome::Failed)
        );
        assert_eq!(step.outcome(Goal::Staged), Outcome::Reached);
    }

    #[test]
    fn where_none_is_required_one_is_enough_and_all_have_to_fail() {
        let durable = Some(Goal::Durable);
        assert_eq!(
            standing(&[(false, None, true), (false, durable, false)], true).outcome(Goal::Durable),
            Outcome::Reached
        );
        assert_eq!(
            standing(&[(false, None, true), (false, None, false)], true).outcome(Goal::Durable),
            Outcome::Late
        );
        assert_eq!(
            standing(&[(false, None, true), (false, None, true)], true).outcome(Goal::Durable),
            Outcome::Failed
        );
        assert_eq!(standing(&[], true).outcome(Goal::Durable), Outcome::Late);
    }

    #[test]
    fn what_is_nowhere_is_unknown() {
        let nothing = Standing::unknown(&wanted(None, 5), &[]);
        assert_eq!(nothing.outcome(Goal::Staged), Outcome::Unknown);
    }
}

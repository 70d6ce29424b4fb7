//! What a selective remote has, or still gets, of the steps of the remote that feeds it.

use std::collections::BTreeMap;

use stepvault_core::commit::Commit;
use stepvault_core::retention::{Selection, SelectionState, StepFacts, TargetSteps, abandoned_steps};
use stepvault_core::{RemoteName, Result, StepId, Timestamp};

use super::catalog::FoundCommit;
use super::removed::{RemovedSteps, local_now, removed_steps};
use super::run_remote::RunRemote;
use super::step_state::{StepsOnRemote, step_facts, visible_commits};

type Commits = BTreeMap<StepId, FoundCommit>;

/// Returns the state on the selective remote `to` of each step that `from`, which feeds it, has, from what was listed of
/// both: one request, for the marker. Ages are measured by this machine's clock.
///
/// # Errors
/// When the marker cannot be read.
pub async fn selection_states(
    (from, source): (&RunRemote, &StepsOnRemote),
    (to, target): (&RunRemote, &StepsOnRemote),
    selection: &Selection,
) -> Result<BTreeMap<StepId, SelectionState>> {
    let (no_commits, none_removed) = (Commits::new(), RemovedSteps::default());
    let target = match to.marker().await? {
        Some(_) => (&target.commits, &target.removed),
        None => (&no_commits, &none_removed),
    };
    Ok(states_of(from, &source.commits, selection, target, Timestamp::from(local_now())))
}

/// As [`selection_states`], from what was listed of both sides.
pub(crate) fn states_of(
    from: &RunRemote,
    source: &Commits,
    selection: &Selection,
    (commits, removed): (&Commits, &RemovedSteps),
    now: Timestamp,
) -> BTreeMap<StepId, SelectionState> {
    let abandoned = abandoned_steps(source.keys().copied());
    let readable =
        || source.iter().filter_map(|(id, found)| Some((*id, found, found.commit.as_deref().ok()?)));
    let steps: Vec<StepFacts> = readable()
        .map(|(id, found, commit)| step_facts(from.name(), source, found, commit, abandoned.contains(&id)))
        .collect();
    let has_copy = |id: StepId, commit: &Commit| {
        let there = commits.get(&id).and_then(|found| found.commit.as_deref().ok());
        there.is_some_and(|there| is_copy(there, commit))
    };
    let copied = readable().filter(|(id, _, commit)| has_copy(*id, commit)).map(|(id, ..)| id);
    let target = TargetSteps {
        copied: copied.collect(),
        removed: source.keys().copied().filter(|id| removed.contains(*id)).collect(),
    };
    selection.states(&steps, &target, now)
}

/// Whether a commit is that of a copy. The copy of an imported step has other records, but the same files.
fn is_copy(copy: &Commit, of: &Commit) -> bool {
    let files = |commit: &Commit| (commit.name.clone(), commit.file_count(), commit.data_bytes());
    copy == of || of.is_imported() && files(copy) == files(of)
}

/// Lists what a selective remote has and has removed. What stands there without the run's marker does not count: it may be
/// another place.
async fn target(to: &RunRemote) -> Result<(Commits, RemovedSteps)> {
    if to.marker().await?.is_none() {
        return Ok((Commits::new(), RemovedSteps::default()));
    }
    tokio::try_join!(visible_commits(to), removed_steps(to))
}

/// The steps of a remote that wait to be copied.
#[derive(Debug, Default)]
pub(crate) struct AwaitedSteps {
    /// The selective remotes that lack each step.
    pub(crate) by_step: BTreeMap<StepId, Vec<RemoteName>>,
    /// The selective remotes that could not be listed, as text: they count as if they had nothing.
    pub(crate) warnings: Vec<String>,
}

/// Finds the steps of `from` for which its `selective` remotes wait. In doubt a step waits: also an imported one that seems to
/// be there, because the records of its copy prove nothing of the original's files.
pub(crate) async fn awaited_steps(
    from: &RunRemote,
    source: &Commits,
    selective: &[RunRemote],
    now: Timestamp,
) -> AwaitedSteps {
    let mut awaited = AwaitedSteps::default();
    for to in selective {
        let Some(selection) = &to.settings.selection else { continue };
        let (commits, removed) = target(to).await.unwrap_or_else(|error| {
            awaited.warnings.push(format!(
                "cannot list {}, which gets steps of {}: every step that it selects is kept: {error}",
                to.name(),
                from.name()
            ));
            Default::default()
        });
        let states = states_of(from, source, selection, (&commits, &removed), now);
        let is_imported = |id: StepId| {
            let found = source.get(&id).and_then(|found| found.commit.as_deref().ok());
            found.is_some_and(Commit::is_imported)
        };
        let waits = states.into_iter().filter(|(id, state)| match state {
            SelectionState::Planned { .. } => true,
            SelectionState::Copied => is_imported(*id),
            SelectionState::Removed | SelectionState::NotSelected => false,
        });
        for (id, _) in waits {
            awaited.by_step.entry(id).or_default().push(to.name().clone());
        }
    }
    awaited
}

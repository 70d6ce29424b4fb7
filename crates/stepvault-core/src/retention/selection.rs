//! Which steps of a remote a selective remote gets: a pure decision by keep rules, without the guards of retention.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{StepFacts, Verified};
use super::plan::{RuleVerdict, by_rules};
use super::rules::KeepRules;
use crate::{RemoteName, StepId, Timestamp};

/// What a selective remote gets: nothing is uploaded to it, but steps of another remote that rules select are copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The remote whose steps are copied.
    pub from: RemoteName,
    /// The rules that select steps. If none is set and `includes_newest` is false, every step is selected.
    pub rules: KeepRules,
    /// Whether the newest step is selected too.
    pub includes_newest: bool,
    /// How many seconds a step must have been on `from` before it is copied.
    pub after_seconds: u64,
}

/// What a selective remote holds of the steps of the remote that feeds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetSteps {
    /// The steps that it has.
    pub copied: BTreeSet<StepId>,
    /// The steps that were removed from it: their identities are never reused there.
    pub removed: BTreeSet<StepId>,
}

/// What a selective remote has, or gets, of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectionState {
    /// It waits to be copied.
    Planned {
        /// The time from which it may be copied, by the clock of the remote that has it.
        due_at: Timestamp,
    },
    /// The remote has it.
    Copied,
    /// It was removed from the remote, and is not copied again.
    Removed,
    /// The rules do not select it.
    NotSelected,
}

impl Selection {
    /// Whether every step is selected.
    fn takes_all(&self) -> bool {
        self.rules.is_unset() && !self.includes_newest
    }

    /// Returns the state of each of the steps that `from` has.
    pub fn states(
        &self,
        steps: &[StepFacts],
        target: &TargetSteps,
        now: Timestamp,
    ) -> BTreeMap<StepId, SelectionState> {
        let mut sorted: Vec<&StepFacts> = steps.iter().collect();
        sorted.sort_by_key(|step| step.id);
        let valid = sorted.iter().filter(|step| step.verified == Verified::Yes);
        let newest = valid.map(|step| step.id).next_back().filter(|_| self.includes_newest);
        let kept = if self.rules.is_unset() { BTreeMap::new() } else { by_rules(&sorted, &self.rules, now) };
        let is_selected =
            |id| self.takes_all() || Some(id) == newest || kept.get(&id).is_some_and(RuleVerdict::is_kept);
        let state = |step: &&StepFacts| {
            let state = if target.copied.contains(&step.id) {
                SelectionState::Copied
            } else if target.removed.contains(&step.id) {
                SelectionState::Removed
            } else if is_selected(step.id) {
                SelectionState::Planned { due_at: self.due_at(step) }
            } else {
                SelectionState::NotSelected
            };
            (step.id, state)
        };
        sorted.iter().map(state).collect()
    }

    fn due_at(&self, step: &StepFacts) -> Timestamp {
        let after_seconds = i64::try_from(self.after_seconds).unwrap_or(i64::MAX);
        Timestamp { seconds: step.created.seconds.saturating_add(after_seconds), ..step.created }
    }
}

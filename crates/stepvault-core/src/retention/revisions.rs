//! Revisions: a rule counts a step once, not once for each revision.

use std::collections::BTreeMap;

use super::facts::{StepFacts, Verified};
use crate::ids::StepId;

/// The revisions of the steps on a tier.
pub(super) struct Revisions<'a> {
    /// By first revision; each list is sorted, oldest first.
    steps: BTreeMap<StepId, Vec<&'a StepFacts>>,
}

impl<'a> Revisions<'a> {
    /// Groups steps, which are sorted.
    pub(super) fn of(steps: &[&'a StepFacts]) -> Self {
        let mut groups: BTreeMap<StepId, Vec<&StepFacts>> = BTreeMap::new();
        for step in steps {
            groups.entry(step.id.first_revision()).or_default().push(step);
        }
        Self { steps: groups }
    }

    fn of_step(&self, id: StepId) -> &[&'a StepFacts] {
        self.steps.get(&id.first_revision()).map_or(&[], Vec::as_slice)
    }

    /// Returns the revision that stands for the step of `id`: the newest verified one, otherwise the newest.
    pub(super) fn counted(&self, id: StepId) -> StepId {
        let newest = || self.of_step(id).last().map(|step| step.id);
        self.newest_verified(id).or_else(newest).unwrap_or(id)
    }

    /// Returns the revision that stands for the step, if that has every file of this one: a later one that is verified,
    /// where each between them was made from the one before.
    pub(super) fn superseded_by(&self, id: StepId) -> Option<StepId> {
        let valid = self.newest_verified(id).filter(|valid| *valid > id)?;
        let is_between = |step: &&&StepFacts| step.id > id && step.id <= valid;
        let mut last = id.revision.number();
        for step in self.of_step(id).iter().filter(is_between) {
            if !step.amends || step.id.revision.number() != last.saturating_add(1) {
                return None;
            }
            last = step.id.revision.number();
        }
        Some(valid)
    }

    fn newest_verified(&self, id: StepId) -> Option<StepId> {
        let mut revisions = self.of_step(id).iter().rev();
        let newest = revisions.find(|step| step.verified == Verified::Yes)?;
        Some(newest.id)
    }
}

//! The decisions of a retention plan, and what a caller asks of them.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::guards::{Loss, Refusal};
use crate::{StepId, Tier, Timestamp};

/// What happens to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It stays.
    Keep,
    /// It is deleted.
    Drop,
    /// It is deleted although it is not durable on every required remote, because the disk has no space and no other
    /// deletion frees any.
    GiveUp,
}

/// The decision on one step.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Decision {
    /// The step.
    #[serde(flatten)]
    pub id: StepId,
    /// The name the trainer gave it.
    pub name: String,
    /// Bytes it takes on the tier.
    pub bytes: u64,
    /// The decision.
    pub verdict: Verdict,
    /// Why, in plain words; never empty.
    pub reasons: Vec<String>,
    /// Whether it is on a branch that a later attempt has abandoned; such steps are deleted first.
    pub abandoned: bool,
    /// Whether a guard holds it: nothing may drop it.
    pub guarded: bool,
    /// Bytes that its removal returns to the filesystem.
    #[serde(skip)]
    pub reclaimable_bytes: u64,
    /// When it was stored on the tier; orders the evictions among several runs.
    #[serde(skip)]
    pub(super) created: Timestamp,
    /// What would be lost by giving it up; `None` if it is never given up, or is not held.
    #[serde(skip)]
    pub(super) loss: Option<Loss>,
    /// The guards that hold it.
    #[serde(skip)]
    pub(super) held_by: Vec<String>,
}

impl Decision {
    pub(super) fn drop_for(&mut self, reason: String) {
        self.verdict = Verdict::Drop;
        self.reasons = vec![reason];
    }

    /// Keeps the guards among the reasons, because they tell what is lost.
    pub(super) fn give_up_for(&mut self, reason: String) {
        self.verdict = Verdict::GiveUp;
        self.reasons = std::iter::once(reason).chain(self.held_by.iter().cloned()).collect();
    }
}

/// The decisions on the steps of one run on one tier.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RetentionPlan {
    /// The tier.
    #[serde(serialize_with = "tier_text")]
    #[schemars(with = "String")]
    pub tier: Tier,
    /// Why nothing is deleted at all, with every verdict `keep`; null if steps may be deleted.
    pub refusal: Option<Refusal>,
    /// Every step once, oldest first.
    pub decisions: Vec<Decision>,
    /// Bytes of the deleted steps.
    pub freed_bytes: u64,
    /// Bytes of the kept steps.
    pub kept_bytes: u64,
    /// Warnings for the user: limits that cannot be met.
    pub warnings: Vec<String>,
    /// Number of deletions that `maximum_deletions` still allows.
    #[serde(skip)]
    pub(super) deletions_left: usize,
}

impl RetentionPlan {
    /// Returns the steps to delete in the order of deletion: abandoned branches first, and oldest first within both
    /// groups.
    pub fn deletions(&self) -> Vec<&Decision> {
        let mut drops: Vec<&Decision> =
            self.decisions.iter().filter(|decision| decision.verdict == Verdict::Drop).collect();
        drops.sort_by_key(|decision| deletion_order(decision));
        drops
    }

    /// Returns the given-up steps in the order of deletion: those with the least loss first, and oldest first among
    /// these.
    pub fn given_up(&self) -> Vec<&Decision> {
        let mut given_up: Vec<&Decision> =
            self.decisions.iter().filter(|decision| decision.verdict == Verdict::GiveUp).collect();
        given_up.sort_by_key(|decision| (decision.loss, decision.created, decision.id));
        given_up
    }

    /// Adds earlier decisions on the same steps that were carried out since, so that one plan includes all.
    pub fn add_carried_out(&mut self, decisions: Vec<Decision>) {
        self.decisions.retain(|planned| decisions.iter().all(|done| done.id != planned.id));
        self.decisions.extend(decisions);
        self.decisions.sort_by_key(|decision| decision.id);
        self.count_bytes();
    }

    /// Returns the decision on one step.
    pub fn decision(&self, id: StepId) -> Option<&Decision> {
        self.decisions
            .binary_search_by_key(&id, |decision| decision.id)
            .ok()
            .map(|index| &self.decisions[index])
    }

    pub(super) fn count_bytes(&mut self) {
        let sum = |verdict| {
            let those = self.decisions.iter().filter(|decision| decision.verdict == verdict);
            those.fold(0_u64, |sum, decision| sum.saturating_add(decision.bytes))
        };
        let going = sum(Verdict::Drop).saturating_add(sum(Verdict::GiveUp));
        (self.freed_bytes, self.kept_bytes) = (going, sum(Verdict::Keep));
    }
}

/// Sorts abandoned branches before the line that led to the newest step, and oldest first.
pub(super) fn deletion_order(decision: &Decision) -> (bool, StepId) {
    (!decision.abandoned, decision.id)
}

fn tier_text<S: Serializer>(tier: &Tier, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(tier)
}

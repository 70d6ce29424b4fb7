//! The known facts about the steps of one run on one tier: the input of a plan.

use std::collections::{BTreeMap, BTreeSet};

use crate::step_origin::BestName;
use crate::{Attempt, RemoteName, Step, StepId, Tier, Timestamp};

/// What is known about the bytes of a step on the tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verified {
    /// They were compared with the manifest, or are assumed to be right by a caller that checks them before it deletes
    /// anything.
    Yes,
    /// They differ from the manifest, in this way.
    Damaged(String),
}

/// Why the remotes' copies were not confirmed right before a local copy was to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unproven {
    /// A remote could not be reached: its copy may be intact.
    Unanswered(String),
    /// A remote no longer has what it acknowledged.
    Lost(String),
}

impl Unproven {
    /// Returns the reason.
    pub fn reason(&self) -> &str {
        match self {
            Self::Unanswered(reason) | Self::Lost(reason) => reason,
        }
    }
}

/// Who needs a step now, whatever the rules say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needed {
    /// Whether it is pinned.
    pub pinned: bool,
    /// Whether a reader has a lease on it.
    pub leased: bool,
    /// Whether a transfer to or from this tier is in progress.
    pub uploading: bool,
}

/// Where else a step is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Elsewhere {
    /// Remotes on which it was confirmed as durable by reading it back.
    pub durable_on: Vec<RemoteName>,
    /// Remotes on which it was durable until retention removed it there: those that have its tombstone.
    pub retired_on: Vec<RemoteName>,
    /// Why its copies on the remotes were not confirmed by the last check; `None` if they were, or were not checked.
    pub unproven: Option<Unproven>,
    /// Whether other nodes write parts of it too, and may not have sealed theirs.
    pub needs_other_nodes: bool,
}

impl Elsewhere {
    /// Returns whether some remote has had it.
    pub(super) fn was_durable(&self) -> bool {
        !self.durable_on.is_empty() || !self.retired_on.is_empty()
    }
}

/// One step of the run on the tier.
#[derive(Debug, Clone, PartialEq)]
pub struct StepFacts {
    /// Its identity, which determines its age.
    pub id: StepId,
    /// Whether it is a revision that has all files of the one before it.
    pub amends: bool,
    /// The name the trainer gave it.
    pub name: String,
    /// When it was stored on the tier, by the tier's own clock.
    pub created: Timestamp,
    /// Bytes it takes on the tier.
    pub bytes: u64,
    /// Bytes that its removal returns to the filesystem: fewer than `bytes` if other hard links to its files exist.
    pub reclaimable_bytes: u64,
    /// The steps that its trainer calls the best so far.
    pub best: Vec<BestName>,
    /// Metrics by name.
    pub metrics: BTreeMap<String, f64>,
    /// What is known about its bytes.
    pub verified: Verified,
    /// Who needs it now.
    pub needed: Needed,
    /// Where else it is.
    pub elsewhere: Elsewhere,
    /// Whether a later attempt began at or before it: see [`abandoned_steps`](super::abandoned_steps).
    pub abandoned: bool,
}

impl StepFacts {
    /// Returns whether it counts in rules with a number of steps.
    pub(super) fn counts(&self) -> bool {
        self.verified == Verified::Yes && !self.abandoned
    }
}

/// One run on one tier, as found.
#[derive(Debug, Clone, PartialEq)]
pub struct TierView {
    /// The tier.
    pub tier: Tier,
    /// All steps of it, in any order. A caller that cannot list them completely makes no plan.
    pub steps: Vec<StepFacts>,
    /// Records that could not be read: key and reason. While there is one, nothing is deleted.
    pub unreadable: Vec<(String, String)>,
    /// The current time by the tier's own clock.
    pub now: Timestamp,
    /// Free bytes on the local tier's filesystem, if known.
    pub free_bytes: Option<u64>,
}

impl TierView {
    /// Returns the newest verified step.
    pub fn newest_valid(&self) -> Option<StepId> {
        self.newest_valid_facts().map(|step| step.id)
    }

    fn newest_valid_facts(&self) -> Option<&StepFacts> {
        let valid = self.steps.iter().filter(|step| step.verified == Verified::Yes);
        valid.max_by_key(|step| step.id)
    }

    /// Returns the steps that the newest verified one names as the best.
    pub(super) fn named_best(&self) -> BTreeSet<StepId> {
        let Some(newest) = self.newest_valid_facts() else {
            return BTreeSet::new();
        };
        let steps = || self.steps.iter().map(|step| (step.id, step.name.as_str()));
        let named = newest.best.iter().filter_map(|name| best_step(newest.id, name, steps()));
        named.filter(|id| *id != newest.id).collect()
    }
}

/// Returns the steps of earlier attempts at or above the step at which some later attempt began.
///
/// A run that failed at 300 and went back to 100 has abandoned 200 and 300; 100 is still its ancestor.
pub fn abandoned_steps(ids: impl IntoIterator<Item = StepId>) -> BTreeSet<StepId> {
    let ids: Vec<StepId> = ids.into_iter().collect();
    let mut begins: BTreeMap<Attempt, Step> = BTreeMap::new();
    for id in &ids {
        let begin = begins.entry(id.attempt).or_insert(id.step);
        *begin = (*begin).min(id.step);
    }
    // For each attempt, the lowest step at which any later one began.
    let mut cuts = BTreeMap::new();
    let mut lowest: Option<Step> = None;
    for (attempt, begin) in begins.iter().rev() {
        if let Some(cut) = lowest {
            cuts.insert(*attempt, cut);
        }
        lowest = Some(lowest.map_or(*begin, |cut| cut.min(*begin)));
    }
    ids.into_iter().filter(|id| cuts.get(&id.attempt).is_some_and(|cut| id.step >= *cut)).collect()
}

/// Returns the step that another one, `named_by`, names as the best: the newest of that name that is older, and from which
/// the run did not go back; without one of that name, the newest of that number. That may be `named_by` itself.
pub fn best_step<'a>(
    named_by: StepId,
    best: &BestName,
    steps: impl Iterator<Item = (StepId, &'a str)>,
) -> Option<StepId> {
    let steps: Vec<(StepId, &str)> = steps.filter(|(id, _)| *id <= named_by).collect();
    let abandoned = abandoned_steps(steps.iter().map(|(id, _)| *id));
    let live = || steps.iter().filter(|(id, _)| !abandoned.contains(id));
    let of_name = live().filter(|(_, name)| *name == best.name);
    let of_number = live().filter(|(id, _)| Some(id.step) == best.step);
    let newest = of_name.map(|(id, _)| *id).max();
    newest.or_else(|| of_number.map(|(id, _)| *id).max())
}

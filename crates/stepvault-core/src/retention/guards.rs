//! Guards: protections that apply whatever the configuration is.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use super::facts::{StepFacts, TierView, Unproven, Verified};
use crate::{RemoteName, StepId, Tier};

/// Inputs of the guards in addition to the steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Guards {
    /// The remotes on which a step must be durable before its local copy may be removed.
    pub required_remotes: Vec<RemoteName>,
    /// Maximum number of steps that one plan may delete.
    pub maximum_deletions: Option<u32>,
    /// The steps that wait to be copied, each with the selective remotes that lack it.
    pub awaited: BTreeMap<StepId, Vec<RemoteName>>,
}

/// Why a plan deletes nothing at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RefusalKind {
    /// The list is empty: either no step exists, or the wrong location was listed.
    ListingEmpty,
    /// A record could not be read, so that the content of the tier is unknown.
    UnreadableRecord,
    /// The list contradicts itself.
    Contradiction,
    /// No step is verified, so that none could be relied on after the deletions.
    NoneVerified,
}

/// A plan that deletes nothing, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Refusal {
    /// The reason, for programs.
    pub kind: RefusalKind,
    /// The reason, for people.
    pub reason: String,
}

/// Returns what forbids any deletion on this tier.
pub(super) fn refusal(view: &TierView) -> Option<Refusal> {
    let refuse = |kind, reason| Some(Refusal { kind, reason });
    if let Some((key, why)) = view.unreadable.first() {
        let more = match view.unreadable.len() - 1 {
            0 => String::new(),
            count => format!(" (and {count} more)"),
        };
        return refuse(
            RefusalKind::UnreadableRecord,
            format!("cannot read a record on '{}': {key}: {why}{more}", view.tier),
        );
    }
    if view.steps.is_empty() {
        return refuse(RefusalKind::ListingEmpty, format!("no step is listed on '{}'", view.tier));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = view.steps.iter().find(|step| !seen.insert(step.id)) {
        return refuse(
            RefusalKind::Contradiction,
            format!("{} is listed twice on '{}'", twice.id, view.tier),
        );
    }
    if !view.steps.iter().any(|step| step.verified == Verified::Yes) {
        return refuse(RefusalKind::NoneVerified, format!("no step on '{}' is verified", view.tier));
    }
    None
}

/// Returns the guards that hold each step, in plain words; steps without a guard are omitted.
pub(super) fn held(view: &TierView, guards: &Guards) -> BTreeMap<StepId, Vec<String>> {
    let newest_valid = view.newest_valid();
    // Its trainer has its own copy, and what a restore needs is on a remote.
    let best = match view.tier {
        Tier::Local => BTreeSet::new(),
        Tier::Remote(_) => view.named_best(),
    };
    let mut held = BTreeMap::new();
    for step in &view.steps {
        let mut reasons = Vec::new();
        match newest_valid.map(|newest| step.id.cmp(&newest)) {
            Some(Ordering::Less) => {}
            Some(Ordering::Equal) => reasons.push("newest valid step".to_owned()),
            Some(Ordering::Greater) | None => {
                reasons.push("newer than the newest valid step".to_owned());
                if let Verified::Damaged(why) = &step.verified {
                    reasons.push(format!("damaged ({why})"));
                }
            }
        }
        if let Some(newest) = newest_valid.filter(|_| best.contains(&step.id)) {
            reasons.push(format!("the best according to step {}", newest.step));
        }
        if step.needed.pinned {
            reasons.push("pinned".to_owned());
        }
        if step.needed.leased {
            reasons.push("being restored".to_owned());
        }
        if step.needed.uploading {
            reasons.push("being uploaded".to_owned());
        }
        let awaited = guards.awaited.get(&step.id).into_iter().flatten();
        reasons.extend(awaited.map(|remote| format!("waits to be copied to {remote}")));
        if view.tier == Tier::Local {
            reasons.extend(not_yet_durable(step, &guards.required_remotes));
            let unproven = step.elsewhere.unproven.iter();
            reasons.extend(unproven.map(|found| found.reason().to_owned()));
        }
        if !reasons.is_empty() {
            held.insert(step.id, reasons);
        }
    }
    held
}

/// Returns how much is lost with a local copy that is not durable on every required remote, the least first. Returns
/// `None` for a step that is never given up: one at `kept_from` or newer, a pinned one, one that is being restored.
pub(super) fn loss(step: &StepFacts, kept_from: Option<StepId>) -> Option<Loss> {
    if step.needed.pinned || step.needed.leased || kept_from.is_none_or(|kept| step.id >= kept) {
        return None;
    }
    let is_lost = matches!(step.elsewhere.unproven, Some(Unproven::Lost(_)));
    Some(if step.needed.uploading {
        Loss::Uploading
    } else if step.elsewhere.was_durable() && !is_lost {
        Loss::HeldElsewhere
    } else {
        Loss::LastCopy
    })
}

/// How much is lost when a local copy is given up, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    /// A remote acknowledged it, and was not found to lack it since.
    HeldElsewhere,
    /// No remote is known to have it.
    LastCopy,
    /// Its upload is in progress, so that waiting would make it durable.
    Uploading,
}

/// Returns the first step that is never given up: the newest valid one, and also the valid one before it if other
/// nodes write parts of the newest. Those nodes may have only the earlier one, and the nodes must not give up, one
/// after the other, the step that they have in common.
pub(super) fn never_given_up_from(steps: &[StepFacts]) -> Option<StepId> {
    let valid = || steps.iter().filter(|step| step.verified == Verified::Yes);
    let newest = valid().max_by_key(|step| step.id)?;
    let before = valid().map(|step| step.id).filter(|id| *id < newest.id).max();
    let needs_others = newest.elsewhere.needs_other_nodes;
    Some(before.filter(|_| needs_others).unwrap_or(newest.id))
}

/// Returns why a local copy must stay: the remotes that do not have it, or that no remote ever had it.
fn not_yet_durable(step: &StepFacts, required: &[RemoteName]) -> Vec<String> {
    // A remote that had the step and removed it by its own rules no longer requires the local copy.
    let copies = &step.elsewhere;
    let settled = |remote| copies.durable_on.contains(remote) || copies.retired_on.contains(remote);
    let mut reasons: Vec<String> = required
        .iter()
        .filter(|remote| !settled(remote))
        .map(|remote| format!("not durable on {remote}"))
        .collect();
    if !copies.was_durable() {
        let copy = if step.verified == Verified::Yes { "last verified copy" } else { "last copy" };
        reasons.push(copy.to_owned());
    }
    reasons
}

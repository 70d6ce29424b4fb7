//! What holds whatever the configuration says.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::facts::{ListingState, StepFacts, TierView, Verified};
use crate::ids::{RemoteName, StepId};
use crate::observe::Tier;

/// What the guards need to know beside the steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Guards {
    /// The remotes on which a step must be durable before its local copy may go.
    pub required_remotes: Vec<RemoteName>,
    /// Most steps that one plan may delete.
    pub maximum_deletions: Option<u32>,
}

/// Why a plan deletes nothing at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RefusalKind {
    /// The tier could not be listed to the end.
    ListingFailed,
    /// The list holds no step: either there is none, or the wrong place was listed.
    ListingEmpty,
    /// A record could not be read, so that it is not known what stands there.
    UnreadableRecord,
    /// The list contradicts itself.
    Contradiction,
    /// No step is verified, so that none could be relied on once the others are gone.
    NoneVerified,
}

/// A plan that deletes nothing, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// For programs.
    pub kind: RefusalKind,
    /// For people.
    pub reason: String,
}

/// Finds what forbids any deletion on this tier.
pub(super) fn refusal(view: &TierView) -> Option<Refusal> {
    let refuse = |kind, reason| Some(Refusal { kind, reason });
    if let ListingState::Failed(why) = &view.listing {
        return refuse(
            RefusalKind::ListingFailed,
            format!("'{}' could not be listed: {why}", view.tier),
        );
    }
    if let Some((key, why)) = view.unreadable.first() {
        let more = match view.unreadable.len() - 1 {
            0 => String::new(),
            count => format!(" (and {count} more)"),
        };
        return refuse(
            RefusalKind::UnreadableRecord,
            format!("a record on '{}' cannot be read: {key}: {why}{more}", view.tier),
        );
    }
    if view.steps.is_empty() {
        return refuse(
            RefusalKind::ListingEmpty,
            format!("no step is listed on '{}'", view.tier),
        );
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = view.steps.iter().find(|step| !seen.insert(step.id)) {
        return refuse(
            RefusalKind::Contradiction,
            format!("{} is listed twice on '{}'", twice.id, view.tier),
        );
    }
    if !view.steps.iter().any(|step| step.verified == Verified::Yes) {
        return refuse(
            RefusalKind::NoneVerified,
            format!("no step on '{}' is verified", view.tier),
        );
    }
    None
}

/// The guards that hold each step, in plain words; steps that none holds are left out.
pub(super) fn held(view: &TierView, guards: &Guards) -> BTreeMap<StepId, Vec<String>> {
    let newest_valid = view
        .steps
        .iter()
        .filter(|step| step.verified == Verified::Yes)
        .map(|step| step.id)
        .max();
    let mut held = BTreeMap::new();
    for step in &view.steps {
        let mut reasons = Vec::new();
        match newest_valid.map(|newest| step.id.cmp(&newest)) {
            Some(Ordering::Less) => {}
            Some(Ordering::Equal) => reasons.push("newest valid step".to_owned()),
            Some(Ordering::Greater) | None => reasons.push("newer than the newest valid step".to_owned()),
        }
        if step.pinned {
            reasons.push("pinned".to_owned());
        }
        if step.leased {
            reasons.push("being restored".to_owned());
        }
        if step.uploading {
            reasons.push("being uploaded".to_owned());
        }
        if view.tier == Tier::Local {
            reasons.extend(not_yet_safe(step, &guards.required_remotes));
        }
        if !reasons.is_empty() {
            held.insert(step.id, reasons);
        }
    }
    held
}

/// Why a local copy may not go: the remotes that do not have it, or that no remote ever had it.
fn not_yet_safe(step: &StepFacts, required: &[RemoteName]) -> Vec<String> {
    // A remote that had the step and let it go by its own rules no longer holds the local copy back.
    let settled = |remote: &RemoteName| step.durable_on.contains(remote) || step.retired_on.contains(remote);
    let mut reasons: Vec<String> = required
        .iter()
        .filter(|remote| !settled(remote))
        .map(|remote| format!("not durable on {remote}"))
        .collect();
    if step.durable_on.is_empty() && step.retired_on.is_empty() {
        let copy = if step.verified == Verified::Yes {
            "last verified copy"
        } else {
            "last copy"
        };
        reasons.push(copy.to_owned());
    }
    reasons
}

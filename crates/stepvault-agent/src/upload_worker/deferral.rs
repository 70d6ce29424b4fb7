//! Finds waiting steps that retention would remove as soon as they reached the remote.

use std::collections::{BTreeMap, BTreeSet};

use stepvault_core::clock::Clock as _;
use stepvault_core::ids::StepId;
use stepvault_core::observe::Tier;
use stepvault_core::records::Pin;
use stepvault_core::retention::{
    Elsewhere, Guards, KeepRules, LocalLimits, Needed, StepFacts, TierView, Verdict, Verified,
    abandoned_steps, plan,
};
use stepvault_local::sealed::SealedStep;

use stepvault_local::clock::SystemClock;

/// Returns the steps among `waiting` that the remote's rules would not keep, with the cause.
///
/// The decision assumes that the remote holds everything that the vault holds. The remote actually holds more, and then
/// every rule selects at most fewer of these steps, so a step that would be kept is never deferred.
pub(super) fn retention_would_drop(
    tier: &Tier,
    keep: &KeepRules,
    sealed: &[SealedStep],
    waiting: &BTreeSet<StepId>,
    pins: &[Pin],
) -> BTreeMap<StepId, String> {
    let now = SystemClock.now();
    let abandoned = abandoned_steps(sealed.iter().map(SealedStep::id));
    let facts = |step: &SealedStep| {
        let record = step.record();
        StepFacts {
            amends: false,
            id: record.id,
            name: record.name.clone(),
            // A step reaches the remote when it is uploaded.
            created: if waiting.contains(&record.id) { now } else { record.written_at },
            bytes: record.data_bytes(),
            reclaimable_bytes: record.data_bytes(),
            best: record.origin.best.clone(),
            metrics: record.metrics.clone(),
            verified: Verified::Yes,
            needed: Needed { pinned: pins.iter().any(|pin| pin.id == record.id), ..Needed::default() },
            elsewhere: Elsewhere { needs_other_nodes: record.is_one_of_several(), ..Elsewhere::default() },
            abandoned: abandoned.contains(&record.id),
        }
    };
    let view = TierView {
        tier: tier.clone(),
        steps: sealed.iter().map(facts).collect(),
        unreadable: Vec::new(),
        now,
        free_bytes: None,
    };
    // Rules that would delete everything are refused: then nothing is deferred.
    let Ok(plan) = plan(&view, keep, &LocalLimits::default(), &Guards::default()) else {
        return BTreeMap::new();
    };
    plan.decisions
        .into_iter()
        .filter(|decision| decision.verdict == Verdict::Drop && waiting.contains(&decision.id))
        .map(|decision| (decision.id, decision.reasons.join("; ")))
        .collect()
}

//! Which waiting steps retention would drop as soon as they came to the remote.

use std::collections::{BTreeMap, BTreeSet};

use stepvault_core::clock::Clock as _;
use stepvault_core::ids::StepId;
use stepvault_core::observe::Tier;
use stepvault_core::records::Pin;
use stepvault_core::retention::{
    Guards, KeepRules, ListingState, LocalLimits, StepFacts, TierView, Verdict, Verified, abandoned_steps,
    plan,
};
use stepvault_local::sealed::SealedStep;

use crate::clock::SystemClock;

/// The steps among `waiting` that the remote's rules would not keep, and why.
///
/// Judged by what the vault holds, as if all of it stood on the remote. The remote holds more, and every rule names at
/// most fewer of these steps then, so that nothing stands back that would stay.
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
            id: record.id,
            name: record.name.clone(),
            // A step comes to the remote when it is uploaded.
            created: if waiting.contains(&record.id) {
                now
            } else {
                record.written_at
            },
            written_at: record.written_at,
            bytes: record.data_bytes(),
            metrics: record.metrics.clone(),
            pinned: pins.iter().any(|pin| pin.id == record.id),
            leased: false,
            verified: Verified::Yes,
            durable_on: Vec::new(),
            retired_on: Vec::new(),
            uploading: false,
            abandoned: abandoned.contains(&record.id),
        }
    };
    let view = TierView {
        tier: tier.clone(),
        steps: sealed.iter().map(facts).collect(),
        unreadable: Vec::new(),
        listing: ListingState::Complete,
        now,
        free_bytes: None,
    };
    // Rules that would delete everything are refused: then nothing stands back.
    let Ok(plan) = plan(&view, keep, &LocalLimits::default(), &Guards::default()) else {
        return BTreeMap::new();
    };
    plan.decisions
        .into_iter()
        .filter(|decision| decision.verdict == Verdict::Drop && waiting.contains(&decision.id))
        .map(|decision| (decision.id, decision.reasons.join("; ")))
        .collect()
}

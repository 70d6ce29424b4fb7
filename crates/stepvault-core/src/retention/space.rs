//! Evictions from the local tier to stay within its limits, and steps that are given up if evictions are not enough.

use super::decision::{Decision, RetentionPlan, Verdict};
use super::guards::Loss;
use super::rules::LocalLimits;
use crate::observe::Tier;

/// Drops further local copies, oldest first over all runs, until `limits` are met. `free_bytes` is the free space of
/// the filesystem before any of the plans is carried out.
///
/// Guarded steps are never dropped. If a limit cannot be met, the last plan's warnings contain it.
pub fn evict_for_space(plans: &mut [RetentionPlan], limits: &LocalLimits, free_bytes: Option<u64>) {
    evict_within_limits(plans, limits, free_bytes);
    warn_of_shortage(plans, limits, free_bytes);
}

/// Evicts like [`evict_for_space`]. If that leaves less free space than the low mark, and
/// [`give_up_undurable`](LocalLimits::give_up_undurable) is set, it gives up steps that are not durable until the mark
/// is reached: first those that some remote has acknowledged, then the others, each oldest first over all runs.
///
/// The newest valid step of a run, any newer one, pinned steps and steps that are being restored are never given up,
/// and neither is a step whose removal frees no bytes. A step that is being uploaded is given up last, and only while
/// less than `uploads_below_bytes` would be free.
pub fn make_room(
    plans: &mut [RetentionPlan],
    limits: &LocalLimits,
    free_bytes: Option<u64>,
    uploads_below_bytes: u64,
) {
    evict_within_limits(plans, limits, free_bytes);
    if limits.give_up_undurable {
        give_up(plans, limits, free_bytes, uploads_below_bytes);
    }
    warn_of_shortage(plans, limits, free_bytes);
}

/// The amount that one removal contributes.
type Measure = fn(&Decision) -> u64;

fn evict_within_limits(plans: &mut [RetentionPlan], limits: &LocalLimits, free_bytes: Option<u64>) {
    let evictable = |decision: &Decision| !decision.guarded && decision.bytes > 0;
    let mut order =
        kept_locally(plans, evictable, |decision| (!decision.abandoned, decision.created, decision.id));
    let wanted_bytes = over_budget_bytes(plans, limits);
    let bytes: Measure = |decision| decision.bytes;
    evict(plans, &mut order, wanted_bytes, bytes, "over local.maximum-size");
    // The mark is compared with the current free space: while the disk is low, retention's own deletions may suffice.
    let wanted_bytes = short_bytes(plans, limits, free_bytes, high_mark(limits));
    let reclaimable: Measure = |decision| decision.reclaimable_bytes;
    let reason = "free space is below local.free-space-low";
    evict(plans, &mut order, wanted_bytes, reclaimable, reason);
}

/// Drops steps in `order` for which `measure` is not 0 until `wanted_bytes` are freed, and removes them from `order`.
fn evict(
    plans: &mut [RetentionPlan],
    order: &mut Vec<(usize, usize)>,
    wanted_bytes: u64,
    measure: Measure,
    reason: &str,
) {
    let mut evicted_bytes = 0_u64;
    order.retain(|(which, place)| {
        let plan = &mut plans[*which];
        let bytes = measure(&plan.decisions[*place]);
        if evicted_bytes >= wanted_bytes || bytes == 0 || plan.deletions_left == 0 {
            return true;
        }
        plan.deletions_left -= 1;
        plan.decisions[*place].drop_for(reason.to_owned());
        evicted_bytes = evicted_bytes.saturating_add(bytes);
        false
    });
    plans.iter_mut().for_each(RetentionPlan::count_bytes);
}

fn give_up(
    plans: &mut [RetentionPlan],
    limits: &LocalLimits,
    free_bytes: Option<u64>,
    uploads_below_bytes: u64,
) {
    let may_go = |decision: &Decision| decision.loss.is_some() && decision.reclaimable_bytes > 0;
    let order = kept_locally(plans, may_go, |decision| (decision.loss, decision.created, decision.id));
    for (which, place) in order {
        let mut short = short_bytes(plans, limits, free_bytes, limits.free_space_low_bytes);
        if plans[which].decisions[place].loss == Some(Loss::Uploading) {
            let free = free_bytes.unwrap_or(u64::MAX).saturating_add(reclaimed_bytes(plans));
            short = short.min(uploads_below_bytes.saturating_sub(free));
        }
        if short == 0 || plans[which].deletions_left == 0 {
            continue;
        }
        plans[which].deletions_left -= 1;
        plans[which].decisions[place]
            .give_up_for("given up: the disk has no space for the next step".to_owned());
        plans[which].count_bytes();
    }
}

/// Returns the kept steps of the local tier that `may_go`, in order: for each the positions of its plan and decision.
fn kept_locally<K: Ord>(
    plans: &[RetentionPlan],
    may_go: impl Fn(&Decision) -> bool,
    order: impl Fn(&Decision) -> K,
) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (which, plan) in plans.iter().enumerate() {
        if plan.tier == Tier::Local && plan.refusal.is_none() {
            let decisions = plan.decisions.iter().enumerate();
            let kept =
                decisions.filter(|(_, decision)| decision.verdict == Verdict::Keep && may_go(decision));
            found.extend(kept.map(|(place, _)| (which, place)));
        }
    }
    found.sort_by_key(|(which, place)| (order(&plans[*which].decisions[*place]), *which));
    found
}

fn over_budget_bytes(plans: &[RetentionPlan], limits: &LocalLimits) -> u64 {
    let kept_bytes = plans.iter().fold(0_u64, |sum, plan| sum.saturating_add(plan.kept_bytes));
    limits.maximum_bytes.map_or(0, |most| kept_bytes.saturating_sub(most))
}

/// Returns the mark at which eviction ends.
fn high_mark(limits: &LocalLimits) -> Option<u64> {
    limits.free_space_high_bytes.max(limits.free_space_low_bytes)
}

/// Returns the bytes that will be missing at the mark after the plans are carried out; 0 if the low mark is met
/// already.
fn short_bytes(
    plans: &[RetentionPlan],
    limits: &LocalLimits,
    free_bytes: Option<u64>,
    mark: Option<u64>,
) -> u64 {
    match (limits.free_space_low_bytes, free_bytes, mark) {
        (Some(low), Some(free), Some(mark)) if free < low => {
            mark.saturating_sub(free.saturating_add(reclaimed_bytes(plans)))
        }
        _ => 0,
    }
}

/// Returns the bytes that the plans return to the filesystem.
fn reclaimed_bytes(plans: &[RetentionPlan]) -> u64 {
    let decisions = plans.iter().flat_map(|plan| &plan.decisions);
    decisions
        .filter(|decision| decision.verdict != Verdict::Keep)
        .fold(0, |sum, decision| sum.saturating_add(decision.reclaimable_bytes))
}

fn warn_of_shortage(plans: &mut [RetentionPlan], limits: &LocalLimits, free_bytes: Option<u64>) {
    let mut warnings = Vec::new();
    let over_bytes = over_budget_bytes(plans, limits);
    if over_bytes > 0 {
        let missing = bytesize::ByteSize::b(over_bytes);
        warnings.push(format!(
            "the local tier stays {missing} over local.maximum-size: the remaining steps must be kept"
        ));
    }
    let short = short_bytes(plans, limits, free_bytes, high_mark(limits));
    if short > 0 {
        let missing = bytesize::ByteSize::b(short);
        let mut text =
            format!("the local disk stays {missing} short of free space: the remaining steps must be kept");
        let kept = plans.iter().flat_map(|plan| &plan.decisions);
        let linked_bytes = kept
            .filter(|decision| decision.verdict == Verdict::Keep)
            .map(|decision| decision.bytes.saturating_sub(decision.reclaimable_bytes))
            .fold(0, u64::saturating_add);
        if linked_bytes > 0 {
            let linked = bytesize::ByteSize::b(linked_bytes);
            text = format!(
                "{text}; {linked} of them are hard links to files of the trainer, and removing those frees no space"
            );
        }
        warnings.push(text);
    }
    if let Some(plan) = plans.last_mut() {
        plan.warnings.extend(warnings);
    }
}

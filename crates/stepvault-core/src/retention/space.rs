//! Evictions from the local tier to keep within its limits.

use super::plan::{Decision, RetentionPlan, Verdict};
use super::policy::LocalLimits;
use crate::observe::Tier;

/// Drops further local copies, oldest first over all runs, until `limits` are kept: `free_bytes` is what the file
/// system has free before any of the plans is carried out.
///
/// No guard gives way. What cannot be reached is said in the last plan's warnings.
pub fn evict_for_space(plans: &mut [RetentionPlan], limits: &LocalLimits, free_bytes: Option<u64>) {
    let total = |of: fn(&RetentionPlan) -> u64| plans.iter().map(of).fold(0_u64, u64::saturating_add);
    let (going_bytes, kept_bytes) = (total(|one| one.freed_bytes), total(|one| one.kept_bytes));
    let mut order: Vec<(usize, usize)> = Vec::new();
    for (which, plan) in plans.iter().enumerate() {
        if plan.tier == Tier::Local && plan.refusal.is_none() {
            let evictable = |decision: &Decision| {
                decision.verdict == Verdict::Keep && !decision.guarded && decision.bytes > 0
            };
            let places = plan
                .decisions
                .iter()
                .enumerate()
                .filter(|(_, decision)| evictable(decision));
            order.extend(places.map(|(place, _)| (which, place)));
        }
    }
    order.sort_by_key(|(which, place)| {
        let decision = &plans[*which].decisions[*place];
        (!decision.abandoned, decision.created, decision.id, *which)
    });
    let mut order = order.into_iter();

    let over_budget_bytes = limits
        .maximum_bytes
        .map_or(0, |most| kept_bytes.saturating_sub(most));
    let mut evicted_bytes = evict(plans, &mut order, over_budget_bytes, "over local.maximum-size");
    if over_budget_bytes > evicted_bytes {
        let missing = bytesize::ByteSize::b(over_budget_bytes - evicted_bytes);
        warn(
            plans,
            format!("the local tier stays {missing} over local.maximum-size: the rest must be kept"),
        );
    }
    // The mark is compared with what is free now: while the disk is low, retention's own deletions may suffice.
    let (Some(low), Some(free)) = (limits.free_space_low_bytes, free_bytes) else {
        return;
    };
    if free >= low {
        return;
    }
    let wanted_bytes = limits.free_space_high_bytes.unwrap_or(low).max(low);
    let will_be_free = |evicted_bytes| free.saturating_add(going_bytes).saturating_add(evicted_bytes);
    let short_bytes = wanted_bytes.saturating_sub(will_be_free(evicted_bytes));
    evicted_bytes = evicted_bytes.saturating_add(evict(
        plans,
        &mut order,
        short_bytes,
        "free space is below local.free-space-low",
    ));
    let missing_bytes = wanted_bytes.saturating_sub(will_be_free(evicted_bytes));
    if missing_bytes > 0 {
        let missing = bytesize::ByteSize::b(missing_bytes);
        warn(
            plans,
            format!("the local disk stays {missing} short of free space: the rest must be kept"),
        );
    }
}

/// Drops what `order` yields until `wanted_bytes` are freed; returns how many were.
fn evict(
    plans: &mut [RetentionPlan],
    order: &mut impl Iterator<Item = (usize, usize)>,
    wanted_bytes: u64,
    reason: &str,
) -> u64 {
    let mut evicted_bytes = 0_u64;
    while evicted_bytes < wanted_bytes {
        let Some((which, place)) = order.next() else { break };
        let plan = &mut plans[which];
        if plan.deletions_left == 0 {
            continue;
        }
        plan.deletions_left -= 1;
        let decision = &mut plan.decisions[place];
        decision.drop_for(reason.to_owned());
        let bytes = decision.bytes;
        evicted_bytes = evicted_bytes.saturating_add(bytes);
        plan.freed_bytes = plan.freed_bytes.saturating_add(bytes);
        plan.kept_bytes = plan.kept_bytes.saturating_sub(bytes);
    }
    evicted_bytes
}

fn warn(plans: &mut [RetentionPlan], message: String) {
    if let Some(plan) = plans.last_mut() {
        plan.warnings.push(message);
    }
}

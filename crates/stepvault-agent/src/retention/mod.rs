//! Retention of both tiers, and of the watched directories of runs with cleaning. The engine's plans decide what is
//! removed; this module decides when.

mod local;
mod remote;
mod source;

use stepvault_core::retention::{RefusalKind, RetentionPlan};

pub(crate) use local::LocalRetention;
pub(crate) use remote::{PruneTask, PrunedRun};
pub(crate) use source::clean_source;

/// Returns why a plan removes nothing at all. An empty tier is not reported.
fn refusal_of(plan: &RetentionPlan) -> Option<String> {
    let refusal = plan.refusal.as_ref();
    let refusal = refusal.filter(|refusal| refusal.kind != RefusalKind::ListingEmpty);
    refusal.map(|refusal| refusal.reason.clone())
}

/// Returns a plan's warnings and its refusal, as one text.
fn faults_of(plan: &RetentionPlan) -> String {
    let refusal = refusal_of(plan);
    let texts: Vec<String> = plan.warnings.iter().cloned().chain(refusal).collect();
    texts.join("; ")
}

//! Retention on both tiers: look, plan, then carry the plan out.

mod local;
mod remote;
mod removal;

pub use local::{LocalPrune, evict_planned, plan_local};
pub use remote::{RemotePrune, plan_remote, prune_remote};

use std::time::SystemTime;

use serde::Serialize;
use stepvault_core::ids::StepId;
use stepvault_core::retention::RetentionPlan;

/// What a prune of one tier came to.
#[derive(Debug, Serialize)]
pub struct PruneReport {
    /// What was decided.
    pub plan: RetentionPlan,
    /// Steps that were removed.
    pub removed: Vec<StepId>,
    /// Steps that the plan drops and that were kept in the end, and why.
    pub spared: Vec<(StepId, String)>,
}

/// The local clock, for dry runs alone: a real prune goes by the store's.
#[expect(
    clippy::disallowed_methods,
    reason = "a dry run writes nothing, so it has no store time to go by"
)]
pub(crate) fn local_now() -> SystemTime {
    SystemTime::now()
}

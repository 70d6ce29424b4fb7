//! Retention on both tiers: list, plan, then execute the plan.

mod erasure;
mod local;
mod remote;

pub use local::{LocalPrune, plan_local, prune_local, prune_local_runs};
pub use remote::{RemotePrune, plan_remote, prune_remote};

use serde::Serialize;
use stepvault_core::ids::StepId;
use stepvault_core::retention::RetentionPlan;

/// The outcome of pruning one tier.
#[derive(Debug, Serialize)]
pub struct PruneReport {
    /// The plan.
    pub plan: RetentionPlan,
    /// Steps that were removed.
    pub removed: Vec<StepId>,
    /// Steps of the local tier that were removed before they were durable, for lack of space.
    pub given_up: Vec<StepId>,
    /// Steps that were planned for removal but kept, with the reason.
    pub spared: Vec<(StepId, String)>,
}

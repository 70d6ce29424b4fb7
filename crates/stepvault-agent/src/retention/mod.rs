//! Keeping both tiers within their rules. What goes is decided by the engine's plans; here is only when.

mod local;
mod remote;

pub(crate) use local::{LocalRetention, LocalRun};
pub(crate) use remote::{PruneTask, PrunedRun};

//! Keeping both tiers within their rules, and the watched directories of runs that ask for it. What goes from a tier is
//! decided by the engine's plans; here is only when.

mod admission;
mod local;
mod remote;
mod source;

pub(crate) use local::{LocalRetention, LocalRun};
pub(crate) use remote::{PruneTask, PrunedRun};
pub(crate) use source::clean_source;

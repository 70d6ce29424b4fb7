//! Retention of both tiers, and of the watched directories of runs with cleaning. The engine's plans decide what is
//! removed; this module decides when.

mod admission;
mod local;
mod remote;
mod source;

pub(crate) use local::{LocalRetention, LocalRun};
pub(crate) use remote::{PruneTask, PrunedRun};
pub(crate) use source::clean_source;

//! What directories, disks and limits really do: each probe tries what the service is going to do, and cleans up.
//!
//! Probes block, on a dead mount for good: whoever calls them gives each a thread and a time limit.

pub mod directory;
pub mod leftovers;
pub mod links;
pub mod memory;
pub mod mounts;
mod place;
pub mod quota;
pub mod rates;
pub mod room;

pub(crate) use place::PROBE_PREFIX;

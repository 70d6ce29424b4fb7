//! Measures directories, disks and limits. Each probe performs the operations of the service and cleans up.
//!
//! Probes block, on a dead mount forever: the caller must run each in a thread of its own with a time limit.

pub mod directory;
pub mod leftovers;
pub mod mounts;
mod place;

pub(crate) use self::place::PROBE_PREFIX;

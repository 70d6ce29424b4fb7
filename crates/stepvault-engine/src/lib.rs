//! What stepvault does over its tiers: upload, restore, verify, prune, gc.
//!
//! The engine draws nothing, prints nothing and never ends the process; it reports by values and by the observer.

pub mod blocking;
mod broken_body;
pub mod catalog;
pub mod content;
pub mod doctor;
pub mod drains;
pub mod explain;
pub mod gc;
pub mod incomplete;
pub mod inspect;
mod launches;
pub mod leases;
pub mod local_digest;
pub mod memory;
pub mod metrics;
pub mod pins;
mod profiles;
pub mod prune;
pub mod push;
pub mod restore;
pub mod run_remote;
pub mod save;
pub mod size;
pub mod starts;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod test_remote;
pub mod upload;
pub mod verify;
mod workers;

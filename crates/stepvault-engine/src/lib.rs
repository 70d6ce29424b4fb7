//! The operations of stepvault over its tiers: push, upload, restore, save, verify, prune and gc.
//!
//! The engine carries out what the plans of `stepvault-core` decide. It owns the memory budget of transfers, the leases
//! and the agreement of several nodes.
//!
//! It must not draw, print or end the process: it reports by return values and by the
//! [`Observer`](stepvault_core::observe::Observer) that its caller passes.
//!
//! Main types and functions:
//!
//! - [`push::push`]: seals a finished checkpoint and uploads it to every remote.
//! - [`restore::restore`], with [`restore::RestoreRequest`] and [`restore::RestoreReport`].
//! - [`tier::run_remote::RunRemote`]: one run on one remote.
//! - [`tier::catalog`]: what stands on a remote: commits, manifests, pins, the nodes of an attempt.
//! - [`tier::step_state`]: which steps are visible, durable, given up.
//! - [`prune`] and [`gc`]: deletion by rules, and deletion of orphans.
//! - [`verify`]: compares what a tier holds with what was saved.
//! - [`memory::MemoryBudget`]: the buffers of all transfers.
//!
//! # Example
//!
//! ```no_run
//! use stepvault_core::ids::StepId;
//! use stepvault_engine::tier::run_remote::RunRemote;
//! use stepvault_engine::tier::step_state::visible_steps;
//!
//! /// Returns the newest step that readers of a remote see.
//! async fn newest(remote: &RunRemote) -> stepvault_core::Result<Option<StepId>> {
//!     let visible = visible_steps(remote).await?;
//!     Ok(visible.keys().next_back().copied())
//! }
//! ```
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod blocking;
pub mod content;
pub mod copy;
pub mod cpu_share;
pub mod doctor;
pub mod exclusive;
pub mod explain;
pub mod follow;
pub mod gc;
pub mod import;
pub mod inspect;
pub mod launches;
pub mod local_digest;
pub mod memory;
pub mod node_records;
mod notes;
mod observed;
pub mod outage;
pub mod placement;
pub mod prune;
pub mod push;
mod remote_file;
pub mod restore;
pub mod save;
mod seen_checkpoints;
pub mod size;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod test_remote;
pub mod tier;
pub mod upload;
pub mod verify;

pub use self::blocking::blocking;
pub use self::tier::run_remote::RunRemote;

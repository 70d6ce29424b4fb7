//! One run on one remote, in layers: what the vault remembers of it (`notes`, `archives`), the store that counts only with
//! its marker (`marked_store`), the records on it (`run_remote`, `catalog`, `leases`, `pins`), and what follows from them
//! (`step_state`, `lost_steps`).

pub mod archives;
pub mod catalog;
mod commit_cache;
pub(crate) mod concurrency;
pub mod guarantees;
pub mod leases;
pub(crate) mod listed;
pub mod lost_steps;
mod marked_store;
mod notes;
pub mod pins;
pub(crate) mod retired;
pub mod run_remote;
pub mod step_state;
pub(crate) mod written_record;

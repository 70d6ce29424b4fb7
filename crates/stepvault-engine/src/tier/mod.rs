//! One run on one remote, in layers: what the vault remembers of it (`cache`, `measured`, `commit_cache`), the store that
//! counts only with its marker (`marked_store`), the records on it (`run_remote`, `catalog`, `removed`, `leases`, `pins`),
//! and what follows from them (`step_state`).

pub mod cache;
pub mod catalog;
mod commit_cache;
pub mod leases;
mod marked_store;
pub mod measured;
pub mod pins;
pub mod removed;
pub mod run_remote;
pub mod step_state;

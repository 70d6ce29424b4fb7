//! One run on one remote, in layers: what the vault remembers of it (`cache`, `measured`), the store that
//! counts only with its marker (`marked_store`), the records on it (`run_remote`, `catalog`, `removed`, `leases`),
//! and what follows from them (`step_state`, `selective`).

pub mod cache;
pub mod catalog;
pub mod leases;
mod marked_store;
pub mod measured;
pub mod removed;
pub mod run_remote;
pub mod runs;
pub mod selective;
pub mod step_state;

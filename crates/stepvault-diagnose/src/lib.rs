//! The judgements behind `doctor`, `explain` and `estimate`.
//!
//! Everything here is a function from facts to findings and texts. The facts are measured by other crates
//! ([`stepvault_core::disk_facts`], [`stepvault_core::store_facts`]); nothing here touches a disk, a network, a clock or a
//! runtime.
//!
//! - [`doctor`]: what facts about directories, disks, limits and remotes mean before training starts.
//! - [`explain`]: the likely causes of a failure, from logs, records and the state of disks.
//! - [`estimate`]: how large steps will be, how much space the tiers need, and how long uploads take.
//!
//! # Example
//!
//! ```
//! use stepvault_core::disk_facts::MemoryFacts;
//! use stepvault_diagnose::doctor::Outcome;
//! use stepvault_diagnose::doctor::memory::memory;
//!
//! let facts = MemoryFacts {
//!     source: "cgroup /trainer".to_owned(),
//!     limit_bytes: 200 << 20,
//!     used_bytes: 10 << 20,
//! };
//! assert_eq!(memory(Some(&facts), 128 << 20).outcome, Outcome::Fail);
//! ```
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod doctor;
pub mod estimate;
pub mod explain;

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

/// Reads texts that are part of the program. A test reads each file, so that none counts as empty here.
fn table<T: DeserializeOwned + Default>(file: &str) -> T {
    toml::from_str(file).unwrap_or_default()
}

/// Reads the entries of a file that is one list.
fn entries<T: DeserializeOwned>(file: &str) -> Vec<T> {
    table::<BTreeMap<String, Vec<T>>>(file).into_values().flatten().collect()
}

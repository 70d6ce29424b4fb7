//! A seeded simulation: agents, pruners, gc runs, copies, followers and readers over in-memory stores, in virtual time, with crashes,
//! frozen machines, partitions, delays, lost responses, repeated requests and clocks that are off by days. The engine
//! and the vaults are the real ones.
//!
//! `STEPVAULT_SIMULATION_SEED=N` runs one seed and prints its trace; `STEPVAULT_SIMULATION_SEEDS=N` runs N seeds,
//! starting from `STEPVAULT_SIMULATION_FIRST=N`. `STEPVAULT_SIMULATION_BUG=NAME` looks for one planted bug.
#![allow(
    unreachable_pub,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]

mod actor;
mod agent;
mod content;
mod contract;
mod copies;
mod deeds;
mod faults;
mod followers;
mod invariants;
mod link;
mod machine;
mod planted;
mod races;
mod seeds;
mod settle;
mod store;
mod team;
mod trace;
mod trainer;
mod world;

//! `stepvault doctor` with the built binary and real faults: full disks, disks without inodes, read-only mounts, other
//! users, dead mounts, memory limits.
//!
//! The tests mount in their own mount namespace, which ends with the command. Where that is not possible, a test prints
//! so and is skipped.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests fails as a test does"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests write and damage files as nobody else may"
)]
#![allow(
    clippy::print_stderr,
    reason = "a test that cannot be run on this machine says so"
)]

mod disks;
mod feasible;
mod leftovers;
mod limits;
mod mounts;
mod notices;
mod place;
mod remote_place;
mod remotes;
mod rights;
mod uploads;
mod users;
mod variables;

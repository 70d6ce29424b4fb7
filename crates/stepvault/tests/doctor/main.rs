//! `stepvault doctor` through the built binary, on real faults: full disks, disks without inodes, read-only mounts, other
//! users, dead mounts, memory limits.
//!
//! Mounts are made in a mount namespace of the test's own, which ends with the command. Where none can be made, the test
//! says so and does nothing.

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

//! Faults injected into the built binary: killed at its system calls, its power cut, its disks failing, its network
//! broken, its stores refusing, lying and forgetting, its objects rotten.
//!
//! Whatever happens, every step that was acknowledged is still there to the last byte, nothing that a reader sees is
//! torn, and the same command goes on without help.
//!
//! Without anything in the environment a small sample runs, from a fixed seed. `FAULTS_SEED` names another,
//! `FAULTS_RUNS` says how many runs each row has, `FAULTS_FULL=1` strikes every call of the sweeps and runs hundreds of the
//! rest; see `scripts/fault`. `FAULTS_REPORT` names a file that gets each row's counts.
//!
//! Tracing takes Linux on x86-64. Disks that lose power and disks that fill up take root, loop devices and mount
//! namespaces. What cannot be had is said on standard error and not run; with `FAULTS_REQUIRED=1` it fails instead.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a helper of tests fails as a test does, and writes files as a trainer does"
)]

mod agent;
mod ambiguous;
mod calls;
mod check;
mod credentials;
mod errors;
mod false_success;
mod image;
mod kills;
mod limits;
mod names;
mod network;
mod operations;
mod order;
mod power;
mod random;
mod read_only;
mod rot;
mod rot_in_vault;
mod settings;
mod source_changes;
mod space;
mod storm;
mod sweep;
mod tally;
mod tracer;
mod uploads;
mod world;

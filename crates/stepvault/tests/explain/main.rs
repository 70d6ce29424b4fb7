//! `explain` with real faults: full disks, read-only mounts, directories of another user, steps that real frameworks
//! left half-written, restart loops, logs.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests fails as a test does"
)]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests write and damage files as nobody else may, and say what they could not do"
)]

mod disks;
mod logs;
mod memory;
mod place;
mod resume;
mod starts;
mod steps;
mod uploads;

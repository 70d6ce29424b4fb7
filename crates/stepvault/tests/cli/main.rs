//! The built binary, as people and scripts call it: arguments, output, exit codes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests fails as a test does"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests write and damage files as nobody else may"
)]

mod configuration;
mod control;
mod demo;
mod drain;
mod estimate;
mod exit_codes;
mod retention;
mod round_trip;
mod run;
mod support;
mod tiers;
mod usage;

//! Tests of the built binary as people and scripts call it: arguments, output, exit codes.

#![allow(clippy::print_stderr, reason = "what is not run is said")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests fails as a test does"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests write and damage files as nobody else may"
)]

mod agent_truth;
mod away_at_placement;
mod configuration;
mod constant_names;
mod control;
mod credentials;
mod demo;
mod drain;
mod estimate;
mod exit_codes;
mod given_up;
mod kept_of_a_file;
mod other_users;
mod outage;
mod resumed_uploads;
mod retention;
mod round_trip;
mod run;
mod support;
mod tiers;
mod usage;

//! Tests of the built binary as people and scripts call it: arguments, output, exit codes.

#![allow(
    unreachable_pub,
    missing_docs,
    clippy::case_sensitive_file_extension_comparisons,
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    clippy::duration_suboptimal_units,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::single_match_else,
    clippy::type_complexity,
    clippy::unwrap_used,
    reason = "a helper of tests fails as a test does, writes and damages files as nobody else may, and says what is \
              not run"
)]

mod agent_truth;
mod archived;
mod away_at_placement;
mod best_steps;
mod changed_steps;
mod configuration;
mod constant_names;
mod control;
mod copy;
mod credentials;
mod dashboard;
mod dead_remote;
mod demo;
mod doctor;
mod drain;
mod early_links;
mod estimate;
mod exit_codes;
mod explain;
mod first_run;
mod fixtures;
mod follow;
mod given_up;
mod going_back;
mod import;
mod kept_of_a_file;
mod last_agent;
mod layouts;
mod metrics_file;
mod not_the_store;
mod notifications;
mod other_users;
mod outage;
mod planned;
mod previous_job;
mod push_in_place;
mod ranks;
mod resumed_uploads;
mod retention;
mod round_trip;
mod run;
mod scenario;
mod selective;
mod service_log;
mod support;
mod sweeps;
mod tiers;
mod tls;
mod traces;
mod unnumbered;
mod usage;
mod watched;
mod without_stepvault;

//! Checks the documents against the program: generated ones are up to date, and every documented command runs.
//!
//! `STEPVAULT_BLESS=1 cargo test -p stepvault --bin stepvault --test docs` regenerates the generated documents.

#![allow(clippy::print_stderr, reason = "what is not run is said")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of tests fails as a test does"
)]
#![allow(clippy::disallowed_methods, reason = "tests write documents and checkpoints as nobody else may")]

mod bounds;
mod cloud_rights;
mod commands;
mod configuration;
mod control;
mod example;
mod exit_codes;
mod formats;
mod generated;
mod json;
mod keys_in_texts;
mod links;
mod markdown;
mod mentions;
mod place;
mod profiles;
mod runs;
mod security;
mod service_configurations;
mod service_files;
mod service_invocations;
mod service_jobs;
mod service_pods;
mod service_scripts;

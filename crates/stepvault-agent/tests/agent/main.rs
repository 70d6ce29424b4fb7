//! The service as its user meets it: a trainer's directory on one side, remotes on the other.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::float_cmp,
    missing_docs,
    unreachable_pub,
    reason = "test code writes as trainers do"
)]

mod ahead;
mod control;
mod discovery;
mod drain;
mod early_links;
mod every_entry;
mod fixtures;
mod harness;
mod hostile_clients;
mod hundred_drains;
mod interruption;
mod left_behind;
mod metrics;
mod missing_files;
mod missing_nodes;
mod notices;
mod notifications;
mod once;
mod options;
mod remotes;
mod retention;
mod rewriting;
mod rotation;
mod selective;
mod several_paths;
mod small_steps;
mod source;
mod space;
mod starts;
mod support;
mod unnumbered;

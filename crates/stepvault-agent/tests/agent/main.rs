//! The service as its user meets it: a trainer's directory on one side, remotes on the other.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub,
    reason = "test code writes as trainers do"
)]

mod discovery;
mod drain;
mod fixtures;
mod harness;
mod interruption;
mod missing_nodes;
mod once;
mod options;
mod remotes;
mod retention;
mod rewriting;
mod rotation;
mod several_paths;
mod source;
mod space;
mod support;

//! Tests of the local tier against real filesystems.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr
)]
#![allow(missing_docs)]

mod compare;
mod early_links;
mod journal;
mod killed;
mod limits;
mod placing;
mod restore;
mod restore_attacks;
mod restore_members;
mod seal;
mod seal_races;
mod sealed;
mod support;
mod tree;

//! The engine against real directories and strict servers.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod damage;
mod harness;
mod interruption;
mod placement;
mod retention;
mod round_trip;
mod sweep;

//! The engine against real directories and strict servers.
#![allow(
    unreachable_pub,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::default_trait_access,
    clippy::decimal_bitwise_operands,
    clippy::disallowed_methods,
    clippy::duration_suboptimal_units,
    clippy::expect_used,
    clippy::panic,
    clippy::type_complexity,
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it, and handle small numbers"
)]

mod ahead;
mod blake3;
mod contradictions;
mod copies;
mod copying;
mod damage;
mod denials;
mod doctor_remote;
mod follow;
mod gc;
mod harness;
mod import;
mod inspect_remote;
mod interruption;
mod late_writer;
mod many_steps;
mod outage;
mod placement;
mod pruning;
mod round_trip;
mod scale;
mod selective;
mod several_nodes;
mod shared_digests;
mod short_memory;
mod starts;
mod trust_store;
mod two_endpoints;
mod unreadable;
mod versions;

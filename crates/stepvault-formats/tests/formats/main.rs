//! Checks of formats against files that frameworks wrote, and against the same files damaged.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests, outside of test functions, say what they expect by unwrapping it as well"
)]

mod torch;

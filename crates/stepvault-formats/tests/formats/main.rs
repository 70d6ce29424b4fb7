//! Tests over whole directories and real checkpoints.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, outside of test functions, say what they expect by unwrapping it as well"
)]

mod directory;
mod profiles;

//! Formats and frameworks, checked on real checkpoints and on what damage makes of them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, outside of test functions, say what they expect by unwrapping it as well"
)]

mod checkpoint;
mod directory;
mod megatron;
mod ocdbt;
mod orbax;
mod profiles;
mod tf_bundle;
mod torch;
mod zarr;

//! Formats, checked on real checkpoints and on what damage makes of them.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod checkpoint;
mod megatron;
mod ocdbt;
mod orbax;
mod tf_bundle;
mod zarr;

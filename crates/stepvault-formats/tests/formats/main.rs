//! Formats and frameworks, tested on real checkpoints and on damaged copies.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, outside of test functions, say what they expect by unwrapping it as well"
)]

mod checkpoint;
mod directory;
mod gguf;
mod hf_index;
mod json;
mod kind;
mod megatron;
mod npy;
mod npz;
mod ocdbt;
mod orbax;
mod profiles;
mod safetensors;
mod steps;
mod support;
mod tf_bundle;
mod torch;
mod whole_files;
mod zarr;

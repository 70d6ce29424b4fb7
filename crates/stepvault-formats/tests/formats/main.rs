//! The structural checks, run over real checkpoints and over what damage makes of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod gguf;
mod hf_index;
mod json;
mod kind;
mod npy;
mod npz;
mod safetensors;
mod support;

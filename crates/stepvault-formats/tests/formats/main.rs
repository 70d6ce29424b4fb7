//! The structural checks, run over real checkpoints and over what damage makes of them.

mod json;
mod safetensors;
mod support;

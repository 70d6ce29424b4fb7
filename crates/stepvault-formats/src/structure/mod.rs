//! Checks that one file, or several files that belong together, obey the rules of their format.
//!
//! The checks read headers and tables, never tensors. They compare the claims of a header with the size of the file
//! and with a named limit before they allocate or walk anything.

pub(crate) mod cursor;
pub mod dcp;
pub mod deepspeed;
mod directory;
mod elements;
pub mod gguf;
pub mod hdf5;
pub mod hf_index;
pub mod json;
pub mod kind;
pub mod megatron;
pub mod msgpack;
pub mod npy;
pub mod npz;
pub mod ocdbt;
pub mod orbax;
pub mod pickle_file;
pub mod rank_set;
pub mod safetensors;
pub mod tar;
pub(crate) mod text;
pub mod tf_bundle;
pub mod torch;
pub mod torch_legacy;
mod torch_storage;
pub mod torch_zip;
pub mod yaml;
pub mod zarr;
pub mod zip;
mod zstd;

#[cfg(test)]
pub(crate) mod tests;

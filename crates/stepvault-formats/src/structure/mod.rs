//! Whether the files of a checkpoint are whole, format by format: headers are read, tensors never.

mod cursor;
pub mod dcp;
pub mod deepspeed;
pub mod finding;
pub mod megatron;
pub mod msgpack;
pub mod ocdbt;
pub mod orbax;
pub mod pickle_file;
mod place;
pub mod tf_bundle;
pub mod torch;
pub mod torch_legacy;
mod torch_storage;
pub mod torch_zip;
pub mod zarr;
pub mod zip;
mod zstd;

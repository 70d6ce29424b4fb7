//! Whether the files of a checkpoint are whole, format by format: headers are read, tensors never.

mod cursor;
pub mod megatron;
pub mod msgpack;
pub mod ocdbt;
pub mod orbax;
mod place;
pub mod tf_bundle;
pub mod zarr;
mod zstd;

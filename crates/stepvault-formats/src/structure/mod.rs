//! Whether the files of a checkpoint are whole, format by format: headers are read, tensors never.

mod cursor;
pub mod msgpack;
pub mod ocdbt;
pub mod orbax;
mod place;
pub mod zarr;
mod zstd;

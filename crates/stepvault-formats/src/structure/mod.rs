//! Whether files of a format hold together: one module a format.

pub mod dcp;
pub mod deepspeed;
pub mod finding;
pub mod pickle_file;
pub mod torch;
pub mod torch_legacy;
mod torch_storage;
pub mod torch_zip;
pub mod zip;

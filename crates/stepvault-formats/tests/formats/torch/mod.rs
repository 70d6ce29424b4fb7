//! Formats that `torch` writes.

pub(crate) mod archive;
mod dcp;
mod deepspeed;
mod hostile;
mod legacy;
mod real;
mod support;
mod trap;
mod zip;

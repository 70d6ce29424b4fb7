//! Formats that `torch` writes.

mod archive;
mod dcp;
mod deepspeed;
mod hostile;
mod legacy;
mod real;
mod support;
mod trap;
mod zip;

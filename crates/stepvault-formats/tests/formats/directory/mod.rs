//! Directories for tests: on disk, from the archives of real checkpoints, and written by hand.

pub(crate) mod archive;
pub(crate) mod memory;

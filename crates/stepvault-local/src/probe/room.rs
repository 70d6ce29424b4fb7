//! Free space of a filesystem, as the checks need it.

use std::path::Path;

use stepvault_core::Result;
use stepvault_core::room::Room;

use crate::space;

/// A filesystem and its free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Device number, which identifies the filesystem.
    pub device: u64,
    /// Free bytes and inodes.
    pub room: Room,
}

/// Returns the filesystem that holds `path`, or will hold it.
///
/// # Errors
/// When its free space cannot be read.
pub fn disk(path: &Path) -> Result<Disk> {
    Ok(Disk { device: space::device(path)?, room: space::free(path)? })
}

//! What a filesystem has left, in the words of the checks.

use std::path::Path;

use stepvault_core::Result;
use stepvault_core::room::Room;

use crate::space;

/// A filesystem, and what it has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Tells filesystems apart.
    pub device: u64,
    /// What it has left.
    pub room: Room,
}

/// The filesystem that holds `path`, or will.
///
/// # Errors
/// When it cannot be asked.
pub fn disk(path: &Path) -> Result<Disk> {
    Ok(Disk {
        device: space::device(path)?,
        room: space::free(path)?,
    })
}

//! What a filesystem, or a user's quota on it, has left.

/// What may still be written to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that may still be written.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Files that may still be created; `None` where nothing limits them.
    pub free_inodes: Option<u64>,
    /// Files in all; `None` where nothing limits them.
    pub total_inodes: Option<u64>,
}

impl Room {
    /// Whether so many files and directories cannot be created any more.
    pub fn lacks_inodes(&self, inodes: u64) -> bool {
        self.free_inodes.is_some_and(|free| free < inodes)
    }
}

//! Free space of a filesystem, or of a user's quota on it.

/// The free space of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that may still be written.
    pub free_bytes: u64,
    /// Bytes in total.
    pub total_bytes: u64,
    /// Files that may still be created; `None` if they are not limited.
    pub free_inodes: Option<u64>,
    /// Files in total; `None` if they are not limited.
    pub total_inodes: Option<u64>,
}

impl Room {
    /// Returns whether fewer than this many files and directories can be created.
    pub fn lacks_inodes(&self, inodes: u64) -> bool {
        self.free_inodes.is_some_and(|free| free < inodes)
    }

    /// Returns the free space under both limits: the filesystem and a user's quota on it.
    #[must_use]
    pub fn within(self, quota: Option<Self>) -> Self {
        let Some(quota) = quota else { return self };
        let less = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self {
            free_bytes: self.free_bytes.min(quota.free_bytes),
            total_bytes: self.total_bytes.min(quota.total_bytes),
            free_inodes: less(self.free_inodes, quota.free_inodes),
            total_inodes: less(self.total_inodes, quota.total_inodes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_counts_where_it_leaves_less() {
        let disk = Room { free_bytes: 100, total_bytes: 1000, free_inodes: Some(7), total_inodes: Some(70) };
        let quota = Room { free_bytes: 200, total_bytes: 300, free_inodes: None, total_inodes: None };
        assert_eq!(disk.within(None), disk);
        let both = Room { total_bytes: 300, ..disk };
        assert_eq!((disk.within(Some(quota)), quota.within(Some(disk))), (both, both));
        let few = Room { free_inodes: Some(3), ..quota };
        assert_eq!(disk.within(Some(few)).free_inodes, Some(3));
    }
}

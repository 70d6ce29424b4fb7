//! Remaining quota of this user on a filesystem.
//!
//! Quotas of users and groups are read from the kernel by block device. Project quotas need no query, since XFS and
//! ext4 include them in their free space. NFS keeps its quotas on the server and is not queried: there a full quota
//! shows only when something is written.

use std::path::Path;

use nix::sys::quota::{Dqblk, QuotaType, quotactl_get};
use stepvault_core::disk_facts::MountFacts;
use stepvault_core::room::Room;

/// Unit in which the kernel counts limits.
const BLOCK_BYTES: u64 = 1024;

/// Returns what is left of the tightest quota of this user and group, or `None` where there is none or it may not be
/// read.
pub fn quota(mount: &MountFacts) -> Option<Room> {
    let device = Path::new(&mount.source);
    // The kernel does not apply quotas to the superuser.
    if !device.starts_with("/dev") || rustix::process::geteuid().is_root() {
        return None;
    }
    let of = |kind, number: u32| {
        let limits = quotactl_get(kind, device, i32::try_from(number).ok()?);
        limits
            .inspect_err(|error| tracing::debug!(%error, device = %device.display(), "cannot read the quota"))
            .ok()
            .and_then(|limits| room(&limits))
    };
    let user = of(QuotaType::USRQUOTA, rustix::process::geteuid().as_raw());
    let group = of(QuotaType::GRPQUOTA, rustix::process::getegid().as_raw());
    [user, group].into_iter().flatten().min_by_key(|room| room.free_bytes)
}

/// A limit of 0 means no limit.
fn room(limits: &Dqblk) -> Option<Room> {
    let total_bytes = limits
        .blocks_hard_limit()
        .filter(|blocks| *blocks > 0)
        .map(|blocks| blocks.saturating_mul(BLOCK_BYTES));
    let total_inodes = limits.inodes_hard_limit().filter(|inodes| *inodes > 0);
    if total_bytes.is_none() && total_inodes.is_none() {
        return None;
    }
    let total_bytes = total_bytes.unwrap_or(u64::MAX);
    let used_inodes = limits.allocated_inodes().unwrap_or_default();
    Some(Room {
        free_bytes: total_bytes.saturating_sub(limits.occupied_space().unwrap_or_default()),
        total_bytes,
        free_inodes: total_inodes.map(|total| total.saturating_sub(used_inodes)),
        total_inodes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_nothing_is_none() {
        let mut limits = Dqblk::default();
        assert_eq!(room(&limits), None);
        limits.set_blocks_hard_limit(10);
        // Values that the kernel has not marked as valid do not count.
        assert_eq!(room(&limits), None);
    }

    #[test]
    fn what_is_on_no_device_has_none() {
        let mount = MountFacts {
            kind: "tmpfs".to_owned(),
            source: "tmpfs".to_owned(),
            mount_point: "/".to_owned(),
            read_only: false,
        };
        assert_eq!(quota(&mount), None);
    }
}

//! Measures the condition of a directory without writing to it: whether it exists, who may write to it, and how much
//! space its filesystem has left.

use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags};
use rustix::io::Errno;
use stepvault_core::Result;
use stepvault_core::disk_facts::{DirectoryAccess, DirectoryCondition, DirectoryRole};

use crate::errors;
use crate::probe::mounts::Mounts;
use crate::space;

/// The condition of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Measured facts.
    pub facts: DirectoryCondition,
    /// Device number of its filesystem; equal for two directories on one filesystem.
    pub device: Option<u64>,
}

/// Measures a directory. Blocks for as long as the filesystem does not answer.
pub fn directory_condition(role: DirectoryRole, path: &Path) -> Condition {
    let stat = rustix::fs::stat(path);
    let mount = rustix::fs::statvfs(path).ok();
    let room = space::free(path).ok().filter(|_| stat.is_ok());
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let is_read_only = mount.is_some_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY))
        || stat.is_ok() && Mounts::read().of(path).is_some_and(|mount| mount.read_only);
    let may_write = || rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS).is_ok();
    let access = match (&stat, is_read_only) {
        // A directory above it denies access to this user.
        (Err(Errno::ACCESS), _) => DirectoryAccess::Forbidden,
        // A FUSE or network filesystem that is no longer reachable.
        (Err(Errno::NOTCONN | Errno::STALE | Errno::IO | Errno::HOSTDOWN | Errno::TIMEDOUT), _) => {
            DirectoryAccess::Silent
        }
        (Err(_), _) => DirectoryAccess::Missing,
        (Ok(_), true) => DirectoryAccess::ReadOnly,
        (Ok(_), false) if may_write() => DirectoryAccess::Writable,
        (Ok(_), false) => DirectoryAccess::Forbidden,
    };
    let silent = silent(role, path);
    Condition {
        facts: DirectoryCondition {
            access,
            room,
            owner: stat.as_ref().ok().map(|stat| stat.st_uid),
            ..silent.facts
        },
        device: stat.ok().map(|stat| stat.st_dev),
    }
}

/// Refuses a directory that the sandbox of a service or of a container makes read-only. Other faults are left to those who
/// write to it. Blocks for as long as the filesystem does not answer.
pub fn refuse_read_only_mount(path: &Path) -> Result<()> {
    if Mounts::read().hide_writable(path) {
        return Err(errors::io("cannot write", path, Errno::ROFS));
    }
    Ok(())
}

/// Returns the condition of a directory whose filesystem did not answer.
pub fn silent(role: DirectoryRole, path: &Path) -> Condition {
    let facts = DirectoryCondition {
        role,
        path: path.display().to_string(),
        access: DirectoryAccess::Silent,
        room: None,
        user: rustix::process::geteuid().as_raw(),
        owner: None,
    };
    Condition { facts, device: None }
}

/// Returns the kernel's names for the filesystem's block device and for the disk that contains it; empty when it has
/// none.
pub fn block_devices(device: u64) -> Vec<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(target) = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")) else {
        return Vec::new();
    };
    // `../../devices/pci…/nvme0n1/nvme0n1p1`
    let is_part = std::fs::exists(format!("/sys/dev/block/{major}:{minor}/partition")).unwrap_or(false);
    let names = target.components().rev().take(if is_part { 2 } else { 1 });
    names.map(|name| name.as_os_str().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_looked_at_and_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let found = directory_condition(DirectoryRole::Checkpoints, place.path());
        assert_eq!(found.facts.access, DirectoryAccess::Writable);
        assert!(found.facts.room.unwrap().total_bytes > 0);
        assert_eq!(found.facts.owner, Some(found.facts.user));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        // A filesystem in memory has no block device, and device number 0 is never used.
        assert!(block_devices(0).is_empty());
        assert!(found.device.map(block_devices).unwrap().len() <= 2);
        let missing = directory_condition(DirectoryRole::Checkpoints, &place.path().join("nothing"));
        assert_eq!(missing.facts.access, DirectoryAccess::Missing);
        assert!(missing.facts.room.is_none() && missing.device.is_none());
        assert_eq!(
            directory_condition(DirectoryRole::Vault, Path::new("/proc")).facts.room.unwrap().total_bytes,
            0
        );
    }
}

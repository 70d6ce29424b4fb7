//! The condition of a directory: whether it is there, who may write to it, and what its filesystem has left. Nothing is
//! written to find out.

use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags};
use rustix::io::Errno;
use stepvault_core::explain::{PlaceFacts, Role, Standing};

use crate::probe::mounts::Mounts;
use crate::space;

/// A directory's condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// What was measured.
    pub facts: PlaceFacts,
    /// Its filesystem, to tell whether two directories share one.
    pub device: Option<u64>,
}

/// Looks at a directory. It blocks for as long as the filesystem does not answer.
pub fn look(role: Role, path: &Path) -> Condition {
    let stat = rustix::fs::stat(path);
    let mount = rustix::fs::statvfs(path).ok();
    let room = space::free(path).ok().filter(|_| stat.is_ok());
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let is_read_only = mount.is_some_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY))
        || stat.is_ok() && Mounts::read().of(path).is_some_and(|mount| mount.read_only);
    let may_write = || rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS).is_ok();
    let standing = match (&stat, is_read_only) {
        // A directory above it keeps this user out.
        (Err(Errno::ACCESS), _) => Standing::Forbidden,
        // A FUSE or network filesystem that has gone.
        (Err(Errno::NOTCONN | Errno::STALE | Errno::IO | Errno::HOSTDOWN | Errno::TIMEDOUT), _) => {
            Standing::Silent
        }
        (Err(_), _) => Standing::Missing,
        (Ok(_), true) => Standing::ReadOnly,
        (Ok(_), false) if may_write() => Standing::Writable,
        (Ok(_), false) => Standing::Forbidden,
    };
    let facts = PlaceFacts {
        role,
        path: path.display().to_string(),
        standing,
        room,
        user: rustix::process::geteuid().as_raw(),
        owner: stat.as_ref().ok().map(|stat| stat.st_uid),
    };
    Condition {
        facts,
        device: stat.ok().map(|stat| stat.st_dev),
    }
}

/// A directory whose filesystem did not answer.
pub fn silent(role: Role, path: &Path) -> Condition {
    let facts = PlaceFacts {
        role,
        path: path.display().to_string(),
        standing: Standing::Silent,
        room: None,
        user: rustix::process::geteuid().as_raw(),
        owner: None,
    };
    Condition { facts, device: None }
}

/// What the kernel calls a filesystem's block device, and the disk that it is a part of; nothing for one that has none.
pub fn block_devices(device: u64) -> Vec<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(target) = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")) else {
        return Vec::new();
    };
    // `../../devices/pci…/nvme0n1/nvme0n1p1`
    let is_part = std::fs::exists(format!("/sys/dev/block/{major}:{minor}/partition")).unwrap_or(false);
    let names = target.components().rev().take(if is_part { 2 } else { 1 });
    names
        .map(|name| name.as_os_str().to_string_lossy().into_owned())
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_looked_at_and_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let found = look(Role::Checkpoints, place.path());
        assert_eq!(found.facts.standing, Standing::Writable);
        assert!(found.facts.room.unwrap().total_bytes > 0);
        assert_eq!(found.facts.owner, Some(found.facts.user));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        // A filesystem in memory has no device of this kind, and nobody a device of number 0.
        assert!(block_devices(0).is_empty());
        assert!(found.device.map(block_devices).unwrap().len() <= 2);
        let missing = look(Role::Checkpoints, &place.path().join("nothing"));
        assert_eq!(missing.facts.standing, Standing::Missing);
        assert!(missing.facts.room.is_none() && missing.device.is_none());
        assert_eq!(
            look(Role::Vault, Path::new("/proc"))
                .facts
                .room
                .unwrap()
                .total_bytes,
            0
        );
    }
}

//! Free space and inodes, and between which paths files can be renamed and linked.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use stepvault_core::Result;
use stepvault_core::room::Room;

use crate::errors::{self, IoAt as _};

/// Returns the space of the filesystem that holds `path`, or will hold it: the nearest existing directory above is
/// used.
pub fn free(path: &Path) -> Result<Room> {
    let place = nearest_existing(path);
    let facts = rustix::fs::statvfs(&place).at("cannot read the free space", &place)?;
    // btrfs and some network filesystems create inodes as needed and report 0 of 0.
    let limited = facts.f_files != 0;
    Ok(Room {
        free_bytes: facts.f_bavail.saturating_mul(facts.f_frsize),
        total_bytes: facts.f_blocks.saturating_mul(facts.f_frsize),
        free_inodes: limited.then_some(facts.f_favail),
        total_inodes: limited.then_some(facts.f_files),
    })
}

/// Like [`free`], after pending operations were written: btrfs frees the blocks of removed files with its next commit.
/// If the sync fails, the free space is read anyway.
pub fn free_after_sync(path: &Path) -> Result<Room> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(place) = rustix::fs::open(nearest_existing(path), flags, Mode::empty()) {
        let _ = rustix::fs::syncfs(&place);
    }
    free(path)
}

/// Returns whether a file can be renamed and hard-linked between the two paths: same filesystem and same mount. For a
/// path that does not exist yet, the nearest existing directory above counts.
pub fn same_filesystem(first: &Path, second: &Path) -> Result<bool> {
    Ok(mount_of(first)? == mount_of(second)?)
}

/// Returns the number of the filesystem that holds `path`, or will hold it.
pub(crate) fn device(path: &Path) -> Result<u64> {
    mount_of(path).map(|(device, _)| device)
}

/// Returns the mount ID, or `None` where the kernel does not report it.
pub(crate) fn mount(path: &Path) -> Result<Option<u64>> {
    mount_of(path).map(|(_, mount)| mount)
}

/// Returns device and mount ID: two bind mounts of one filesystem share the device, but files cannot be renamed between
/// them.
fn mount_of(path: &Path) -> Result<(u64, Option<u64>)> {
    let place = nearest_existing(path);
    let fault = |error: Errno| errors::io("cannot identify the filesystem", &place, error);
    let stat = rustix::fs::stat(&place).map_err(fault)?;
    let mount = match rustix::fs::statx(CWD, &place, AtFlags::empty(), StatxFlags::MNT_ID) {
        // Kernels before 5.8 do not report it.
        Ok(facts) if facts.stx_mask & StatxFlags::MNT_ID.bits() != 0 => Some(facts.stx_mnt_id),
        Ok(_) | Err(Errno::NOSYS | Errno::PERM) => None,
        Err(error) => return Err(fault(error)),
    };
    Ok((stat.st_dev, mount))
}

pub(crate) fn nearest_existing(path: &Path) -> PathBuf {
    let existing = path.ancestors().find(|place| !place.as_os_str().is_empty() && place.exists());
    existing.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Returns whether two existing or future paths are on one filesystem, through any mount, or `None` where this cannot
/// be determined.
pub fn on_one_filesystem(first: &Path, second: &Path) -> Option<bool> {
    Some(device(first).ok()? == device(second).ok()?)
}

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
    Ok(Disk { device: device(path)?, room: free(path)? })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_not_there_yet_counts_as_the_directory_above() {
        let place = tempfile::tempdir().unwrap();
        let space = free(&place.path().join("not/there/yet")).unwrap();
        assert!(space.free_bytes > 0 && space.free_bytes <= space.total_bytes);
        assert!(!space.lacks_inodes(1));
        assert!(same_filesystem(place.path(), &place.path().join("a/b")).unwrap());
        assert!(!same_filesystem(place.path(), Path::new("/proc")).unwrap());
        assert!(free(Path::new("relative-and-missing")).is_ok());
    }
}

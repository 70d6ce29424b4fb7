//! Free space and inodes, and which places can be renamed and linked between.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use stepvault_core::Result;
use stepvault_core::room::Room;

use crate::errors;

/// The space of the filesystem that holds `path`, or will: the nearest directory above that exists is asked.
pub fn free(path: &Path) -> Result<Room> {
    let place = nearest_existing(path);
    let facts = rustix::fs::statvfs(&place)
        .map_err(|error| errors::io("cannot tell the free space", &place, error))?;
    // btrfs and some network filesystems create inodes as needed and report 0 of 0.
    let limited = facts.f_files != 0;
    Ok(Room {
        free_bytes: facts.f_bavail.saturating_mul(facts.f_frsize),
        total_bytes: facts.f_blocks.saturating_mul(facts.f_frsize),
        free_inodes: limited.then_some(facts.f_favail),
        total_inodes: limited.then_some(facts.f_files),
    })
}

/// True when a file can be renamed and hard-linked between the two places: same filesystem and same mount.
/// Places that do not exist yet count as the nearest directory above that does.
pub fn same_filesystem(first: &Path, second: &Path) -> Result<bool> {
    Ok(mount_of(first)? == mount_of(second)?)
}

/// The number of the filesystem that holds `path`, or will.
pub(crate) fn device(path: &Path) -> Result<u64> {
    mount_of(path).map(|(device, _)| device)
}

/// The number of the mount; `None` where the kernel does not tell.
pub(crate) fn mount(path: &Path) -> Result<Option<u64>> {
    mount_of(path).map(|(_, mount)| mount)
}

/// Device and mount: two bind mounts of one filesystem share the device, yet nothing can be renamed between them.
fn mount_of(path: &Path) -> Result<(u64, Option<u64>)> {
    let place = nearest_existing(path);
    let fault = |error: Errno| errors::io("cannot tell the filesystem", &place, error);
    let stat = rustix::fs::stat(&place).map_err(fault)?;
    let mount = match rustix::fs::statx(CWD, &place, AtFlags::empty(), StatxFlags::MNT_ID) {
        // Kernels before 5.8 do not know it.
        Ok(facts) if facts.stx_mask & StatxFlags::MNT_ID.bits() != 0 => Some(facts.stx_mnt_id),
        Ok(_) | Err(Errno::NOSYS | Errno::PERM) => None,
        Err(error) => return Err(fault(error)),
    };
    Ok((stat.st_dev, mount))
}

pub(crate) fn nearest_existing(path: &Path) -> PathBuf {
    let existing = path
        .ancestors()
        .find(|place| !place.as_os_str().is_empty() && place.exists());
    existing.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
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

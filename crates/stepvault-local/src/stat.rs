//! File metadata from `stat` in the project's own types.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::path::Arg;
use stepvault_core::manifest::MODE_MASK;
use stepvault_core::timestamp::Timestamp;

/// Metadata of one inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) size_bytes: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) allocated_bytes: u64,
    /// Whether the inode has exactly one name.
    pub(crate) single_name: bool,
    pub(crate) owner: u32,
}

impl Facts {
    /// Returns the metadata of a name in a directory, of a link itself; `None` when there is none.
    pub(crate) fn at(directory: impl AsFd, name: impl Arg) -> rustix::io::Result<Option<Self>> {
        match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl From<Stat> for Facts {
    fn from(stat: Stat) -> Self {
        Self {
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode & MODE_MASK,
            // No filesystem reports a negative size.
            size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: timestamp(stat.st_mtime, stat.st_mtime_nsec),
            ctime: timestamp(stat.st_ctime, stat.st_ctime_nsec),
            device: stat.st_dev,
            inode: stat.st_ino,
            // `stat` counts in units of 512 bytes, whatever the filesystem's block size.
            allocated_bytes: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
            single_name: stat.st_nlink == 1,
            owner: stat.st_uid,
        }
    }
}

fn timestamp(seconds: i64, nanoseconds: u64) -> Timestamp {
    Timestamp { seconds, nanoseconds: u32::try_from(nanoseconds).unwrap_or(0) }
}

/// Returns the times for `futimens`: the modification time, also used as the access time.
pub(crate) fn times(mtime: Timestamp) -> Timestamps {
    let time = Timespec { tv_sec: mtime.seconds, tv_nsec: i64::from(mtime.nanoseconds) };
    Timestamps { last_access: time, last_modification: time }
}

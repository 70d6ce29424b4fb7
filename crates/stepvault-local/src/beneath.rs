//! Opens paths below a directory and never leaves it, even when another process swaps in symbolic links meanwhile.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, DirEntry, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps,
};
use rustix::io::{Errno, Result};
use rustix::path::Arg;
use stepvault_core::manifest::MODE_MASK;
use stepvault_core::{RelativePath, Timestamp};

/// Flags to open a directory.
pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Flags to open a directory that must not be a link.
pub(crate) const DIRECTORY_ITSELF: OFlags = DIRECTORY.union(OFlags::NOFOLLOW);

/// An open directory below which paths are resolved.
#[derive(Debug)]
pub(crate) struct Beneath {
    descriptor: OwnedFd,
}

impl Beneath {
    /// Opens the directory at `path`, which must not itself be a link.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let descriptor = rustix::fs::openat(CWD, path, DIRECTORY_ITSELF, Mode::empty())?;
        Ok(Self { descriptor })
    }

    /// Opens the directory at `path`, or the one that a link there points to. For paths that the user named.
    pub(crate) fn open_following(path: &Path) -> Result<Self> {
        let descriptor = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?;
        Ok(Self { descriptor })
    }

    /// Opens `path` below this directory. Fails with `LOOP` when a component is a link.
    pub(crate) fn open_file(&self, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.descriptor, path, flags, mode, resolve) {
            // For kernels before 5.6, and sandboxes that do not know the call.
            Err(Errno::NOSYS) => self.walk(path, flags, mode),
            done => done,
        }
    }

    /// Opens a directory below this one, or this one itself for `None`.
    pub(crate) fn directory(&self, path: Option<&str>) -> Result<OwnedFd> {
        self.open_file(path.unwrap_or("."), DIRECTORY, Mode::empty())
    }

    /// Opens the directory that holds `path`.
    pub(crate) fn parent_of(&self, path: &RelativePath) -> Result<OwnedFd> {
        self.directory(path.ancestors().last())
    }

    /// Opens `path` component by component. A checked path has no `..`, so refusing links at each component is enough.
    fn walk(&self, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut held: Option<OwnedFd> = None;
        for component in parents.split('/').filter(|component| !component.is_empty()) {
            let from = held.as_ref().map_or(self.descriptor.as_fd(), AsFd::as_fd);
            held = Some(rustix::fs::openat(from, component, DIRECTORY_ITSELF, Mode::empty())?);
        }
        let from = held.as_ref().map_or(self.descriptor.as_fd(), AsFd::as_fd);
        rustix::fs::openat(from, name, flags, mode)
    }
}

impl AsFd for Beneath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Creates a file that only this user may read, under an unused name. `access` is how it is opened.
pub(crate) fn create_new(parent: impl AsFd, name: impl Arg, access: OFlags) -> Result<File> {
    let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600)).map(File::from)
}

/// Returns what an open directory holds.
pub(crate) fn children(directory: impl AsFd) -> Result<impl Iterator<Item = Result<DirEntry>>> {
    let is_child = |entry: &DirEntry| ![&b"."[..], b".."].contains(&entry.file_name().to_bytes());
    Ok(Dir::read_from(directory)?.filter(move |entry| entry.as_ref().map_or(true, is_child)))
}

/// Returns the last component of a path.
pub(crate) fn name_of(path: &RelativePath) -> &str {
    path.as_str().rsplit_once('/').map_or(path.as_str(), |(_, name)| name)
}

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
    pub(crate) fn at(directory: impl AsFd, name: impl Arg) -> Result<Option<Self>> {
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

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn neither_way_leaves_the_directory() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "inside").unwrap();
        fs::write(place.path().join("victim"), "outside").unwrap();
        std::os::unix::fs::symlink(place.path(), root.join("out")).unwrap();
        std::os::unix::fs::symlink("../../../victim", root.join("a/b/link")).unwrap();
        let beneath = Beneath::open(&root).unwrap();
        for open in [Beneath::open_file, Beneath::walk] {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
            assert!(open(&beneath, "a/b/file", flags, Mode::empty()).is_ok());
            for escape in ["out/victim", "a/b/link"] {
                let refused = open(&beneath, escape, flags, Mode::empty()).unwrap_err();
                assert!(matches!(refused, Errno::LOOP | Errno::NOTDIR), "{escape}: {refused:?}");
            }
        }
        assert_eq!(Beneath::open(&root.join("out")).unwrap_err(), Errno::NOTDIR);
    }
}

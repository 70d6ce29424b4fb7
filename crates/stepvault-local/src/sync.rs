//! Makes a snapshot durable: file by file, or with one sync of the whole filesystem when there are many files.

use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::Result;
use stepvault_core::manifest::DirectoryEntry;
use stepvault_core::path::RelativePath;

use crate::beneath::DIRECTORY;
use crate::durable;
use crate::errors::{self, IoAt as _};
use crate::snapshot::WHAT;

/// Up to this number, files and directories are synced one by one. More share one sync of the filesystem, because each
/// sync waits for the disk. That sync may also write recent data of other processes, so it is not used for a few files.
const FEW: usize = 16;

/// An open directory of the filesystem that will be synced. It reports write errors since it was opened.
pub(crate) struct Barrier {
    directory: std::os::fd::OwnedFd,
    path: PathBuf,
}

impl Barrier {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let directory = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty()).at("cannot sync", path)?;
        Ok(Self { directory, path: path.to_path_buf() })
    }

    /// Syncs files and directories below `data`; `None` means `data` itself. Without any directory `data` is a single
    /// file.
    pub(crate) fn sync<'a>(
        &self,
        data: &Path,
        files: impl ExactSizeIterator<Item = &'a RelativePath>,
        directories: impl ExactSizeIterator<Item = &'a DirectoryEntry>,
    ) -> Result<()> {
        if files.len() + directories.len() > FEW && reports_errors() {
            return rustix::fs::syncfs(&self.directory).at("cannot sync the filesystem of", &self.path);
        }
        if directories.len() == 0 {
            sync_one(data)?;
            return durable::fsync_directory(durable::parent_of(data));
        }
        for path in files {
            sync_one(&data.join(path))?;
        }
        // In any order: nothing is visible before the rename that follows.
        for directory in directories {
            let path = directory.path.as_ref().map_or_else(|| data.to_path_buf(), |path| data.join(path));
            durable::fsync_directory(&path)?;
        }
        Ok(())
    }
}

fn sync_one(path: &Path) -> Result<()> {
    let fault = |error: Errno| errors::io(WHAT, path, error);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(fault)?;
    rustix::fs::fsync(&file).map_err(fault)
}

/// Before Linux 5.8 `syncfs` does not report data that could not be written.
fn reports_errors() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (5, 8),
        _ => false,
    }
}

//! Recursive deletion. The only place that deletes more than one file.
//!
//! It goes from directory to directory by descriptor and never through a link, so that swapping links about
//! meanwhile cannot make it delete elsewhere.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::{Errno, Result};

use crate::beneath::DIRECTORY;
use crate::errors;

/// Deletes whatever stands at `path`. Nothing there is fine.
pub(crate) fn tree(path: &Path) -> stepvault_core::Result<()> {
    entry(CWD, path).map_err(|error| errors::io("cannot delete", path, error))
}

/// Deletes whatever has a name in a directory that is open. Nothing there is fine.
pub(crate) fn entry<P: rustix::path::Arg + Copy>(parent: BorrowedFd<'_>, name: P) -> Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(error) => return Err(error),
    }
    let directory = match open(parent, name) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error),
    };
    for child in Dir::read_from(&directory)? {
        let child = child?;
        let bytes = child.file_name().to_bytes();
        if bytes == b"." || bytes == b".." {
            continue;
        }
        match entry(directory.as_fd(), child.file_name()) {
            Err(Errno::ACCESS) => {
                // A trainer may have left directories that even their owner cannot write.
                rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o700))?;
                entry(directory.as_fd(), child.file_name())?;
            }
            done => done?,
        }
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

fn open<P: rustix::path::Arg + Copy>(parent: BorrowedFd<'_>, name: P) -> Result<OwnedFd> {
    match rustix::fs::openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::ACCESS) => {
            // Not readable even by its owner. This kind of descriptor needs no access, and its entry under /proc
            // stands for the directory itself, whatever has its name by now.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let named = rustix::fs::openat(parent, name, flags, Mode::empty())?;
            rustix::fs::chmod(
                format!("/proc/self/fd/{}", named.as_raw_fd()),
                Mode::from_raw_mode(0o700),
            )?;
            rustix::fs::openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
        }
        done => done,
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_go_and_what_they_point_to_stays() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir_all(at("doomed/a/b/c")).unwrap();
        fs::write(at("doomed/a/file"), "").unwrap();
        fs::create_dir(at("kept")).unwrap();
        fs::write(at("kept/file"), "").unwrap();
        symlink(at("kept"), at("doomed/a/link")).unwrap();
        tree(&at("doomed")).unwrap();
        assert!(!at("doomed").exists() && at("kept/file").exists());
        symlink(at("kept"), at("link")).unwrap();
        tree(&at("link")).unwrap();
        assert!(at("link").symlink_metadata().is_err() && at("kept/file").exists());
        tree(&at("kept/file")).unwrap();
        tree(&at("missing")).unwrap();
    }
}

//! Recursive deletion. The only module that deletes more than one file.
//!
//! Descends by directory descriptors and never through a link, so that links swapped in meanwhile cannot redirect the
//! deletion.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::{Errno, Result};

use crate::beneath::{DIRECTORY_ITSELF, children};
use crate::errors::IoAt as _;

/// Deletes whatever is at `path`. A missing path is accepted.
pub(crate) fn tree(path: &Path) -> stepvault_core::Result<()> {
    entry(CWD, path).at("cannot delete", path)
}

/// Deletes whatever has the name in an open directory. A missing name is accepted.
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
    for child in children(&directory)? {
        let child = child?;
        match entry(directory.as_fd(), child.file_name()) {
            Err(Errno::ACCESS) => {
                // A trainer may leave directories that even their owner cannot write.
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
    match rustix::fs::openat(parent, name, DIRECTORY_ITSELF, Mode::empty()) {
        Err(Errno::ACCESS) => {
            // Even its owner cannot read it. This kind of descriptor needs no read access, and its entry under /proc
            // refers to the directory itself, whatever has its name by now.
            let named =
                rustix::fs::openat(parent, name, OFlags::PATH.union(DIRECTORY_ITSELF), Mode::empty())?;
            rustix::fs::chmod(format!("/proc/self/fd/{}", named.as_raw_fd()), Mode::from_raw_mode(0o700))?;
            rustix::fs::openat(parent, name, DIRECTORY_ITSELF, Mode::empty())
        }
        done => done,
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    #[test]
    fn links_go_and_what_they_point_to_stays() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir_all(at("removed/a/b/c")).unwrap();
        fs::write(at("removed/a/file"), "").unwrap();
        fs::create_dir(at("kept")).unwrap();
        fs::write(at("kept/file"), "").unwrap();
        symlink(at("kept"), at("removed/a/link")).unwrap();
        tree(&at("removed")).unwrap();
        assert!(!at("removed").exists() && at("kept/file").exists());
        symlink(at("kept"), at("link")).unwrap();
        tree(&at("link")).unwrap();
        assert!(at("link").symlink_metadata().is_err() && at("kept/file").exists());
        tree(&at("kept/file")).unwrap();
        tree(&at("missing")).unwrap();
    }
    /// Runs as a user other than root, since modes do not restrict root.
    #[test]
    fn what_its_owner_may_not_read_or_write_goes_too() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for directory in ["removed/closed/inner", "removed/not readable", "removed/not writable"] {
            fs::create_dir_all(at(directory)).unwrap();
            fs::write(at(directory).join("file"), "").unwrap();
        }
        symlink(at("kept"), at("removed/not writable/link")).unwrap();
        fs::create_dir(at("kept")).unwrap();
        fs::set_permissions(at("kept"), Permissions::from_mode(0o500)).unwrap();
        for (directory, mode) in [("closed", 0), ("not readable", 0o300), ("not writable", 0o500)] {
            fs::set_permissions(at("removed").join(directory), Permissions::from_mode(mode)).unwrap();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sets = capabilities(None).unwrap();
                sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
                set_capabilities(None, sets).unwrap();
                assert!(fs::read_dir(at("removed/closed")).is_err(), "modes stop nobody here");
                tree(&at("removed")).unwrap();
            });
        });
        assert!(!at("removed").exists());
        let mode = fs::metadata(at("kept")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o500, "what a link points to keeps its mode");
    }
}

//! Renames that never overwrite by accident. The only module that renames.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, RenameFlags};
use rustix::io::{Errno, Result};

use crate::remove;

/// A name in an open directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) directory: BorrowedFd<'a>,
    pub(crate) name: &'a Path,
}

impl<'a> Place<'a> {
    /// Returns a name in an open directory.
    pub(crate) fn new(directory: &'a impl AsFd, name: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self { directory: directory.as_fd(), name: name.as_ref() }
    }

    /// Returns a path relative to the working directory.
    pub(crate) fn path(path: &'a Path) -> Self {
        Self { directory: CWD, name: path }
    }
}

/// Renames `from` to `to`. Fails with `EXIST` when `to` exists.
pub(crate) fn no_replace(from: Place<'_>, to: Place<'_>) -> Result<()> {
    match rustix::fs::renameat_with(from.directory, from.name, to.directory, to.name, RenameFlags::NOREPLACE)
    {
        Err(error) if lacks_flags(error) => no_replace_by_other_means(from, to),
        done => done,
    }
}

/// For filesystems that do not support rename flags. A hard link fails when the name exists. A directory cannot be
/// linked, but renaming it over anything but an empty directory fails as well.
fn no_replace_by_other_means(from: Place<'_>, to: Place<'_>) -> Result<()> {
    let stat = rustix::fs::statat(from.directory, from.name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        return match rustix::fs::statat(to.directory, to.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => rustix::fs::renameat(from.directory, from.name, to.directory, to.name),
            Err(error) => Err(error),
        };
    }
    rustix::fs::linkat(from.directory, from.name, to.directory, to.name, AtFlags::empty())?;
    rustix::fs::unlinkat(from.directory, from.name, AtFlags::empty())
}

/// Maximum number of entries with one name that are kept aside; the user has to check them then.
pub(crate) const MAX_OF_ONE_NAME: u32 = 9_999;

/// Renames `from` to the first free of the numbered names in `directory`. Fails with `EXIST` when all are taken.
pub(crate) fn to_free_name(
    from: Place<'_>,
    directory: &Path,
    numbered: impl Fn(u32) -> String,
) -> Result<PathBuf> {
    for number in 1..=MAX_OF_ONE_NAME {
        let to = directory.join(numbered(number));
        match no_replace(from, Place::path(&to)) {
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            done => return done.map(|()| to),
        }
    }
    Err(Errno::EXIST)
}

/// Renames `from` to `to` and replaces a file or link at `to`.
pub(crate) fn over(from: Place<'_>, to: Place<'_>) -> Result<()> {
    rustix::fs::renameat(from.directory, from.name, to.directory, to.name)
}

/// Swaps two names atomically. Returns `None` where the filesystem does not support it.
pub(crate) fn exchange(first: Place<'_>, second: Place<'_>) -> Result<Option<()>> {
    let swapped = rustix::fs::renameat_with(
        first.directory,
        first.name,
        second.directory,
        second.name,
        RenameFlags::EXCHANGE,
    );
    match swapped {
        Err(error) if lacks_flags(error) => Ok(None),
        done => done.map(Some),
    }
}

fn lacks_flags(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Creates a symbolic link at `to` and replaces a file or link that has its name, through a temporary name on the same
/// filesystem. Durable when it returns.
pub(crate) fn replace_link(by_way_of: Place<'_>, to: Place<'_>, target: &str) -> Result<()> {
    remove::entry(by_way_of.directory, by_way_of.name)?;
    rustix::fs::symlinkat(target, by_way_of.directory, by_way_of.name)?;
    rustix::fs::fsync(by_way_of.directory)?;
    over(by_way_of, to)?;
    rustix::fs::fsync(to.directory)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn both_ways_refuse_a_taken_name() {
        for rename in [no_replace, no_replace_by_other_means] {
            let place = tempfile::tempdir().unwrap();
            let at = |name: &str| place.path().join(name);
            fs::write(at("new"), "new").unwrap();
            fs::write(at("old"), "old").unwrap();
            fs::create_dir(at("new.d")).unwrap();
            fs::create_dir(at("old.d")).unwrap();
            assert_eq!(rename(Place::path(&at("new")), Place::path(&at("old"))), Err(Errno::EXIST));
            assert_eq!(rename(Place::path(&at("new.d")), Place::path(&at("old.d"))), Err(Errno::EXIST));
            assert_eq!(fs::read(at("old")).unwrap(), b"old");
            rename(Place::path(&at("new")), Place::path(&at("free"))).unwrap();
            rename(Place::path(&at("new.d")), Place::path(&at("free.d"))).unwrap();
            assert!(at("free").is_file() && at("free.d").is_dir() && !at("new").exists());
        }
    }

    #[test]
    fn an_exchange_that_fails_is_not_one_that_the_filesystem_lacks() {
        let place = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| place.path().join(name));
        let exchanged = exchange(Place::path(&first), Place::path(&second));
        assert_eq!(exchanged, Err(Errno::NOENT));
    }
}

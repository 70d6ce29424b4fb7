//! Opens files below the root without following symbolic links, which could lead anywhere.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::{errors, reading};

use super::layout::Layout;

const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::RDONLY);

impl Layout {
    /// Opens the regular file at `key` for reading. Returns `None` when it does not exist.
    pub(super) fn open(&self, what: &str, key: &str) -> Result<Option<File>> {
        let path = self.path(key)?;
        let (directories, name) = key.rsplit_once('/').unwrap_or(("", key));
        let Some(directory) = self.directory(what, directories)? else {
            return Ok(None);
        };
        // Non-blocking: opening a FIFO would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match open_at(&directory, name, flags) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(symbolic_link(what, &path)),
            Err(error) => return Err(errors::io(what, &path, error)),
        };
        let metadata =
            reading::with_retries(|| file.metadata()).map_err(|error| errors::io(what, &path, error))?;
        if metadata.is_file() {
            return Ok(Some(file));
        }
        if metadata.is_dir() {
            // A store without directories has no object with that name.
            return Ok(None);
        }
        Err(Error::new(ErrorKind::Failed, what).on(path.display()).because("it is not a regular file"))
    }

    /// Opens the object at `key`, which must exist, and returns its size in bytes too.
    pub(super) fn open_existing(&self, what: &str, key: &str) -> Result<(File, u64)> {
        let path = self.path(key)?;
        let file = self.open(what, key)?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, what).on(path.display()).because("it does not exist")
        })?;
        let metadata = file.metadata().map_err(|error| errors::io(what, &path, error))?;
        Ok((file, metadata.len()))
    }

    /// Returns device and inode of the directory at the root.
    ///
    /// # Errors
    /// `Unreachable` when it does not exist.
    pub(super) fn root_identity(&self, what: &str) -> Result<(u64, u64)> {
        let Some(root) = self.directory(what, "")? else {
            return Err(no_root(what, &self.root));
        };
        let facts = reading::with_retries(|| Ok(fstat(&root)?));
        let facts = facts.map_err(|error| errors::io(what, &self.root, error))?;
        Ok((facts.st_dev, facts.st_ino))
    }

    /// Opens the directory at `directories` (components separated by slashes, or empty for the root). Returns `None`
    /// when it does not exist.
    ///
    /// # Errors
    /// `Unreachable` when the root itself does not exist: its content is unknown then.
    pub(super) fn directory(&self, what: &str, directories: &str) -> Result<Option<OwnedFd>> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        // The root itself may be a link, because the user configured it.
        let mut directory = match open_at(CWD, &self.root, flags) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Err(no_root(what, &self.root)),
            Err(error) => return Err(errors::io(what, &self.root, error)),
        };
        let mut path = self.root.clone();
        for component in directories.split('/').filter(|component| !component.is_empty()) {
            path.push(component);
            directory = match open_at(&directory, component, DIRECTORY) {
                Ok(next) => next,
                // With O_DIRECTORY the kernel reports a link as 'not a directory', like a file.
                Err(Errno::NOTDIR | Errno::LOOP) if path.is_symlink() => {
                    return Err(symbolic_link(what, &path));
                }
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                Err(error) => return Err(errors::io(what, &path, error)),
            };
        }
        Ok(Some(directory))
    }
}

/// Opens for reading, with retries for transient failures.
fn open_at(
    directory: impl AsFd,
    name: impl AsRef<Path>,
    flags: OFlags,
) -> std::result::Result<OwnedFd, Errno> {
    let name = name.as_ref();
    reading::with_retries(|| Ok(openat(&directory, name, flags, Mode::empty())?))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Returns the error for a remote whose directory does not exist. It must not count as an empty store.
pub(super) fn no_root(what: &str, root: &Path) -> Error {
    Error::new(ErrorKind::Unreachable, what)
        .on(root.display())
        .because("the remote's directory does not exist")
        .hint(
            "mount its filesystem; for a new archive create the directory, or let the first push create it; if it was \
             removed on purpose, 'stepvault remote forget' lets a push start over",
        )
        .lasting()
}

/// Returns the error for a request during which the directory at the root was replaced, by mounting or unmounting a
/// filesystem.
pub(super) fn another_root(what: &str, root: &Path) -> Error {
    Error::new(ErrorKind::Unreachable, what)
        .on(root.display())
        .because("the directory was replaced during the operation: its filesystem was mounted or unmounted")
        .hint("check that the filesystem is mounted")
        .lasting()
}

fn symbolic_link(what: &str, path: &Path) -> Error {
    Error::new(ErrorKind::Refused, what)
        .on(path.display())
        .because("it is a symbolic link, which is not followed below a remote's directory")
        .hint("put the data itself there, or use the link's target as the remote's directory")
}

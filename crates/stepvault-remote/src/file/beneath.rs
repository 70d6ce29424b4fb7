//! Opening what stands beneath the root without following symbolic links, which could lead anywhere.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::errors;

use super::layout::Layout;

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::RDONLY);

impl Layout {
    /// The regular file at `key` opened for reading; `None` when there is none.
    pub(super) fn open(&self, what: &str, key: &str) -> Result<Option<File>> {
        let path = self.path(key)?;
        let (directories, name) = key.rsplit_once('/').unwrap_or(("", key));
        let Some(directory) = self.directory(what, directories)? else {
            return Ok(None);
        };
        // Not blocking: opening a FIFO would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match openat(&directory, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(symbolic_link(what, &path)),
            Err(error) => return Err(errors::io(what, &path, error)),
        };
        let metadata = file.metadata().map_err(|error| errors::io(what, &path, error))?;
        if metadata.is_file() {
            return Ok(Some(file));
        }
        if metadata.is_dir() {
            // A store without directories has no object by that name.
            return Ok(None);
        }
        Err(Error::new(ErrorKind::Failed, what)
            .on(path.display())
            .because("it is no regular file"))
    }

    /// The directory at `directories` (components with slashes between, or nothing for the root); `None` when it does
    /// not exist.
    pub(super) fn directory(&self, what: &str, directories: &str) -> Result<Option<OwnedFd>> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        // The root itself may be a link: whoever configured it chose it.
        let mut directory = match openat(CWD, &self.root, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(errors::io(what, &self.root, error)),
        };
        let mut path = self.root.clone();
        for component in directories.split('/').filter(|component| !component.is_empty()) {
            path.push(component);
            directory = match openat(&directory, component, DIRECTORY, Mode::empty()) {
                Ok(next) => next,
                // With O_DIRECTORY a link is reported as 'not a directory', like a file is.
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

fn symbolic_link(what: &str, path: &Path) -> Error {
    Error::new(ErrorKind::Refused, what)
        .on(path.display())
        .because("it is a symbolic link, and those are not followed beneath a remote's directory")
        .hint("put the data itself there, or name the link's target as the remote's directory")
}

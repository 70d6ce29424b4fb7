//! Maps keys to paths in the directory and opens them without leaving it, defines the names reserved for stepvault, and
//! runs file operations on threads that may block.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable;
use stepvault_local::errors::{self, IoAt as _};

use crate::pieces::patience;

/// The directory of incomplete uploads.
pub(super) const UPLOADS_DIRECTORY: &str = ".stepvault-uploads";
/// Prefix of the names of unfinished files.
pub(super) const TEMPORARY_PREFIX: &str = ".stepvault-tmp-";

/// The directory of a `file://` URL.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) root: PathBuf,
}

impl Layout {
    /// Returns the path of `key`. Its text never leads outside the root; symbolic links are refused where files are
    /// opened.
    pub(super) fn path(&self, key: &str) -> Result<PathBuf> {
        match fault_of(key) {
            None => Ok(self.root.join(key)),
            Some(why) => Err(Error::new(ErrorKind::Usage, "invalid key for a directory")
                .on(format!("{key:?}"))
                .because(why)),
        }
    }

    /// Returns the deepest directory that holds all keys that begin with `prefix`, relative to the root and with a
    /// trailing slash; empty for the root itself.
    pub(super) fn directory_of(prefix: &str) -> Result<&str> {
        let directory = prefix.rfind('/').map_or("", |end| &prefix[..=end]);
        match directory.strip_suffix('/').and_then(fault_of) {
            None => Ok(directory),
            Some(why) => {
                Err(Error::new(ErrorKind::Usage, "invalid prefix").on(format!("{prefix:?}")).because(why))
            }
        }
    }

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
        let metadata = durable::with_retries(|| file.metadata()).at(what, &path)?;
        if metadata.is_file() {
            return Ok(Some(file));
        }
        if metadata.is_dir() {
            // A store without directories has no object with that name.
            return Ok(None);
        }
        Err(Error::at(ErrorKind::Failed, what, &path).because("it is not a regular file"))
    }

    /// Opens the object at `key`, which must exist, and returns its size in bytes too.
    pub(super) fn open_existing(&self, what: &str, key: &str) -> Result<(File, u64)> {
        let path = self.path(key)?;
        let file = self
            .open(what, key)?
            .ok_or_else(|| Error::at(ErrorKind::NotFound, what, &path).because("it does not exist"))?;
        let metadata = file.metadata().at(what, &path)?;
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
        let facts = durable::with_retries(|| Ok(fstat(&root)?));
        let facts = facts.at(what, &self.root)?;
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

/// Returns a new name for an unfinished file.
pub(super) fn temporary_name() -> String {
    format!("{TEMPORARY_PREFIX}{}", uuid::Uuid::new_v4().simple())
}

/// Returns whether a directory entry is reserved for stepvault and is not an object.
pub(super) fn is_reserved(component: &str) -> bool {
    component == UPLOADS_DIRECTORY || component.starts_with(TEMPORARY_PREFIX)
}

fn fault_of(key: &str) -> Option<&'static str> {
    if key.is_empty() {
        return Some("it is empty");
    }
    if key.chars().any(|character| character.is_ascii_control()) {
        return Some("it holds a control character");
    }
    for component in key.split('/') {
        match component {
            "" => return Some("it begins or ends with a slash, or has an empty component"),
            "." | ".." => return Some("it has a '.' or '..' component"),
            long if long.len() > 255 => {
                return Some("a component is longer than 255 bytes, the limit of file systems");
            }
            own if is_reserved(own) => return Some("a component is reserved for unfinished files"),
            _ => {}
        }
    }
    None
}

/// Returns the parent of a path that has one.
pub(super) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Time limits for calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocking {
    pub(super) stall_timeout: Duration,
}

impl Blocking {
    /// Runs `work`, which moves about `size_bytes`, on a thread where it may block. A call that hangs (on an
    /// unreachable network file system) keeps its thread, but is no longer waited for after the time limit.
    pub(super) async fn run<T: Send + 'static>(
        self,
        what: &str,
        path: &Path,
        size_bytes: u64,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let limit = patience(self.stall_timeout, size_bytes);
        match tokio::time::timeout(limit, tokio::task::spawn_blocking(work)).await {
            Ok(Ok(outcome)) => outcome.map_err(for_a_remote),
            Ok(Err(stopped)) => Err(Error::at(ErrorKind::Interrupted, what, path).caused_by(stopped)),
            Err(_) => Err(Error::at(ErrorKind::Unreachable, what, path)
                .because(format!("the file system did not answer within {} seconds", limit.as_secs()))
                .hint("check that the file system is mounted and its server answers")),
        }
    }

    /// Like [`Self::run`], for reads: a failed read may be retried and says nothing about the object.
    pub(super) async fn read<T: Send + 'static>(
        self,
        what: &str,
        path: &Path,
        size_bytes: u64,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let read = self.run(what, path, size_bytes, work).await;
        read.map_err(|error| match error.kind() {
            ErrorKind::Unreachable if error.is_inconclusive() => error.passing(),
            ErrorKind::Failed if error.is_inconclusive() && !error.is_lasting() => {
                error.with_kind(ErrorKind::Unreachable)
            }
            _ => error,
        })
    }
}

/// Replaces the hints of lower layers, which are about the local tier.
fn for_a_remote(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NoSpace => {
            error.hint("free some space there, keep fewer steps on this remote, or use a larger disk")
        }
        ErrorKind::Denied => error.hint("allow the user that runs stepvault to read and write there"),
        _ => error,
    }
}

const DIRECTORY: OFlags =
    OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::RDONLY);

/// Opens for reading, with retries for transient failures.
fn open_at(
    directory: impl AsFd,
    name: impl AsRef<Path>,
    flags: OFlags,
) -> std::result::Result<OwnedFd, Errno> {
    let name = name.as_ref();
    durable::with_retries(|| Ok(openat(&directory, name, flags, Mode::empty())?))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Returns the error for a remote whose directory does not exist. It must not count as an empty store.
pub(super) fn no_root(what: &str, root: &Path) -> Error {
    Error::at(ErrorKind::Unreachable, what, root)
        .because("the remote's directory does not exist")
        .hint(format!(
            "create it: mkdir {}, if nothing was ever stored there; otherwise mount its filesystem, or, if it was removed \
             on purpose, let a push start over with 'stepvault remote forget'",
            root.display()
        ))
        .lasting()
}

/// Returns the error for a request during which the directory at the root was replaced, by mounting or unmounting a
/// filesystem.
pub(super) fn another_root(what: &str, root: &Path) -> Error {
    Error::at(ErrorKind::Unreachable, what, root)
        .because("the directory was replaced during the operation: its filesystem was mounted or unmounted")
        .hint("check that the filesystem is mounted")
        .lasting()
}

fn symbolic_link(what: &str, path: &Path) -> Error {
    Error::at(ErrorKind::Refused, what, path)
        .because("it is a symbolic link, which is not followed below a remote's directory")
        .hint("put the data itself there, or use the link's target as the remote's directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_beneath_the_root_and_keep_their_bytes() {
        let layout = Layout { root: PathBuf::from("/vault") };
        for good in ["a", "run/.stepvault/vault.json", "50%/x#y?z", "ü ☃", "..a/b..", "a\\b"] {
            assert_eq!(layout.path(good).unwrap(), Path::new("/vault").join(good));
        }
        let long = "x".repeat(256);
        let bad = ["", "/etc/passwd", "../a", "a/../../b", "a//b", "a/", "./a", "a\0b", "a\nb", &long];
        for bad in bad.into_iter().chain([".stepvault-uploads/x", "a/.stepvault-tmp-1"]) {
            assert_eq!(layout.path(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
    }

    #[test]
    fn prefixes_are_listed_from_their_directory() {
        assert_eq!(Layout::directory_of("run/commits/0001").unwrap(), "run/commits/");
        assert_eq!(Layout::directory_of("run").unwrap(), "");
        assert_eq!(Layout::directory_of("").unwrap(), "");
        Layout::directory_of("../x").unwrap_err();
        Layout::directory_of("/x").unwrap_err();
    }
}

//! Maps errors of the operating system to reasons and hints for the user.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};

use crate::probe::mounts::Mounts;
use crate::space;

/// Adds to the error of a system call what was to be done, and with which file.
pub(crate) trait IoAt<T> {
    /// Returns the error as that of [`io`].
    fn at(self, what: &str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> IoAt<T> for std::result::Result<T, E> {
    fn at(self, what: &str, path: &Path) -> Result<T> {
        self.map_err(|error| io(what, path, error))
    }
}

/// Returns the error for a failed call: `what` failed ("cannot write") on `path` because of `error`.
pub fn io(what: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let plain = Error::new(ErrorKind::Failed, what).on(path.display());
    let errno = Errno::from_io_error(&error);
    let mut meant = match errno.and_then(|errno| meaning(errno, path)) {
        None => plain.caused_by(error),
        Some((kind, why, hint)) => {
            let meant = plain.with_kind(kind).because(why).caused_by(error);
            if hint.is_empty() { meant } else { meant.hint(hint) }
        }
    };
    if errno.is_some_and(|errno| !tells_of_the_file(errno)) {
        meant = meant.inconclusive();
    }
    // Only reads may be retried, since a failed sync must not be repeated: see `reading`. More files can be opened only
    // after this process has closed some.
    let is_own = matches!(errno, Some(Errno::MFILE | Errno::NFILE));
    if is_own || meant.kind() == ErrorKind::Unreachable {
        meant = meant.lasting();
    }
    meant
}

/// Returns whether an errno describes what is at the path. All other errnos mean that this could not be determined.
fn tells_of_the_file(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::LOOP
            | Errno::EXIST
            | Errno::NOTEMPTY
            | Errno::NAMETOOLONG
            | Errno::INVAL
            | Errno::XDEV
    )
}

/// Returns kind, reason and hint for errors that a user can act on.
fn meaning(errno: Errno, path: &Path) -> Option<(ErrorKind, &'static str, &'static str)> {
    Some(match errno {
        Errno::NOSPC if space::free(path).is_ok_and(|space| space.lacks_inodes(1)) => (
            ErrorKind::NoSpace,
            "its filesystem has no inode left",
            "delete files (many small ones use up inodes), or use a filesystem made with more inodes",
        ),
        Errno::NOSPC => (
            ErrorKind::NoSpace,
            "no space is left on its filesystem",
            "free some space, keep fewer steps on the local tier, or use a larger disk",
        ),
        Errno::DQUOT => (
            ErrorKind::NoSpace,
            "the user's disk quota is used up",
            "delete files of this user, or have the quota raised",
        ),
        Errno::ACCESS | Errno::PERM => (
            ErrorKind::Denied,
            "this user may not do that",
            "run stepvault as the user that trains, or give its user access to the directory",
        ),
        Errno::ROFS if Mounts::read().hide_writable(path) => (
            ErrorKind::Failed,
            "it is a read-only file system for this process",
            "add the directory to ReadWritePaths= of the systemd unit, or mount the container's volume writable",
        ),
        Errno::ROFS => (
            ErrorKind::Failed,
            "its filesystem is read-only",
            "mount it writable; after a disk error the kernel remounts a filesystem read-only and logs the error",
        ),
        Errno::NOENT => (ErrorKind::NotFound, "it does not exist", ""),
        Errno::MFILE | Errno::NFILE => (
            ErrorKind::Failed,
            "too many files are open",
            "raise the limit on open files (ulimit -n, or LimitNOFILE= of the service)",
        ),
        Errno::FBIG => (
            ErrorKind::Failed,
            "the file would exceed the allowed size",
            "raise the limit on file sizes (ulimit -f), or use a filesystem that allows larger files",
        ),
        Errno::IO => (
            ErrorKind::Failed,
            "the disk reports an input/output error",
            "check the kernel log; data written since the last success may be lost",
        ),
        Errno::EXIST | Errno::NOTEMPTY => {
            (ErrorKind::Conflict, "something with that name already exists", "")
        }
        Errno::NAMETOOLONG => (
            ErrorKind::Usage,
            "the path, or a name in it, is longer than the filesystem allows",
            "use shorter names for the run and its directories",
        ),
        Errno::NOTDIR => (ErrorKind::Usage, "a component of its path is not a directory", ""),
        Errno::ISDIR => (ErrorKind::Usage, "it is a directory", ""),
        Errno::LOOP => (
            ErrorKind::Refused,
            "it is a symbolic link, which is not followed here",
            "give the path that the link points to",
        ),
        Errno::XDEV => (
            ErrorKind::Failed,
            "the two paths are on different filesystems or mounts",
            "put both on one mount: files can be renamed and linked only within one",
        ),
        Errno::STALE => (
            ErrorKind::Unreachable,
            "the network filesystem has lost the file",
            "mount it again, and keep the local tier on a local disk",
        ),
        Errno::TIMEDOUT
        | Errno::NOTCONN
        | Errno::CONNRESET
        | Errno::CONNREFUSED
        | Errno::CONNABORTED
        | Errno::HOSTDOWN
        | Errno::HOSTUNREACH
        | Errno::SHUTDOWN => (
            ErrorKind::Unreachable,
            "its filesystem does not answer",
            "check that the filesystem is mounted and its server answers",
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: Errno) -> Error {
        io("cannot write", Path::new("/nowhere/step_100"), errno)
    }

    #[test]
    fn says_what_on_which_path_why_and_what_to_do() {
        let full = error(Errno::NOSPC);
        assert_eq!(full.to_string(), "cannot write: /nowhere/step_100: no space is left on its filesystem");
        assert_eq!(
            full.hint_text(),
            Some("free some space, keep fewer steps on the local tier, or use a larger disk")
        );
        let denied = error(Errno::ACCESS);
        assert_eq!(denied.to_string(), "cannot write: /nowhere/step_100: this user may not do that");
        let read_only = error(Errno::ROFS);
        assert_eq!(read_only.to_string(), "cannot write: /nowhere/step_100: its filesystem is read-only");
        assert!(read_only.hint_text().is_some_and(|hint| hint.starts_with("mount it writable")));
    }

    #[test]
    fn kinds_are_those_a_caller_decides_on() {
        for (errno, kind) in [
            (Errno::NOSPC, ErrorKind::NoSpace),
            (Errno::DQUOT, ErrorKind::NoSpace),
            (Errno::ACCESS, ErrorKind::Denied),
            (Errno::PERM, ErrorKind::Denied),
            (Errno::NOENT, ErrorKind::NotFound),
            (Errno::EXIST, ErrorKind::Conflict),
            (Errno::NAMETOOLONG, ErrorKind::Usage),
            (Errno::LOOP, ErrorKind::Refused),
            (Errno::ROFS, ErrorKind::Failed),
            (Errno::IO, ErrorKind::Failed),
            (Errno::STALE, ErrorKind::Unreachable),
            (Errno::NOTCONN, ErrorKind::Unreachable),
            (Errno::MFILE, ErrorKind::Failed),
        ] {
            assert_eq!(error(errno).kind(), kind, "{errno:?}");
        }
    }

    #[test]
    fn what_could_not_be_read_is_told_apart_from_what_is_not_there() {
        for errno in [
            Errno::MFILE,
            Errno::IO,
            Errno::STALE,
            Errno::TIMEDOUT,
            Errno::NOTCONN,
            Errno::ACCESS,
            Errno::TXTBSY,
        ] {
            assert!(error(errno).is_inconclusive(), "{errno:?}");
            assert!(error(errno).clone().is_inconclusive(), "{errno:?}");
        }
        for errno in [Errno::NOENT, Errno::NOTDIR, Errno::LOOP] {
            assert!(!error(errno).is_inconclusive(), "{errno:?}");
        }
    }

    #[test]
    fn nothing_is_tried_again_because_of_the_errno_alone() {
        for errno in [Errno::STALE, Errno::TIMEDOUT, Errno::NOTCONN, Errno::IO] {
            assert!(!error(errno).is_transient(), "{errno:?}");
        }
    }

    #[test]
    fn an_error_without_a_telling_meaning_keeps_the_systems_words() {
        let error = error(Errno::TXTBSY);
        assert_eq!(error.kind(), ErrorKind::Failed);
        assert!(error.to_string().contains("Text file busy"), "{error}");
        let odd = io("cannot read", Path::new("/x"), io::Error::other("odd"));
        assert_eq!(odd.to_string(), "cannot read: /x: odd");
    }
}

//! What the operating system's errors mean to a user, and what to do about each.

use std::io;
use std::path::Path;

use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind};

use crate::space;

/// The error for a failed call: `what` failed ("cannot write"), on `path`, because of `error`.
pub fn io(what: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    let plain = Error::new(ErrorKind::Failed, what).on(path.display());
    let Some((kind, why, hint)) = Errno::from_io_error(&error).and_then(|errno| meaning(errno, path)) else {
        return plain.caused_by(error);
    };
    let is_own = matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE));
    let mut meant = plain.with_kind(kind).because(why).caused_by(error);
    if is_own {
        meant = meant.about_itself();
    }
    if hint.is_empty() { meant } else { meant.hint(hint) }
}

/// Kind, reason and hint for the errors that a user can do something about.
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
        Errno::ROFS => (
            ErrorKind::Failed,
            "its filesystem is read-only",
            "mount it writable; after a disk error the kernel makes a filesystem read-only, and its log says so",
        ),
        Errno::NOENT => (ErrorKind::NotFound, "it does not exist", ""),
        Errno::MFILE | Errno::NFILE => (
            ErrorKind::Failed,
            "too many files are open",
            "raise the limit on open files (ulimit -n, or LimitNOFILE= of the service)",
        ),
        Errno::FBIG => (
            ErrorKind::Failed,
            "the file would be larger than is allowed",
            "raise the limit on file sizes (ulimit -f), or use a filesystem that takes larger files",
        ),
        Errno::IO => (
            ErrorKind::Failed,
            "the disk reports an input/output error",
            "look at the kernel's log; what was written there since the last success may be lost",
        ),
        Errno::EXIST | Errno::NOTEMPTY => (
            ErrorKind::Conflict,
            "something with that name is there already",
            "",
        ),
        Errno::NAMETOOLONG => (
            ErrorKind::Usage,
            "the path, or a name in it, is longer than the filesystem takes",
            "use shorter names for the run and its directories",
        ),
        Errno::NOTDIR => (
            ErrorKind::Usage,
            "something on the way to it is not a directory",
            "",
        ),
        Errno::ISDIR => (ErrorKind::Usage, "it is a directory", ""),
        Errno::LOOP => (
            ErrorKind::Refused,
            "a symbolic link stands where none is followed",
            "name the place that the link points to",
        ),
        Errno::XDEV => (
            ErrorKind::Failed,
            "the two places are on different filesystems or mounts",
            "put both on one mount: files can be renamed and linked only within one",
        ),
        Errno::STALE => (
            ErrorKind::Failed,
            "the network filesystem has lost the file",
            "mount it again, and keep the local tier on a local disk",
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
        assert_eq!(
            full.to_string(),
            "cannot write: /nowhere/step_100: no space is left on its filesystem"
        );
        assert_eq!(
            full.hint_text(),
            Some("free some space, keep fewer steps on the local tier, or use a larger disk")
        );
        let denied = error(Errno::ACCESS);
        assert_eq!(
            denied.to_string(),
            "cannot write: /nowhere/step_100: this user may not do that"
        );
        let read_only = error(Errno::ROFS);
        assert_eq!(
            read_only.to_string(),
            "cannot write: /nowhere/step_100: its filesystem is read-only"
        );
        assert!(
            read_only
                .hint_text()
                .is_some_and(|hint| hint.starts_with("mount it writable"))
        );
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
            (Errno::MFILE, ErrorKind::Failed),
        ] {
            assert_eq!(error(errno).kind(), kind, "{errno:?}");
        }
    }

    #[test]
    fn too_many_open_files_tells_nothing_of_the_file() {
        assert!(error(Errno::MFILE).is_about_itself() && error(Errno::NFILE).is_about_itself());
        assert!(error(Errno::MFILE).duplicate().is_about_itself());
        assert!(!error(Errno::IO).is_about_itself() && !error(Errno::NOENT).is_about_itself());
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

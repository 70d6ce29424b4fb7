//! Maps errors of the operating system to reasons and hints for the user.

use std::io;
use std::path::Path;
use std::sync::LazyLock;

use rustix::io::Errno;
use serde::Deserialize;
use stepvault_core::{Error, ErrorKind, Result};

use crate::probe::mounts::Mounts;
use crate::space;

/// Adds to the error of a system call what was to be done, and with which file.
pub trait IoAt<T> {
    /// Returns the error as that of [`io()`].
    ///
    /// # Errors
    /// When the call failed.
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
    let plain = Error::at(ErrorKind::Failed, what, path);
    let errno = Errno::from_io_error(&error);
    let mut meant = match errno.and_then(|errno| meaning(errno, path)) {
        None => plain.caused_by(error),
        Some(Meaning { kind, why, hint, .. }) => {
            let meant = plain.with_kind(ErrorKind::from_name(kind)).because(why).caused_by(error);
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

/// The meaning of an error of a system call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meaning {
    #[serde(default)]
    errors: Vec<String>,
    #[serde(default)]
    case: String,
    kind: String,
    why: String,
    /// Empty where there is nothing to do.
    #[serde(default)]
    hint: String,
}

#[derive(Debug, Default, Deserialize)]
struct Meanings {
    meaning: Vec<Meaning>,
}

// A test reads the file.
static MEANINGS: LazyLock<Meanings> = LazyLock::new(|| toml::from_str(TEXT).unwrap_or_default());
const TEXT: &str = include_str!("errors.toml");

/// Returns the meaning of errors that a user can act on.
fn meaning(errno: Errno, path: &Path) -> Option<&'static Meaning> {
    let case = match errno {
        Errno::NOSPC if space::free(path).is_ok_and(|space| space.lacks_inodes(1)) => Some("no-inodes"),
        Errno::ROFS if Mounts::read().hide_writable(path) => Some("read-only-mount"),
        _ => None,
    };
    let name = format!("{:?}", nix::errno::Errno::from_raw(errno.raw_os_error()));
    MEANINGS.meaning.iter().find(|meaning| match case {
        Some(case) => meaning.case == case,
        None => meaning.errors.contains(&name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_names_a_kind_and_errors_that_exist() {
        let known: Vec<String> =
            (1..200).map(|number| format!("{:?}", nix::errno::Errno::from_raw(number))).collect();
        for meaning in toml::from_str::<Meanings>(TEXT).unwrap().meaning {
            assert_eq!(ErrorKind::from_name(&meaning.kind).name(), meaning.kind);
            assert!(meaning.errors.iter().all(|name| known.contains(name)), "{meaning:?}");
            assert_ne!(meaning.errors.is_empty(), meaning.case.is_empty(), "{meaning:?}");
        }
    }

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

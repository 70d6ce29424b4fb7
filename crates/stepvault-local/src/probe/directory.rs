//! Tries every operation of the service in a directory: write, sync, rename, link, delete.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::disk_facts::{DirectoryFacts, FailedAct, Presence};
use stepvault_core::{Error, Result};

use super::place::ProbePlace;
use crate::durable;
use crate::errors;
use crate::rename::{self, Place};

/// Does not fit into an inode, so that blocks are allocated.
const BYTES: usize = 16 << 10;

/// Probes `path`, or the nearest existing directory above it. Leaves nothing behind.
pub fn directory(path: &Path) -> DirectoryFacts {
    let (presence, existing) = match presence(path) {
        Ok(found) => found,
        Err(error) => return failed_with(Presence::There, &error),
    };
    let nothing_failed =
        |link_refused| DirectoryFacts { presence: presence.clone(), failed: None, link_refused };
    if presence == Presence::NotADirectory {
        return nothing_failed(None);
    }
    match try_all(&existing) {
        Ok(link_refused) => nothing_failed(link_refused),
        Err(error) => failed_with(presence, &error),
    }
}

fn failed_with(presence: Presence, error: &Error) -> DirectoryFacts {
    DirectoryFacts {
        presence,
        failed: Some(FailedAct { what: error.to_string(), hint: error.hint_text().map(str::to_owned) }),
        link_refused: None,
    }
}

fn presence(path: &Path) -> Result<(Presence, PathBuf)> {
    for above in path.ancestors().filter(|above| !above.as_os_str().is_empty()) {
        match above.metadata() {
            Ok(facts) if facts.is_dir() && above == path => return Ok((Presence::There, path.to_path_buf())),
            Ok(facts) if facts.is_dir() => {
                let text = above.display().to_string();
                return Ok((Presence::Missing(text), above.to_path_buf()));
            }
            Ok(_) => return Ok((Presence::NotADirectory, above.to_path_buf())),
            // A dangling link is an obstacle like a file.
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound && above.symlink_metadata().is_ok() =>
            {
                return Ok((Presence::NotADirectory, above.to_path_buf()));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(errors::io("cannot check the directory", above, error)),
        }
    }
    Ok((Presence::Missing(".".to_owned()), PathBuf::from(".")))
}

/// Returns why a file could not be linked, if everything else worked.
fn try_all(directory: &Path) -> Result<Option<String>> {
    let probe = ProbePlace::create(directory)?;
    let at = |name: &str| probe.path().join(name);
    let fault = |what: &str, error: Errno| errors::io(what, directory, error);
    let tried = |what: &str, outcome: rustix::io::Result<()>| outcome.map_err(|error| fault(what, error));
    let write = |path: &Path| write(path).map_err(|error| errors::io("cannot write", directory, error));
    let (first, second) = (at("a"), at("b"));
    let (one, other) = (Place::path(&first), Place::path(&second));
    write(&first)?;
    tried("cannot rename a file", rename::no_replace(one, other))?;
    write(&first)?;
    tried("cannot replace a file", rename::over(one, other))?;
    let made = rustix::fs::mkdirat(CWD, at("c"), Mode::from_raw_mode(0o700));
    tried("cannot create a directory", made)?;
    let moved = rename::no_replace(Place::path(&at("c")), Place::path(&at("d")));
    tried("cannot rename a directory", moved)?;
    let linked = rustix::fs::linkat(CWD, &second, CWD, at("e"), AtFlags::empty());
    let refused = match linked {
        Ok(()) => None,
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS)) => {
            return Err(fault("cannot link a file", error));
        }
        Err(error) => Some(std::io::Error::from(error).to_string()),
    };
    durable::fsync_directory(probe.path())?;
    tried("cannot delete a file", rustix::fs::unlinkat(CWD, &second, AtFlags::empty()))?;
    probe.remove()?;
    durable::fsync_directory(directory)?;
    Ok(refused)
}

fn write(path: &Path) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(&[b'x'; BYTES])?;
    file.sync_all()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;

    fn is_empty(path: &Path) -> bool {
        std::fs::read_dir(path).unwrap().next().is_none()
    }

    #[test]
    fn a_good_directory_passes_and_stays_as_it_was() {
        let place = tempfile::tempdir().unwrap();
        let facts = directory(place.path());
        assert_eq!((facts.presence, facts.failed), (Presence::There, None));
        assert!(is_empty(place.path()));
        let missing = directory(&place.path().join("a/b"));
        let above = place.path().display().to_string();
        assert_eq!((missing.presence, missing.failed), (Presence::Missing(above), None));
        assert!(is_empty(place.path()));
    }

    #[test]
    fn what_stands_in_the_way_is_told() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", place.path().join("link")).unwrap();
        for path in ["file", "file/below", "link"] {
            let facts = directory(&place.path().join(path));
            let is_refused = facts.presence == Presence::NotADirectory || facts.failed.is_some();
            assert!(is_refused, "{path}: {facts:?}");
        }
        let proc = directory(Path::new("/proc"));
        assert!(proc.failed.is_some(), "{proc:?}");
    }
}

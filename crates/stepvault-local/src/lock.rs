//! Locks that die with their holder: the kernel releases them when the process ends, however it ends.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable::read_bounded;
use crate::errors;

/// The vault's lock, held until dropped or until the process ends.
#[derive(Debug)]
pub struct VaultLock {
    vault: PathBuf,
    _file: File,
}

impl VaultLock {
    /// Takes the lock of the vault at `vault`. The lock file stays for ever: only the lock on it counts.
    pub(crate) fn take(vault: &Path) -> Result<Self> {
        let path = vault.join("lock");
        let file = take(&path)?.ok_or_else(|| {
            held("cannot lock the vault", &path)
                .hint("let it finish, or end it: the lock goes with it and never needs to be removed by hand")
        })?;
        Ok(Self {
            vault: vault.to_path_buf(),
            _file: file,
        })
    }

    /// True when this is the lock of the vault at `root`.
    pub(crate) fn is_of(&self, root: &Path) -> bool {
        self.vault == root
    }
}

/// The error for a lock that somebody else holds, naming who wrote himself into it.
pub(crate) fn held(what: &str, path: &Path) -> Error {
    let holder = read_bounded(path, 32)
        .ok()
        .flatten()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let holder = holder.and_then(|text| text.trim().parse::<u32>().ok());
    let who = holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    Error::new(ErrorKind::Held, what)
        .on(path.display())
        .because(format!("{who} holds it"))
}

/// Takes the lock on the file at `path`, creating it when missing; `None` when somebody else has it.
pub(crate) fn take(path: &Path) -> Result<Option<File>> {
    acquire(path, FlockOperation::NonBlockingLockExclusive)
}

/// The same, and waits for whoever has it: it ends when he does.
pub(crate) fn wait_for(path: &Path) -> Result<File> {
    acquire(path, FlockOperation::LockExclusive)?
        .ok_or_else(|| held("cannot lock", path).hint("it was taken away again and again; try again"))
}

fn acquire(path: &Path, operation: FlockOperation) -> Result<Option<File>> {
    let fault = |error: Errno| errors::io("cannot lock", path, error);
    // A few times only: each round means that a holder removed the file between our two calls.
    for _ in 0..16 {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let descriptor = rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o600)).map_err(fault)?;
        match rustix::io::retry_on_intr(|| rustix::fs::flock(&descriptor, operation)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(fault(error)),
        }
        let ours = rustix::fs::fstat(&descriptor).map_err(fault)?;
        let there = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
        // A lock on a file that has lost its name keeps nobody out.
        if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)) {
            let mut file = File::from(descriptor);
            // For messages only; a full disk must not keep anybody from locking.
            let _ = file
                .set_len(0)
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            return Ok(Some(file));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_holds_it() {
        let place = tempfile::tempdir().unwrap();
        let first = VaultLock::take(place.path()).unwrap();
        let error = VaultLock::take(place.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held);
        let expected = format!(
            "cannot lock the vault: {}/lock: process {} holds it",
            place.path().display(),
            std::process::id()
        );
        assert_eq!(error.to_string(), expected);
        drop(first);
        VaultLock::take(place.path()).unwrap();
    }

    #[test]
    fn a_stale_lock_file_locks_nobody_out() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("lock"), "not even a pid").unwrap();
        VaultLock::take(place.path()).unwrap();
    }
}

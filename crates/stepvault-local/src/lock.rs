//! Locks that end with their holder: the kernel releases them when the process ends for any reason.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable::read_bounded;
use crate::errors::{self, IoAt as _};

/// The name of a vault's lock file.
const LOCK: &str = "lock";

/// A lock on an open file, released when dropped.
///
/// It is released explicitly, not only by closing the file: a child process shares all open files between `fork` and
/// `exec`, and would keep the lock for that time.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    /// Locks `file` for this holder alone; `WOULDBLOCK` when another process holds it.
    pub(crate) fn of(file: File, operation: FlockOperation) -> rustix::io::Result<Self> {
        rustix::io::retry_on_intr(|| rustix::fs::flock(&file, operation))?;
        Ok(Self(file))
    }

    /// Returns whether the locked file is the one at `path`.
    fn has_name(&self, path: &Path) -> rustix::io::Result<bool> {
        let ours = rustix::fs::fstat(&self.0)?;
        match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok((there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // If this fails, closing the file still releases the lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// The vault's lock, held until dropped or until the process ends.
#[derive(Debug)]
pub struct VaultLock {
    pub(crate) vault: PathBuf,
    lock: Lock,
}

impl VaultLock {
    /// Takes the lock of the vault at `vault`. The lock file is never removed: only the lock on it counts.
    pub(crate) fn take(vault: &Path) -> Result<Self> {
        let path = vault.join(LOCK);
        let lock = take(&path)?.ok_or_else(|| {
            held("cannot lock the vault", &path)
                .hint("let it finish, or end it: the lock goes with it and never needs to be removed by hand")
        })?;
        Ok(Self { vault: vault.to_path_buf(), lock })
    }

    /// Returns whether the lock still excludes others, that is, whether its file still has its name. The file may have
    /// been deleted with the vault.
    ///
    /// # Errors
    /// When this cannot be determined.
    pub fn is_held(&self) -> Result<bool> {
        let path = self.vault.join(LOCK);
        let has_name = self.lock.has_name(&path);
        has_name.at("cannot check the lock", &path)
    }
}

/// Returns the error for a lock that another process holds, with the process ID from the lock file.
pub(crate) fn held(what: &str, path: &Path) -> Error {
    let holder = read_bounded(path, 32).ok().flatten().and_then(|bytes| String::from_utf8(bytes).ok());
    let holder = holder.and_then(|text| text.trim().parse::<u32>().ok());
    let who = holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    Error::at(ErrorKind::Held, what, path).because(format!("{who} holds it"))
}

/// Takes the lock on the file at `path`, which is created when missing. Returns `None` when another process holds it.
pub(crate) fn take(path: &Path) -> Result<Option<Lock>> {
    acquire(path, FlockOperation::NonBlockingLockExclusive)
}

/// Like [`take`], but waits for the holder to release it.
pub(crate) fn wait_for(path: &Path) -> Result<Lock> {
    acquire(path, FlockOperation::LockExclusive)?
        .ok_or_else(|| held("cannot lock", path).hint("the lock file was removed repeatedly; try again"))
}

fn acquire(path: &Path, operation: FlockOperation) -> Result<Option<Lock>> {
    let fault = |error: Errno| errors::io("cannot lock", path, error);
    // Bounded: each round means that a holder removed the file between our two calls.
    for _ in 0..16 {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let descriptor = rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o600)).map_err(fault)?;
        let mut lock = match Lock::of(descriptor.into(), operation) {
            Ok(lock) => lock,
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(fault(error)),
        };
        // A lock on a file that has lost its name excludes nobody.
        if lock.has_name(path).unwrap_or(false) {
            // The process ID is for messages only; a full disk must not prevent locking.
            let _ = lock.0.set_len(0).and_then(|()| writeln!(lock.0, "{}", std::process::id()));
            return Ok(Some(lock));
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

    /// Simulates a child process that shares the file between `fork` and `exec`.
    #[test]
    fn a_lock_that_was_let_go_is_free_although_its_file_is_still_open_elsewhere() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        let first = take(&path).unwrap().unwrap();
        let shared = first.0.try_clone().unwrap();
        assert!(take(&path).unwrap().is_none());
        drop(first);
        assert!(take(&path).unwrap().is_some());
        drop(shared);
    }

    #[test]
    fn a_lock_whose_file_was_deleted_or_replaced_is_no_longer_held() {
        let place = tempfile::tempdir().unwrap();
        let first = VaultLock::take(place.path()).unwrap();
        assert!(first.is_held().unwrap());
        std::fs::remove_file(place.path().join(LOCK)).unwrap();
        assert!(!first.is_held().unwrap());
        let second = VaultLock::take(place.path()).unwrap();
        assert!(!first.is_held().unwrap() && second.is_held().unwrap());
    }

    #[test]
    fn a_stale_lock_file_locks_nobody_out() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("lock"), "not even a pid").unwrap();
        VaultLock::take(place.path()).unwrap();
    }
    #[test]
    fn a_link_in_a_locks_place_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        std::fs::write(place.path().join("other"), "precious").unwrap();
        std::os::unix::fs::symlink("other", &path).unwrap();
        assert!(take(&path).is_err());
        assert_eq!(std::fs::read(place.path().join("other")).unwrap(), b"precious");
    }

    #[test]
    fn a_program_that_is_started_gets_no_lock() {
        let place = tempfile::tempdir().unwrap();
        let lock = take(&place.path().join("lock")).unwrap().unwrap();
        assert_eq!(rustix::io::fcntl_getfd(&lock.0).unwrap(), rustix::io::FdFlags::CLOEXEC);
    }

    #[test]
    fn a_waiting_process_gets_the_lock_once_it_is_released() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        let first = take(&path).unwrap().unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| wait_for(&path).map(drop));
            drop(first);
            second.join().unwrap().unwrap();
        });
    }
}

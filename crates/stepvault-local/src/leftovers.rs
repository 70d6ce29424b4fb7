//! Removes what interrupted processes left, and restores and saves that were never finished.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{Timespec, Timestamps};
use stepvault_core::{Error, ErrorKind, Result};

use crate::lock::VaultLock;
use crate::staging_place::{DATA, lock_name};
use crate::temporary::remove_abandoned;
use crate::vault::{Vault, entries, file_name, is_temporary};
use crate::{durable, lock, remove};

/// The result of [`Vault::clean_leftovers`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Removed paths: unfinished seals, partly deleted steps, temporary files of records.
    pub removed: Vec<PathBuf>,
}

impl Vault {
    /// Removes the leftovers of interrupted processes in `staging/`, in `trash/` and beside records. Never touches a
    /// sealed step, or a file that another process is writing without the vault's lock (a pin, a note). Makes the names
    /// of all sealed steps durable, because the process may have died between a rename and its sync.
    pub fn clean_leftovers(&self, lock: &VaultLock) -> Result<Leftovers> {
        if lock.vault != self.root() {
            return Err(Error::at(ErrorKind::Refused, "cannot clean the vault", self.root())
                .because("the lock that is held belongs to another vault"));
        }
        let mut leftovers = Leftovers::default();
        for area in ["staging", "trash"] {
            for path in entries(&self.root().join(area))? {
                remove::tree(&path)?;
                leftovers.removed.push(path);
            }
        }
        let mut record_directories = vec![self.root().to_path_buf()];
        for run in self.runs()? {
            let directory = self.run_directory(&run);
            record_directories.extend([directory.join("pins"), directory.join("notes")]);
            let steps = self.steps_directory(&run);
            if steps.is_dir() {
                // Each directory holds the name of the one before.
                for path in steps.ancestors().take_while(|path| path.starts_with(self.root())) {
                    durable::fsync_directory(path)?;
                }
            }
            for step in entries(&steps)?.into_iter().filter(|step| step.is_dir()) {
                record_directories.push(step.join("remotes"));
                record_directories.push(step);
            }
        }
        for directory in record_directories {
            for path in entries(&directory)?.into_iter().filter(|path| is_temporary(path)) {
                if remove_abandoned(&path)? {
                    leftovers.removed.push(path);
                }
            }
        }
        for path in &leftovers.removed {
            tracing::info!(path = %path.display(), "removed the leftovers of an interrupted process");
        }
        Ok(leftovers)
    }
}

/// Minimum time for which an interrupted restore can be resumed, and before an uncommitted directory or the record of a
/// commit is removed.
const KEPT_FOR: Duration = Duration::from_hours(24);

/// Marks a directory as begun or resumed now.
pub(crate) fn stamp(own: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    rustix::fs::futimens(own, &times)
}

fn stamped(path: &Path) -> Option<SystemTime> {
    path.symlink_metadata().and_then(|facts| facts.modified()).ok()
}

/// Returns the entries of a directory that were begun or resumed more than a day before `own`.
fn abandoned(area: &Path, own: &Path) -> impl Iterator<Item = PathBuf> {
    let now = stamped(own);
    let entries = std::fs::read_dir(area).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(move |path| {
        let age = now.zip(stamped(path)).and_then(|(now, time)| now.duration_since(time).ok());
        path != own && age.is_some_and(|age| age >= KEPT_FOR)
    })
}

/// Deletes the files of every restore in the directory `base` that is not in progress and was begun or resumed more
/// than a day before `own`. The caller has just stamped `own` and holds the lock of `held_key`. Content that a restore
/// moved out of its target's way is kept: it is the only copy.
///
/// again, and its files would occupy the disk that the trainer needs.
pub(crate) fn clear_restores(base: &Path, held_key: &str, own: &Path) {
    for path in abandoned(base, own) {
        let Some((target_key, own_key)) = file_name(&path).split_once('.') else {
            continue;
        };
        let lock_path = (target_key != held_key).then(|| base.join(lock_name(target_key)));
        if own_key != "lock"
            && let Err(error) = clear_restore(&path, lock_path.as_deref())
        {
            tracing::warn!(%error, path = %path.display(), "cannot remove an abandoned restore");
        }
    }
}

fn clear_restore(own: &Path, lock_path: Option<&Path>) -> Result<()> {
    let lock = lock_path.map(lock::take).transpose()?;
    if matches!(lock, Some(None)) {
        return Ok(());
    }
    remove::tree(&own.join(DATA))?;
    tracing::info!(path = %own.display(), "removed an abandoned restore");
    if std::fs::remove_dir(own).is_ok()
        && let Some(lock_path) = lock_path
    {
        let _ = std::fs::remove_file(lock_path);
    }
    Ok(())
}

/// Deletes every directory of `area` that was last staged more than a day before `own`, unless a step is committed at this
/// moment, which holds the lock at `commit_lock`. The caller has just staged `own` and holds the lock that excludes other
/// staging. Does not wait for locks: the next call tries again.
pub(crate) fn clear_saves(area: &Path, own: &Path, commit_lock: &Path) {
    let Ok(Some(_commit)) = lock::take(commit_lock) else {
        return;
    };
    for path in abandoned(area, own).filter(|path| path.is_dir()) {
        match remove::tree(&path) {
            Ok(()) => tracing::info!(path = %path.display(), "removed an abandoned staging directory"),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot remove an abandoned staging directory");
            }
        }
    }
}

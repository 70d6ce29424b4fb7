//! Removes the files of interrupted restores that were never resumed.
//!
//! A restore that is requested again resumes where it stopped. Once a newer step exists, nobody requests the old one
//! again, and its files would occupy the disk that the trainer needs.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{Timespec, Timestamps};

use crate::lock;
use crate::remove;
use crate::staging_names::DATA;

/// Minimum time for which an interrupted restore can be resumed.
const KEPT_FOR: Duration = Duration::from_hours(24);

/// Returns the name of a restore's directory: the target's key, by which its lock is found, and its own key.
pub(crate) fn directory_name(target_key: &str, own_key: &str) -> String {
    format!("{target_key}.{own_key}")
}

/// Returns the name of the lock of all restores to one target.
pub(crate) fn lock_name(target_key: &str) -> String {
    format!("{target_key}.lock")
}

/// Marks a restore's directory as begun or resumed now.
pub(crate) fn stamp(own: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    rustix::fs::futimens(own, &times)
}

/// Deletes the files of every restore in the directory `base` that is not in progress and was begun or resumed more
/// than a day before `own`. The caller has just stamped `own` and holds the lock of `held_key`. Content that a restore
/// moved out of its target's way is kept: it is the only copy.
pub(crate) fn clear(base: &Path, held_key: &str, own: &Path) {
    let (Ok(entries), Ok(now)) = (std::fs::read_dir(base), stamped(own)) else {
        return;
    };
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let key = name.to_str().and_then(|name| name.split_once('.'));
        let Some((target_key, _)) = key.filter(|(_, own_key)| *own_key != "lock" && path != own) else {
            continue;
        };
        let lock_path = (target_key != held_key).then(|| base.join(lock_name(target_key)));
        if let Err(error) = clear_one(&path, lock_path.as_deref(), now) {
            tracing::warn!(%error, path = %path.display(), "cannot remove an abandoned restore");
        }
    }
}

fn stamped(own: &Path) -> std::io::Result<SystemTime> {
    own.symlink_metadata()?.modified()
}

fn clear_one(own: &Path, lock_path: Option<&Path>, now: SystemTime) -> stepvault_core::Result<()> {
    let age = stamped(own)
        .ok()
        .and_then(|stamped| now.duration_since(stamped).ok());
    if age.is_none_or(|age| age < KEPT_FOR) {
        return Ok(());
    }
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

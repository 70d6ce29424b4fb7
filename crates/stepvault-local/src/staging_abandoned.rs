//! Clearing away what interrupted restores left and nobody came back for.
//!
//! A restore that is asked for again goes on where it was. When a newer step has come meanwhile nobody asks again, and
//! what is there would take the disk that the trainer needs.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{Timespec, Timestamps};

use crate::lock;
use crate::remove;
use crate::staging::DATA;

/// How long an interrupted restore may be gone back to, at least.
const KEPT_FOR: Duration = Duration::from_hours(24);

/// The name of a restore's directory: the target's key, so that its lock can be found, and its own.
pub(crate) fn directory_name(target_key: &str, own_key: &str) -> String {
    format!("{target_key}.{own_key}")
}

/// The name of the lock of all restores to one target.
pub(crate) fn lock_name(target_key: &str) -> String {
    format!("{target_key}.lock")
}

/// Notes on a restore's directory that it was begun or gone on with.
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

/// Deletes the files of every restore in the directory `base` that is not under way and was begun or gone on with
/// more than a day before `own`, which whoever calls has just stamped and holds the lock of `held_key` for. What a
/// restore moved out of its target's way is left alone: it is the only copy.
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
            tracing::warn!(%error, path = %path.display(), "an abandoned restore could not be cleared away");
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
    tracing::info!(path = %own.display(), "cleared away a restore that nobody came back for");
    if std::fs::remove_dir(own).is_ok()
        && let Some(lock_path) = lock_path
    {
        let _ = std::fs::remove_file(lock_path);
    }
    Ok(())
}

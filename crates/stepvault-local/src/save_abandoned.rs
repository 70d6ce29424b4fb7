//! Removes abandoned staging directories: files of steps that killed trainers never committed, and records of committed
//! ones.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::lock;
use crate::remove;
use crate::save::COMMIT_LOCK;

/// Minimum time before an uncommitted directory is removed and before the record of a commit is removed.
const KEPT_FOR: Duration = Duration::from_hours(24);

/// Deletes every directory of `area` that was last staged more than a day before `own`. The caller has just staged
/// `own` and holds the lock that excludes other staging. Does not wait for locks: the next call tries again.
pub(crate) fn clear(area: &Path, own: &Path) {
    let stamped = |path: &Path| -> std::io::Result<SystemTime> { path.symlink_metadata()?.modified() };
    let (Ok(entries), Ok(now)) = (std::fs::read_dir(area), stamped(own)) else {
        return;
    };
    let Ok(Some(_commit)) = lock::take(&area.join(COMMIT_LOCK)) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let age = stamped(&path).ok().and_then(|time| now.duration_since(time).ok());
        if path == own || !path.is_dir() || age.is_none_or(|age| age < KEPT_FOR) {
            continue;
        }
        match remove::tree(&path) {
            Ok(()) => tracing::info!(path = %path.display(), "removed an abandoned staging directory"),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot remove an abandoned staging directory");
            }
        }
    }
}

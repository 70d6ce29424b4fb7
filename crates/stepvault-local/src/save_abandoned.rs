//! Clearing away what is left of saves: what killed trainers have written of steps that they never committed, and the
//! records of those that were.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::lock;
use crate::remove;
use crate::save::COMMIT_LOCK;

/// How long a save may take, at least, and how long it is remembered that it was committed.
const KEPT_FOR: Duration = Duration::from_hours(24);

/// Deletes every save of `area` that was last staged more than a day before `own`, which whoever calls has just
/// staged, with a lock that keeps others from staging. Waits for nobody: the next save tries again.
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
            Ok(()) => tracing::info!(path = %path.display(), "cleared away what was left of a save"),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "what is left of a save could not be cleared away");
            }
        }
    }
}

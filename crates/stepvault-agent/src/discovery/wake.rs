//! Wakes discovery early when an entry appears. Everything works without it: network file systems send no events.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// Watches directories for new names in them.
#[derive(Debug)]
pub(crate) struct Wake {
    watcher: Option<RecommendedWatcher>,
    /// The directory watched at each path: another one may replace it.
    watched: BTreeMap<PathBuf, (u64, u64)>,
    woken: Arc<Notify>,
}

impl Wake {
    pub(crate) fn new() -> Self {
        let woken = Arc::new(Notify::new());
        let changed = Arc::clone(&woken);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| tells_of_a_step(event.kind)) {
                changed.notify_one();
            }
        });
        let watcher = watcher
            .map_err(
                |error| tracing::debug!(%error, "cannot watch for file events: directories are only polled"),
            )
            .ok();
        Self { watcher, watched: BTreeMap::new(), woken }
    }

    /// Watches the directories that exist now. Blocks.
    pub(crate) fn watch<'a>(&mut self, directories: impl Iterator<Item = &'a Path>) {
        let Some(watcher) = &mut self.watcher else { return };
        for directory in directories {
            let there = std::fs::metadata(directory).ok().map(|facts| (facts.dev(), facts.ino()));
            if there.as_ref() == self.watched.get(directory) {
                continue;
            }
            if self.watched.remove(directory).is_some() {
                // The watch was most likely removed with its directory.
                let _ = watcher.unwatch(directory);
            }
            let Some(there) = there else { continue };
            match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(directory.to_owned(), there);
                }
                Err(error) => {
                    let directory = directory.display();
                    tracing::debug!(%error, %directory, "cannot watch the directory: it is only polled");
                }
            }
        }
    }

    /// Returns the notifier of new names.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.woken)
    }
}

/// Filters events: discovery's own scans cause events as well.
fn tells_of_a_step(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::Create(_)
            | EventKind::Modify(ModifyKind::Name(_))
            | EventKind::Access(AccessKind::Close(AccessMode::Write))
    )
}

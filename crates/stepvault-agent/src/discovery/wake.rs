//! Waking early when something appears. Everything works without: network file systems tell nothing.

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
    /// By path, which directory is watched there: another may take its place.
    watched: BTreeMap<PathBuf, (u64, u64)>,
    woken: Arc<Notify>,
}

impl Wake {
    pub(crate) fn new() -> Self {
        let woken = Arc::new(Notify::new());
        let bell = Arc::clone(&woken);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| tells_of_a_step(event.kind)) {
                bell.notify_one();
            }
        });
        let watcher = watcher
            .map_err(|error| tracing::debug!(%error, "directories are polled only"))
            .ok();
        Self {
            watcher,
            watched: BTreeMap::new(),
            woken,
        }
    }

    /// Watches the directories that exist now. Blocks.
    pub(crate) fn watch<'a>(&mut self, directories: impl Iterator<Item = &'a Path>) {
        let Some(watcher) = &mut self.watcher else { return };
        for directory in directories {
            let there = std::fs::metadata(directory)
                .ok()
                .map(|facts| (facts.dev(), facts.ino()));
            if there.as_ref() == self.watched.get(directory) {
                continue;
            }
            if self.watched.remove(directory).is_some() {
                // The watch went with its directory, most likely.
                let _ = watcher.unwatch(directory);
            }
            let Some(there) = there else { continue };
            match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(directory.to_owned(), there);
                }
                Err(error) => {
                    tracing::debug!(%error, directory = %directory.display(), "a directory is polled only");
                }
            }
        }
    }

    /// What is told of new names.
    pub(crate) fn bell(&self) -> Arc<Notify> {
        Arc::clone(&self.woken)
    }
}

/// Not everything does: our own looking is an event as well.
fn tells_of_a_step(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::Create(_)
            | EventKind::Modify(ModifyKind::Name(_))
            | EventKind::Access(AccessKind::Close(AccessMode::Write))
    )
}

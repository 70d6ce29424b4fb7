//! Announced steps that could not be sealed and that no entry of a watched directory represents: retried while they are
//! unchanged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use crate::discovery::Ready;
use crate::pause::Pause;

/// Maximum number for one run; on a full disk, the announcer of each was told.
const MAXIMUM: usize = 64;

/// One step to retry.
#[derive(Debug)]
struct Retry {
    ready: Ready,
    pause: Pause,
    reason: String,
}

/// All steps to retry for one run.
#[derive(Debug, Default)]
pub(crate) struct Retries(Vec<Retry>);

impl Retries {
    /// Records a failed seal: it is retried after a pause of at most `longest`. A later announcement of the same path
    /// replaces an earlier one.
    pub(crate) fn failed(&mut self, ready: &Ready, longest: Duration, reason: String) {
        let position = self.0.iter().position(|retry| retry.ready.path == ready.path);
        let mut retry = match position {
            Some(position) => self.0.remove(position),
            None => Retry { ready: ready.clone(), pause: Pause::default(), reason: String::new() },
        };
        if retry.ready.tree.fingerprint() != ready.tree.fingerprint() {
            retry.pause.clear();
        }
        retry.ready = ready.clone();
        retry.reason = reason;
        retry.pause.failed(longest, None);
        if self.0.len() >= MAXIMUM {
            let dropped = self.0.remove(0);
            let path = dropped.ready.path.display();
            tracing::warn!(%path, "dropped an announced step, because too many wait to be sealed: announce it again");
        }
        self.0.push(retry);
    }

    /// Forgets a step that was sealed or cannot be.
    pub(crate) fn forget(&mut self, path: &Path) {
        self.0.retain(|retry| retry.ready.path != path);
    }

    /// Returns the steps whose pause is over.
    pub(crate) fn due(&self) -> Vec<Ready> {
        let due = self.0.iter().filter(|retry| retry.pause.until().is_none());
        due.map(|retry| retry.ready.clone()).collect()
    }

    /// Returns when the first pause ends.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.0.iter().filter_map(|retry| retry.pause.until()).min()
    }

    /// Returns all steps, with the cause why each is not sealed.
    pub(crate) fn unsealed(&self) -> impl Iterator<Item = (PathBuf, String)> {
        self.0.iter().map(|retry| (retry.ready.path.clone(), retry.reason.clone()))
    }
}

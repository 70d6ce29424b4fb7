//! Signals between the tasks of a service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Signals between the tasks of a service.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Wakes each upload worker, in the order of the configured remotes.
    pub(crate) uploads: Vec<Arc<Notify>>,
    /// Wakes the eviction of local copies.
    pub(crate) eviction: Notify,
    /// Bytes that sealing lacked, for the next eviction.
    missing_bytes: AtomicU64,
    /// Wakes the task that determines attempts.
    pub(crate) attempts: Notify,
    /// Set when nothing more will be sealed.
    pub(crate) all_sealed: CancellationToken,
    /// Set when the attempts of all sealed steps are determined, or will not be by this service.
    pub(crate) all_determined: CancellationToken,
}

impl Signals {
    /// Creates the signals for this number of upload workers.
    pub(crate) fn new(upload_workers: usize) -> Self {
        Self { uploads: (0..upload_workers).map(|_| Arc::default()).collect(), ..Self::default() }
    }

    /// Wakes the upload workers, because the vault has changed.
    pub(crate) fn wake_uploads(&self) {
        self.uploads.iter().for_each(|worker| worker.notify_one());
    }

    /// Asks for evictions until this many bytes are free, as far as possible.
    pub(crate) fn request_bytes(&self, bytes: u64) {
        self.missing_bytes.fetch_max(bytes.max(1), Ordering::Relaxed);
        self.eviction.notify_one();
    }

    /// Returns the bytes that were asked for since the last call; 0 if none were.
    pub(crate) fn take_requested_bytes(&self) -> u64 {
        self.missing_bytes.swap(0, Ordering::Relaxed)
    }
}

//! What all tasks of a service share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use stepvault_core::observe::{Event, Observer};
use stepvault_local::vault::Vault;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::announcements::Announcements;
use crate::board::Board;
use crate::drain::Hurry;
use crate::occupied::Occupied;
use crate::rates::Rates;
use crate::stop::Stop;

/// What all tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) vault: Vault,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) board: Board,
    pub(crate) occupied: Occupied,
    /// Steps that somebody says are finished.
    pub(crate) announcements: Announcements,
    /// Wakes each lane.
    pub(crate) lanes: Vec<Arc<Notify>>,
    /// Wakes the eviction of local copies.
    pub(crate) evict: Notify,
    /// Bytes that sealing found missing, for the next eviction.
    pub(crate) missing_bytes: AtomicU64,
    /// How fast each remote takes bytes.
    pub(crate) rates: Arc<Rates>,
    /// Told to stop.
    pub(crate) stopping: Stop,
    /// Whether time is short.
    pub(crate) hurry: Hurry,
    /// Nothing more will be sealed.
    pub(crate) all_sealed: CancellationToken,
}

impl Shared {
    /// Warns, unless the last warning about the same thing said the same.
    pub(crate) fn warn(&self, about: &str, text: &str) {
        if self.board.is_news(about, text) {
            self.observer.on_event(&Event::Warning { message: text });
        }
    }

    /// Says what is worth a line in the log.
    pub(crate) fn tell(&self, text: &str) {
        self.observer.on_event(&Event::Info { message: text });
    }

    /// Something is new in the vault.
    pub(crate) fn wake_lanes(&self) {
        self.lanes.iter().for_each(|lane| lane.notify_one());
    }
}

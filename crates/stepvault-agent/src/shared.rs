//! State shared by all tasks of a service.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use stepvault_core::observe::{Event, Observer};
use stepvault_local::vault::Vault;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::agent_status::AgentStatus;
use crate::announcements::Announcements;
use crate::drain::Hurry;
use crate::occupied::Occupied;
use crate::rates::Rates;
use crate::stop::Stop;

/// State shared by all tasks.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) vault: Vault,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) status: AgentStatus,
    pub(crate) occupied: Occupied,
    /// Announced steps.
    pub(crate) announcements: Announcements,
    /// Wakes each lane.
    pub(crate) lanes: Vec<Arc<Notify>>,
    /// Wakes the eviction of local copies.
    pub(crate) evict: Notify,
    /// Bytes that sealing lacked, for the next eviction.
    pub(crate) missing_bytes: AtomicU64,
    /// Each remote's upload throughput.
    pub(crate) rates: Arc<Rates>,
    /// The request to stop.
    pub(crate) stopping: Stop,
    /// Whether time is short.
    pub(crate) hurry: Hurry,
    /// Set when nothing more will be sealed.
    pub(crate) all_sealed: CancellationToken,
    /// Set when the attempts of all sealed steps are determined, or will not be by this service.
    pub(crate) all_determined: CancellationToken,
    /// Held while sealing or determining attempts: one after the other, because their order matters.
    pub(crate) placing: Mutex<()>,
    /// Wakes the task that determines attempts.
    pub(crate) provisional: Notify,
}

impl Shared {
    /// Warns, unless the last warning about the same subject was the same.
    pub(crate) fn warn(&self, about: &str, text: &str) {
        if self.status.is_news(about, text) {
            self.observer.on_event(&Event::Warning { message: text });
        }
    }

    /// Reports information that is worth a log line.
    pub(crate) fn tell(&self, text: &str) {
        self.observer.on_event(&Event::Info { message: text });
    }

    /// Wakes the lanes, because the vault has changed.
    pub(crate) fn wake_lanes(&self) {
        self.lanes.iter().for_each(|lane| lane.notify_one());
    }
}

//! What the tasks of a service share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stepvault_core::timestamp::Timestamp;
use stepvault_engine::cpu_share::CpuShare;
use stepvault_local::vault::Vault;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::agent_status::Reporter;
use crate::announcements::Announcements;
use crate::drain::state::DrainState;
use crate::options::AgentOptions;
use crate::steps_in_use::StepsInUse;
use crate::throughput::Throughput;

/// What the tasks of a service share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Arc<AgentOptions>,
    /// When the service started: what the trainer writes from then on belongs to this launch.
    pub(crate) started_at: Timestamp,
    pub(crate) vault: VaultAccess,
    pub(crate) reporter: Reporter,
    pub(crate) signals: Arc<Signals>,
    pub(crate) drain: DrainState,
    pub(crate) throughput: Arc<Throughput>,
    pub(crate) announcements: Arc<Announcements>,
    /// The share of the processors that uploads may take until a stop is requested.
    pub(crate) cpu_share: CpuShare,
}

/// The vault, with what keeps the service's own tasks from disturbing each other in it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct VaultAccess {
    pub(crate) vault: Vault,
    pub(crate) in_use: StepsInUse,
    /// Held while sealing or determining attempts: one after the other, because their order matters.
    pub(crate) attempt_order: Arc<Mutex<()>>,
}

impl VaultAccess {
    pub(crate) fn new(vault: Vault) -> Self {
        Self { vault, in_use: StepsInUse::default(), attempt_order: Arc::default() }
    }
}

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

//! What the tasks of a service share.

use std::sync::Arc;

use stepvault_core::timestamp::Timestamp;
use stepvault_engine::cpu_share::CpuShare;

use crate::announcements::Announcements;
use crate::drain::state::DrainState;
use crate::options::AgentOptions;
use crate::reporter::Reporter;
use crate::signals::Signals;
use crate::throughput::Throughput;
use crate::vault_access::VaultAccess;

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

//! The vault, with what keeps the service's own tasks from disturbing each other in it.

use std::sync::Arc;

use stepvault_local::vault::Vault;
use tokio::sync::Mutex;

use crate::steps_in_use::StepsInUse;

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

//! Upload worker for one remote of one run: opened once, then fed with steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stepvault_core::Result;
use stepvault_core::observe::{Event, Observer};
use stepvault_core::records::VaultMarker;
use stepvault_core::remote_settings::ReadBack;
use stepvault_local::vault::Vault;
use stepvault_remote::probe::{StoreGuarantees, probe};

use crate::memory::MemoryBudget;
use crate::run_remote::RunRemote;

/// A remote whose identity was verified, with its measured store guarantees.
#[derive(Debug, Clone)]
pub struct Lane {
    pub(super) remote: RunRemote,
    pub(super) vault: Vault,
    pub(super) marker: VaultMarker,
    pub(super) trust: StoreGuarantees,
    pub(super) budget: MemoryBudget,
    pub(super) observer: Arc<dyn Observer>,
    /// Bytes that the store has copied for this lane and that were not sent.
    pub(super) copied_bytes: Arc<AtomicU64>,
}

impl Lane {
    /// Checks that the remote holds the same vault as before (or marks it, if this vault has never seen one on it), and
    /// probes which checks the store enforces.
    pub async fn open(
        remote: RunRemote,
        vault: Vault,
        budget: MemoryBudget,
        observer: Arc<dyn Observer>,
    ) -> Result<Self> {
        let marker = remote.ensure_marker(&vault).await?;
        let trust = probe(remote.store.as_ref(), &remote.keys).await?;
        if !trust.honours_create_only || !trust.completes_create_only {
            observer.on_event(&Event::Warning {
                message: &format!(
                    "{}: this store overwrites objects despite create-if-absent; two concurrent writers of one step \
                     would not detect each other",
                    remote.store.url()
                ),
            });
        }
        Ok(Self {
            remote,
            vault,
            marker,
            trust,
            budget,
            observer,
            copied_bytes: Arc::default(),
        })
    }

    /// Checks again that the remote holds the same vault as before, after it was unreachable. The store's checks are
    /// not probed again: that takes some twenty requests to a store that has just refused too many.
    ///
    /// # Errors
    /// [`Refused`](stepvault_core::ErrorKind::Refused) when it is a different vault,
    /// [`Unreachable`](stepvault_core::ErrorKind::Unreachable) when the vault's marker is missing.
    pub async fn recognise(&self) -> Result<()> {
        self.remote.ensure_marker(&self.vault).await.map(drop)
    }

    /// Returns the bytes that the store has copied from earlier steps since this lane was opened and that were not
    /// sent.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// The remote.
    pub fn remote(&self) -> &RunRemote {
        &self.remote
    }

    /// Whether the bytes of an object in `parts` parts have to be read back although the store returned a checksum.
    pub(super) fn must_read_back(&self, parts: usize) -> bool {
        let checked = if parts > 1 {
            self.trust.checks_part_checksums
        } else {
            self.trust.checks_object_checksums
        };
        self.remote.settings.read_back == ReadBack::Always || !checked
    }
}

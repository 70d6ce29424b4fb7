//! One remote's way out for one run: opened once, then fed with steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use stepvault_core::observe::{Event, Observer};
use stepvault_core::records::VaultMarker;
use stepvault_core::remote_settings::ReadBack;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::vault::Vault;
use stepvault_remote::probe::{Trust, probe};

use crate::blocking::blocking;
use crate::memory::MemoryBudget;
use crate::run_remote::RunRemote;

/// What this vault remembers of a remote between starts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeenRemote {
    url: String,
    vault: String,
}

/// A remote that has been found to be the right one, with what it can be trusted to check.
#[derive(Debug, Clone)]
pub struct Lane {
    pub(super) remote: RunRemote,
    pub(super) vault: Vault,
    pub(super) marker: VaultMarker,
    pub(super) trust: Trust,
    pub(super) budget: MemoryBudget,
    pub(super) observer: Arc<dyn Observer>,
    /// What the store has copied for this lane, instead of its being sent.
    pub(super) copied_bytes: Arc<AtomicU64>,
}

impl Lane {
    /// Checks that the remote holds the vault it held before (or none yet, then marks it), and finds out by probing
    /// whether the store checks what it is given.
    pub async fn open(
        remote: RunRemote,
        vault: Vault,
        budget: MemoryBudget,
        observer: Arc<dyn Observer>,
    ) -> Result<Self> {
        let expected = seen_identity(&remote, &vault).await?;
        let marker = remote.ensure_marker(expected.as_deref()).await?;
        if expected.is_none() {
            remember(&remote, &vault, &marker).await?;
        }
        let trust = probe(remote.store.as_ref(), &remote.keys).await?;
        if !trust.honours_create_only {
            observer.on_event(&Event::Warning {
                message: &format!(
                    "{}: this store overwrites objects in spite of create-if-absent; two writers of one step could \
                     not see each other",
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

    /// Checks once more that the remote holds the vault it held before, for whoever could not reach it meanwhile. What
    /// the store checks is not probed again: that takes some twenty requests, of a store that has just refused too many.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when it is another vault.
    pub async fn recognise(&self) -> Result<()> {
        self.remote
            .ensure_marker(Some(&self.marker.vault))
            .await
            .map(drop)
    }

    /// Bytes that the store has copied from earlier steps since this lane was opened, instead of their being sent.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// The remote.
    pub fn remote(&self) -> &RunRemote {
        &self.remote
    }

    /// Whether the bytes of an object in `parts` parts have to be read back although the store named a checksum.
    pub(super) fn must_read_back(&self, parts: usize) -> bool {
        let checked = if parts > 1 {
            self.trust.checks_part_checksums
        } else {
            self.trust.checks_object_checksums
        };
        self.remote.settings.read_back == ReadBack::Always || !checked
    }
}

fn note_key(remote: &RunRemote) -> String {
    format!("remote-{}", remote.name())
}

/// The identity that this vault saw at this remote before; `None` when it never did, or the URL was changed.
pub(crate) async fn seen_identity(remote: &RunRemote, vault: &Vault) -> Result<Option<String>> {
    let (vault, run, key) = (vault.clone(), remote.keys.run().clone(), note_key(remote));
    let Some(bytes) = blocking(move || vault.read_note(&run, &key)).await? else {
        return Ok(None);
    };
    // A note that cannot be read is no evidence of another vault; it is written again.
    let seen: Option<SeenRemote> = serde_json::from_slice(&bytes).ok();
    Ok(seen
        .filter(|seen| seen.url == remote.store.url())
        .map(|seen| seen.vault))
}

async fn remember(remote: &RunRemote, vault: &Vault, marker: &VaultMarker) -> Result<()> {
    let seen = SeenRemote {
        url: remote.store.url().to_owned(),
        vault: marker.vault.clone(),
    };
    let bytes = serde_json::to_vec(&seen)
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot encode a note").caused_by(error))?;
    let (vault, run, key) = (vault.clone(), remote.keys.run().clone(), note_key(remote));
    blocking(move || vault.write_note(&run, &key, &bytes)).await
}

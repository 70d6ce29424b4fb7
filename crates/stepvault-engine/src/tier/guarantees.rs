//! Caches what a store was found to enforce for 24 h; the probe costs about 15 requests.

use serde::{Deserialize, Serialize};
use stepvault_core::Result;
use stepvault_core::clock::Clock as _;
use stepvault_core::digest::{DigestAlgorithm, Sha256Digest};
use stepvault_core::timestamp::Timestamp;
use stepvault_local::clock::SystemClock;
use stepvault_local::vault::Vault;
use stepvault_remote::probe::{StoreGuarantees, probe};

use super::notes::Note;
use super::run_remote::RunRemote;

/// How long an answer counts.
const VALID_SECONDS: u64 = 24 * 60 * 60;

/// The record of a remote.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Probed {
    /// Digest of the remote's settings, of its archive and of this program's version: another store, other
    /// credentials by another profile, or other questions.
    identity: String,
    at: Timestamp,
    guarantees: StoreGuarantees,
}

fn identity(remote: &RunRemote, archive: &str) -> String {
    let text = format!("{} {archive} {:?}", env!("CARGO_PKG_VERSION"), remote.settings);
    Sha256Digest::of(text.as_bytes()).to_string()
}

/// Returns what the store behind `remote` enforces for digests by `algorithm`: as it was found within the last day, or by
/// asking it.
pub(crate) async fn guarantees(
    remote: &RunRemote,
    vault: &Vault,
    archive: &str,
    algorithm: DigestAlgorithm,
) -> Result<StoreGuarantees> {
    let identity = identity(remote, archive);
    let now = SystemClock.now();
    // An unreadable record is none.
    if let Ok(Some(probed)) = remote.notes(vault).read::<Probed>(Note::Guarantees).await
        && probed.identity == identity
        && probed.guarantees.algorithm == algorithm
        && probed.at <= now
        && now.seconds_since(probed.at) < VALID_SECONDS
    {
        return Ok(probed.guarantees);
    }
    let guarantees = probe(remote.store.as_ref(), &remote.keys, algorithm).await?;
    // What is ignored is asked again, until the setting or the store is corrected.
    if guarantees.ignored_attributes.is_empty() {
        let probed = Probed {
            identity,
            at: now,
            guarantees: guarantees.clone(),
        };
        remote.notes(vault).keep(Note::Guarantees, &probed).await;
    }
    Ok(guarantees)
}

/// Returns whether this vault last found that the store does not refuse to overwrite an object, so that two writers of
/// one step at the same time may not notice each other. `None` where it never asked.
///
/// # Errors
/// When the vault cannot be read.
pub async fn lets_writers_collide(remote: &RunRemote, vault: &Vault) -> Result<Option<bool>> {
    let probed = remote.notes(vault).read::<Probed>(Note::Guarantees).await?;
    Ok(probed.map(|probed| {
        let StoreGuarantees {
            honours_create_only,
            completes_create_only,
            ..
        } = probed.guarantees;
        !(honours_create_only && completes_create_only)
    }))
}

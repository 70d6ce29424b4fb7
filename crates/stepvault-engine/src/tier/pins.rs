//! Pins: steps that retention keeps, on every tier.

use stepvault_core::codec::FORMAT;
use stepvault_core::ids::StepId;
use stepvault_core::records::Pin;
use stepvault_core::{Error, ErrorKind, Result};

use crate::tier::catalog::committed_ids;
use crate::tier::removed::removal_record;
use crate::tier::run_remote::RunRemote;

/// Pins a step on a remote; returns false when it was already pinned.
///
/// # Invariants
/// Every remover of steps sees an acknowledged pin (S4): the pinning process checks for a tombstone after writing the
/// pin, and the remover checks for pins after writing the tombstone.
///
/// # Errors
/// [`ErrorKind::NotFound`] when the step is not committed on it; [`ErrorKind::Refused`] when it is being removed.
pub async fn pin(remote: &RunRemote, id: StepId, note: &str) -> Result<bool> {
    if !committed_ids(remote).await?.contains_key(&id) {
        return Err(Error::new(ErrorKind::NotFound, format!("cannot pin {id}"))
            .on(remote.store.url())
            .because("it is not committed on this remote")
            .hint("run 'stepvault list' to see the steps"));
    }
    let key = remote.keys.pin(id);
    if remote.store.head(&key).await?.is_some() {
        return Ok(false);
    }
    let pin = Pin { format: FORMAT, run: remote.keys.run().clone(), id, note: note.to_owned() };
    let is_new = match remote.create_record(&key, &pin).await {
        Ok(_) => true,
        // Pinned meanwhile with a different note: it is pinned, which is what matters.
        Err(error) if error.kind() == ErrorKind::Conflict => false,
        Err(error) => return Err(error),
    };
    if removal_record(remote, id).await?.is_none() {
        return Ok(is_new);
    }
    // The pin stays: another process may have pinned the step in time. Otherwise it is deleted with the step.
    Err(Error::new(ErrorKind::Refused, format!("cannot pin {id}"))
        .on(remote.store.url())
        .because("retention is removing it")
        .hint("run 'stepvault list' to see the steps that can be pinned"))
}

/// Removes a pin; returns false when there was none.
pub async fn unpin(remote: &RunRemote, id: StepId) -> Result<bool> {
    let key = remote.keys.pin(id);
    let existed = remote.store.head(&key).await?.is_some();
    remote.store.delete(&[key]).await?;
    Ok(existed)
}

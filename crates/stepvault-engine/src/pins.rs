//! Pins: steps that retention keeps, on every tier.

use stepvault_core::codec::FORMAT;
use stepvault_core::ids::StepId;
use stepvault_core::records::Pin;
use stepvault_core::{Error, ErrorKind, Result};

use crate::catalog::committed_ids;
use crate::run_remote::RunRemote;

/// Pins a step on a remote; false when it was pinned there already.
///
/// # Invariants
/// A pin that this acknowledged is seen by whoever removes steps (S4): the tombstone of a removal is asked for after
/// the pin is there, and the pins after the tombstone is.
///
/// # Errors
/// [`ErrorKind::NotFound`] when the step is not committed there; [`ErrorKind::Refused`] when it is being removed.
pub async fn pin(remote: &RunRemote, id: StepId, note: &str) -> Result<bool> {
    if !committed_ids(remote).await?.contains_key(&id) {
        return Err(Error::new(ErrorKind::NotFound, format!("cannot pin {id}"))
            .on(remote.store.url())
            .because("it is not committed there")
            .hint("'stepvault list' shows what there is"));
    }
    let key = remote.keys.pin(id);
    if remote.store.head(&key).await?.is_some() {
        return Ok(false);
    }
    let pin = Pin {
        format: FORMAT,
        run: remote.keys.run().clone(),
        id,
        note: note.to_owned(),
    };
    let is_new = match remote.create_record(&key, &pin).await {
        Ok(_) => true,
        // Pinned meanwhile, with another note: pinned is what counts.
        Err(error) if error.kind() == ErrorKind::Conflict => false,
        Err(error) => return Err(error),
    };
    if remote.store.head(&remote.keys.tombstone(id)).await?.is_none() {
        return Ok(is_new);
    }
    // The pin stays: it may be another's as well, who was in time. If not, it goes with the step.
    Err(Error::new(ErrorKind::Refused, format!("cannot pin {id}"))
        .on(remote.store.url())
        .because("retention is removing it")
        .hint("'stepvault list' shows what is left to pin"))
}

/// Takes a pin away; false when there was none.
pub async fn unpin(remote: &RunRemote, id: StepId) -> Result<bool> {
    let key = remote.keys.pin(id);
    let existed = remote.store.head(&key).await?.is_some();
    remote.store.delete(&[key]).await?;
    Ok(existed)
}

//! Pins: steps that retention keeps, on every tier.

use stepvault_core::codec::FORMAT;
use stepvault_core::ids::StepId;
use stepvault_core::records::Pin;
use stepvault_core::{Error, ErrorKind, Result};

use crate::catalog::committed_ids;
use crate::run_remote::RunRemote;

/// Pins a step on a remote; false when it was pinned there already.
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
    match remote.create_record(&key, &pin).await {
        Ok(_) => Ok(true),
        // Pinned meanwhile, with another note: pinned is what counts.
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes a pin away; false when there was none.
pub async fn unpin(remote: &RunRemote, id: StepId) -> Result<bool> {
    let key = remote.keys.pin(id);
    let existed = remote.store.head(&key).await?.is_some();
    remote.store.delete(&[key]).await?;
    Ok(existed)
}

//! Checks whether remotes hold a checkpoint of this node.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepvault_core::ids::StepId;
use stepvault_core::observe::Observer;
use stepvault_core::placement::Content;
use stepvault_core::{ErrorKind, Result};

use crate::placement::{ScannedCheckpoint, known_on};
use crate::tier::catalog::read_commit;
use crate::tier::run_remote::RunRemote;
use crate::verify::CommittedParts;

/// Returns the identity under which all given remotes hold a checkpoint: commits and manifests were read back now, and the data was proved by the store's checksums or byte for byte. Returns `None` when
/// a remote does not hold it, or when no remote is given.
///
/// # Errors
/// When a remote is unreachable, as nothing is known then.
pub async fn held_by_all(
    remotes: &[RunRemote],
    checkpoint: &ScannedCheckpoint,
    observer: &Arc<dyn Observer>,
) -> Result<Option<StepId>> {
    let mut common: Option<BTreeSet<StepId>> = None;
    for remote in remotes {
        let found = known_on(remote, checkpoint).await?;
        let same = found.iter().filter(|known| known.content == Content::Same).map(|known| known.id);
        common = Some(match common {
            None => same.collect(),
            Some(before) => same.filter(|id| before.contains(id)).collect(),
        });
    }
    let Some(id) = common.and_then(|ids| ids.last().copied()) else {
        return Ok(None);
    };
    for remote in remotes {
        let commit = read_commit(remote, id).await?;
        match CommittedParts::all(remote, &commit, observer).ensure_durable().await {
            Ok(()) => {}
            // Damaged, or being removed since it was listed.
            Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Refused) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(id))
}

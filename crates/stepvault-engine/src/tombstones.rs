//! What retention and gc share: the tombstones of steps whose identities are used up, and those that are taken back.

use std::time::SystemTime;

use stepvault_core::Result;
use stepvault_core::codec::FORMAT;
use stepvault_core::ids::StepId;
use stepvault_core::records::Tombstone;
use stepvault_remote::store::ObjectInfo;

use crate::tier::catalog::committed_ids;
use crate::tier::removed::tombstones;
use crate::tier::run_remote::RunRemote;

/// Returns the tombstone of a step.
pub(crate) fn tombstone(remote: &RunRemote, id: StepId, name: String, by_gc: bool) -> Tombstone {
    Tombstone { format: FORMAT, run: remote.keys.run().clone(), id, name, by_gc }
}

/// Removes the tombstone of a step that was committed before it was tombstoned: its writer may have checked for the
/// tombstone before it existed and have acknowledged the step. Nothing of the step has been deleted then, because every
/// deleting process lists the commits after it has written the tombstone. A writer that committed later has seen the
/// tombstone.
pub(crate) async fn pardon(remote: &RunRemote, id: StepId, commit: &ObjectInfo) -> Result<()> {
    let key = remote.keys.tombstone(id);
    let Some(tombstone) = remote.store.head(&key).await? else {
        return Ok(());
    };
    if commit.modified <= tombstone.info.modified {
        remote.delete(vec![key]).await?;
    }
    Ok(())
}

/// Removes the tombstones left by a gc that was interrupted before its second check: see [`pardon`].
///
/// # Errors
/// When the remote is unreachable.
pub(crate) async fn remove_tombstones_of_kept(remote: &RunRemote) -> Result<()> {
    let committed = committed_ids(remote).await?;
    for id in tombstones(remote).await? {
        let Some(commit) = committed.get(&id) else {
            continue;
        };
        let key = remote.keys.tombstone(id);
        let tombstone: Option<Tombstone> = remote.read_usable_record(&key).await?;
        if tombstone.is_some_and(|tombstone| tombstone.by_gc) {
            let tombstoned = remote.store.head(&key).await?;
            // Strictly before: the gc may still be running, and of two events in the same second of the store's clock
            // the order is unknown.
            if tombstoned.is_some_and(|head| commit.modified < head.info.modified) {
                remote.delete(vec![key]).await?;
            }
        }
    }
    Ok(())
}

/// The local clock, for the local tier and for dry runs: pruning a remote uses the store's clock.
#[expect(clippy::disallowed_methods, reason = "a dry run writes nothing, so it has no store time to go by")]
pub(crate) fn local_now() -> SystemTime {
    SystemTime::now()
}

//! Records in the vault which checkpoints this node has sealed or restored, so that each is known again after retention has
//! removed it from every tier.
//!
//! A trainer may keep a checkpoint longer than stepvault does. Without this record the checkpoint would be sealed again, under the
//! attempt of whatever launch runs by then.

use serde::{Deserialize, Serialize};
use stepvault_core::Result;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::{RunName, Step, StepId};
use stepvault_core::manifest::SymlinkEntry;
use stepvault_core::path::RelativePath;
use stepvault_core::shares::tree_sha256;
use stepvault_core::timestamp::Timestamp;
use stepvault_local::tree::Tree;
use stepvault_local::vault::Vault;

use crate::notes::{read_list, sync_list, write_list};

/// Number of checkpoints that a vault records, the latest ones.
const KEPT: usize = 1024;
const NOTE: &str = "seen-checkpoints";

/// What identifies the files of a checkpoint without reading them: paths, sizes, links and the newest modification time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointIdentity {
    tree_sha256: Sha256Digest,
    /// By the trainer's clock.
    written_at: Timestamp,
}

impl CheckpointIdentity {
    /// Identifies a checkpoint by its files and links.
    pub(crate) fn of(
        files: &[(&RelativePath, u64)],
        symlinks: &[SymlinkEntry],
        written_at: Timestamp,
    ) -> Self {
        Self {
            tree_sha256: tree_sha256(files, symlinks),
            written_at,
        }
    }

    /// Identifies a scanned checkpoint.
    pub(crate) fn of_tree(tree: &Tree) -> Self {
        let files: Vec<_> = tree
            .files
            .iter()
            .map(|file| (&file.path, file.size_bytes))
            .collect();
        Self::of(&files, &tree.symlinks, tree.newest_mtime())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeenCheckpoint {
    id: StepId,
    checkpoint: CheckpointIdentity,
}

/// Records that `checkpoint` is the step `id`.
///
/// # Errors
/// When the vault cannot be written to.
pub(crate) async fn record_checkpoint(
    vault: &Vault,
    run: &RunName,
    id: StepId,
    checkpoint: CheckpointIdentity,
) -> Result<()> {
    let seen = SeenCheckpoint { id, checkpoint };
    let mut list: Vec<SeenCheckpoint> = read_list(vault, run, NOTE).await?;
    if list.contains(&seen) {
        return sync_list(vault, run, NOTE).await;
    }
    // The attempt of a provisional step may have changed since.
    list.retain(|known| known.id.step != id.step || known.checkpoint != seen.checkpoint);
    list.push(seen);
    write_list(vault, run, NOTE, &mut list, KEPT).await
}

/// Returns the step as which this checkpoint was sealed or restored before.
///
/// # Errors
/// When the vault cannot be read.
pub(crate) async fn seen_checkpoint(
    vault: &Vault,
    run: &RunName,
    step: Step,
    checkpoint: &CheckpointIdentity,
) -> Result<Option<StepId>> {
    let list: Vec<SeenCheckpoint> = read_list(vault, run, NOTE).await?;
    let seen = list
        .iter()
        .rfind(|seen| seen.id.step == step && seen.checkpoint == *checkpoint);
    Ok(seen.map(|seen| seen.id))
}

/// Returns the step as which this checkpoint was sealed or restored before, whatever its number is, and the newest of all
/// steps that are recorded.
///
/// # Errors
/// When the vault cannot be read.
pub(crate) async fn seen_content(
    vault: &Vault,
    run: &RunName,
    checkpoint: &CheckpointIdentity,
) -> Result<(Option<StepId>, Option<StepId>)> {
    let list: Vec<SeenCheckpoint> = read_list(vault, run, NOTE).await?;
    let seen = list.iter().rfind(|seen| seen.checkpoint == *checkpoint);
    Ok((seen.map(|seen| seen.id), list.iter().map(|seen| seen.id).max()))
}

//! Records in the vault which checkpoints this node has sealed or restored, so that each is known again after retention has
//! removed it from every tier.
//!
//! A trainer may keep a checkpoint longer than stepvault does. Without this record the checkpoint would be sealed again, under the
//! attempt of whatever launch runs by then.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stepvault_core::manifest::SymlinkEntry;
use stepvault_core::placement::ResumedFrom;
use stepvault_core::shares::tree_sha256;
use stepvault_core::{Attempt, RelativePath, Result, RunName, Sha256Digest, Step, StepId, Timestamp};
use stepvault_local::tree::Tree;
use stepvault_local::vault::Vault;

use crate::notes::{read_list, sync_list, write_list};

/// Number of checkpoints that a vault records, the latest ones.
const KEPT: usize = 1024;
const NOTE: &str = "seen-checkpoints";

/// What is known of the files of a checkpoint without reading them: paths, sizes, links and the newest modification time,
/// which a program may set; and the inodes with the times of their last change, which none can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckpointIdentity {
    tree_sha256: Sha256Digest,
    /// See [`Tree::unchanged_sha256`]. Omitted where the files were not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unchanged_sha256: Option<Sha256Digest>,
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
        Self { tree_sha256: tree_sha256(files, symlinks), unchanged_sha256: None, written_at }
    }

    /// Identifies a scanned checkpoint.
    pub(crate) fn of_tree(tree: &Tree) -> Self {
        let files: Vec<_> = tree.files.iter().map(|file| (&file.path, file.size_bytes)).collect();
        Self {
            unchanged_sha256: Some(tree.unchanged_sha256()),
            ..Self::of(&files, &tree.symlinks, tree.newest_mtime())
        }
    }

    /// Whether nothing but the bytes, if anything, tells the two apart.
    pub(crate) fn looks_like(&self, other: &Self) -> bool {
        (self.tree_sha256, self.written_at) == (other.tree_sha256, other.written_at)
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
    list.retain(|known| known.id.step != id.step || !known.checkpoint.looks_like(&seen.checkpoint));
    list.push(seen);
    write_list(vault, run, NOTE, &mut list, KEPT).await
}

/// A step as which a checkpoint was sealed or restored before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) id: StepId,
    /// Whether its files are the very ones, unchanged. Otherwise only their bytes tell whether it is the same checkpoint.
    pub(crate) is_proven: bool,
}

/// Returns the step as which this checkpoint, or one that looks like it, was sealed or restored before.
///
/// # Errors
/// When the vault cannot be read.
pub(crate) async fn seen_checkpoint(
    vault: &Vault,
    run: &RunName,
    step: Step,
    checkpoint: &CheckpointIdentity,
) -> Result<Option<Seen>> {
    let list: Vec<SeenCheckpoint> = read_list(vault, run, NOTE).await?;
    let seen = list.iter().rfind(|seen| seen.id.step == step && seen.checkpoint.looks_like(checkpoint));
    Ok(seen.map(|SeenCheckpoint { id, checkpoint: seen }| Seen {
        id: *id,
        is_proven: seen.unchanged_sha256.is_some() && seen.unchanged_sha256 == checkpoint.unchanged_sha256,
    }))
}

/// Returns the steps that are recorded.
///
/// # Errors
/// When the vault cannot be read.
pub(crate) async fn seen_ids(vault: &Vault, run: &RunName) -> Result<BTreeSet<StepId>> {
    let list: Vec<SeenCheckpoint> = read_list(vault, run, NOTE).await?;
    Ok(list.iter().map(|seen| seen.id).collect())
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
    let seen = list.iter().rfind(|seen| seen.checkpoint.looks_like(checkpoint));
    Ok((seen.map(|seen| seen.id), list.iter().map(|seen| seen.id).max()))
}

/// Number of restores that a vault stores, the latest ones.
const KEPT_RESUMPTIONS: usize = 256;
const RESUMPTIONS_NOTE: &str = "resumptions";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resumption {
    restored: StepId,
    /// By this node's clock.
    since: Timestamp,
    /// The attempt of the steps saved since then.
    attempt: Option<Attempt>,
}

/// The restores of one run on this node, the latest last.
///
/// Checkpoints that a trainer saves after a restore follow the restored step and replace what came after it. The file
/// times of other nodes cannot show that, and neither can an unreachable remote.
#[derive(Debug)]
pub(crate) struct Resumptions {
    vault: Vault,
    run: RunName,
    list: Vec<Resumption>,
}

impl Resumptions {
    /// Loads the stored restores. An unreadable record counts as empty.
    pub(crate) async fn open(vault: &Vault, run: &RunName) -> Result<Self> {
        Ok(Self {
            vault: vault.clone(),
            run: run.clone(),
            list: read_list(vault, run, RESUMPTIONS_NOTE).await?,
        })
    }

    /// Records that the trainer resumes from `restored`.
    pub(crate) async fn add(&mut self, restored: StepId, since: Timestamp) -> Result<()> {
        // A restore after which nothing was saved is superseded by the next.
        if self.list.last().is_some_and(|last| last.attempt.is_none()) {
            self.list.pop();
        }
        self.list.push(Resumption { restored, since, attempt: None });
        self.write().await
    }

    /// Returns the latest restore before `time`.
    pub(crate) fn before(&self, time: Timestamp) -> Option<ResumedFrom> {
        let found = self.list.iter().rfind(|entry| entry.since <= time)?;
        Some(ResumedFrom { id: found.restored, since: found.since, attempt: found.attempt })
    }

    /// Records the attempt of the steps saved after `resumed`.
    pub(crate) async fn joined(&mut self, resumed: &ResumedFrom, attempt: Attempt) -> Result<()> {
        let entry = self.list.iter_mut().rfind(|entry| entry.since == resumed.since);
        match entry {
            Some(entry) if entry.attempt != Some(attempt) => entry.attempt = Some(attempt),
            _ => return Ok(()),
        }
        self.write().await
    }

    async fn write(&mut self) -> Result<()> {
        write_list(&self.vault, &self.run, RESUMPTIONS_NOTE, &mut self.list, KEPT_RESUMPTIONS).await
    }
}

//! Collects what the tiers know of a run, as far as placing a new checkpoint needs it.

use std::collections::{BTreeMap, BTreeSet};

use stepvault_core::attempts::KnownStep;
use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::manifest::PartManifest;
use stepvault_core::nodes::Writer;
use stepvault_core::records::Tombstone;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{ErrorKind, Result};
use stepvault_local::compare;
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::Tree;

use crate::blocking::blocking;
use crate::catalog::{
    RemovedSteps, claimed_ids, committed_ids, is_outage, read_commit, read_commits, read_manifests,
    removed_steps,
};
use crate::content::{
    ContentMatch, tree_is_of_step, tree_matches_manifest, tree_matches_part, tree_matches_record,
};
use crate::run_remote::RunRemote;

/// The checkpoint to place.
#[derive(Debug)]
pub(super) struct ScannedCheckpoint<'a> {
    pub(super) source: &'a std::path::Path,
    pub(super) step: Step,
    pub(super) tree: &'a Tree,
}

/// Returns the steps that the local tier knows.
pub(super) fn known_locally<'a>(
    steps: impl IntoIterator<Item = &'a SealedStep>,
    checkpoint: &ScannedCheckpoint<'_>,
) -> Vec<KnownStep> {
    steps
        .into_iter()
        .map(|step| KnownStep {
            id: step.id(),
            written_at: Some(step.record().written_at),
            same_content: step.id().step == checkpoint.step
                && tree_matches_record(checkpoint.tree, step.record()),
        })
        .collect()
}

/// Returns the steps that a remote knows: commits, removed steps whose identities are used up, and claims that were
/// never committed.
pub(super) async fn known_on(
    remote: &RunRemote,
    checkpoint: &ScannedCheckpoint<'_>,
) -> Result<Vec<KnownStep>> {
    let (mut committed, claimed) = tokio::try_join!(committed_ids(remote), claimed_ids(remote))?;
    // Listed after the commits: one that was removed meanwhile is known as removed.
    let removed = removed_steps(remote).await?;
    // A step that is being removed is not known as committed, whether its commit still exists or not.
    committed.retain(|id, _| !removed.contains(*id));
    let visible: BTreeSet<StepId> = committed.keys().copied().collect();
    let to_read = worth_reading(visible.iter().copied(), checkpoint.step);
    let unread = visible.difference(&to_read).map(|id| taken(*id, None));
    let mut known: Vec<KnownStep> = unread.collect();
    committed.retain(|id, _| to_read.contains(id));
    for (id, found) in read_commits(remote, committed, None).await? {
        known.push(match found.commit {
            // Manifests may be large: one is in memory at a time.
            Ok(commit) => KnownStep {
                same_content: id.step == checkpoint.step && same_content(remote, &commit, checkpoint).await?,
                ..taken(id, Some(commit.written_at))
            },
            // A damaged commit still occupies its identity; reporting it is up to verify.
            Err(error) if error.kind() == ErrorKind::Damaged => taken(id, Some(Timestamp::default())),
            Err(error) => return Err(error),
        });
    }
    for id in removed_names(&removed, checkpoint.step) {
        let by_gc = id.step == checkpoint.step && was_removed_by_gc(remote, id).await?;
        known.push(taken(id, by_gc.then(Timestamp::default)));
    }
    for id in claimed.into_keys() {
        if !visible.contains(&id) && !removed.contains(id) {
            // Claimed by an upload that never finished, on this or a lost node. Its time is unknown; 'long ago' makes
            // another checkpoint of the step a new attempt.
            known.push(taken(id, Some(Timestamp::default())));
        }
    }
    Ok(known)
}

/// Returns what a remote knows of this node's own parts of multi-node steps: the parts of the same step, and the latest
/// one of each attempt. Parts of other nodes and their clocks decide nothing here. The second value is whether the
/// checkpoint belongs to a committed step.
pub(super) async fn own_parts_on(
    remote: &RunRemote,
    checkpoint: &ScannedCheckpoint<'_>,
    writer: &Writer,
) -> Result<(Vec<KnownStep>, bool)> {
    let (committed, claimed) = tokio::try_join!(committed_ids(remote), claimed_ids(remote))?;
    let ids: BTreeSet<StepId> = committed.keys().copied().chain(claimed.into_keys()).collect();
    let mut known = Vec::new();
    for id in worth_reading(ids.into_iter(), checkpoint.step) {
        known.extend(own_part(remote, id, checkpoint, writer, committed.contains_key(&id)).await?);
    }
    // Listed last, as in `known_on`.
    for id in removed_names(&removed_steps(remote).await?, checkpoint.step) {
        known.retain(|entry| entry.id != id);
        known.push(taken(id, None));
    }
    let is_committed = known
        .iter()
        .any(|entry| entry.same_content && committed.contains_key(&entry.id));
    Ok((known, is_committed))
}

/// Returns what is known of a step by this node's own part of it; `None` if it has none.
async fn own_part(
    remote: &RunRemote,
    id: StepId,
    checkpoint: &ScannedCheckpoint<'_>,
    writer: &Writer,
    is_committed: bool,
) -> Result<Option<KnownStep>> {
    let key = remote.keys.part(id, writer.place.node());
    let manifest = match remote.read_record::<PartManifest>(&key).await {
        Ok(Some((manifest, _))) => manifest,
        Ok(None) => return Ok(None),
        Err(error) if is_outage(&error) => return Err(error),
        // An unreadable part still occupies its identity.
        Err(_) => return Ok(Some(taken(id, Some(Timestamp::default())))),
    };
    let same_content = id.step == checkpoint.step
        && if is_committed {
            is_of_committed(remote, id, checkpoint, &manifest).await?
        } else {
            tree_matches_part(checkpoint.tree, &manifest)
        };
    Ok(Some(KnownStep {
        same_content,
        ..taken(id, Some(manifest.written_at))
    }))
}

/// Whether the checkpoint is a committed step: this node's own part, with or without the others' parts, as a restore
/// places them. The times have to match too: a checkpoint that is written again is a new one even if its bytes are
/// equal, because otherwise the nodes would not agree.
async fn is_of_committed(
    remote: &RunRemote,
    id: StepId,
    checkpoint: &ScannedCheckpoint<'_>,
    own: &PartManifest,
) -> Result<bool> {
    if tree_matches_part(checkpoint.tree, own) {
        return Ok(true);
    }
    let parts = async {
        let commit = read_commit(remote, id).await?;
        read_manifests(remote, &commit).await
    };
    match parts.await {
        Ok(parts) => Ok(tree_is_of_step(checkpoint.tree, own, &parts)),
        Err(error) if error.kind() == ErrorKind::Damaged => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the removed steps that matter for placing a checkpoint of `step`: all that still have a tombstone, and of
/// the retired ones those with its number and one of the highest attempt.
fn removed_names(removed: &RemovedSteps, step: Step) -> BTreeSet<StepId> {
    let mut names = removed.tombstoned.clone();
    names.extend(removed.retired.of_step(step));
    names.extend(removed.retired.last());
    names
}

/// Whether gc removed what an unfinished upload left, rather than retention a step. Another checkpoint of that step is
/// then a new attempt, as if the claim still existed. Once the tombstone is gone, the two cases cannot be
/// distinguished.
async fn was_removed_by_gc(remote: &RunRemote, id: StepId) -> Result<bool> {
    let tombstone: Option<Tombstone> = remote.read_usable_record(&remote.keys.tombstone(id)).await?;
    Ok(tombstone.is_some_and(|tombstone| tombstone.by_gc))
}

fn taken(id: StepId, written_at: Option<Timestamp>) -> KnownStep {
    KnownStep {
        id,
        written_at,
        same_content: false,
    }
}

/// Returns the commits whose times decide: those of the same step, and the first and last of each attempt.
fn worth_reading(ids: impl Iterator<Item = StepId>, step: Step) -> BTreeSet<StepId> {
    let mut bounds: BTreeMap<Attempt, (StepId, StepId)> = BTreeMap::new();
    let mut wanted = BTreeSet::new();
    for id in ids {
        if id.step == step {
            wanted.insert(id);
        }
        let (first, last) = bounds.entry(id.attempt).or_insert((id, id));
        *first = (*first).min(id);
        *last = (*last).max(id);
    }
    wanted.extend(bounds.into_values().flat_map(|(first, last)| [first, last]));
    wanted
}

async fn same_content(
    remote: &RunRemote,
    commit: &stepvault_core::commit::Commit,
    checkpoint: &ScannedCheckpoint<'_>,
) -> Result<bool> {
    let manifests = match read_manifests(remote, commit).await {
        Ok(manifests) => manifests,
        Err(error) if error.kind() == ErrorKind::Damaged => return Ok(false),
        Err(error) => return Err(error),
    };
    let Ok([manifest]) = <[PartManifest; 1]>::try_from(manifests) else {
        // A multi-node step never equals a single-node step.
        return Ok(false);
    };
    match tree_matches_manifest(checkpoint.tree, &manifest) {
        ContentMatch::Same => Ok(true),
        ContentMatch::Different => Ok(false),
        ContentMatch::HashToTell => {
            let (source, present) = (checkpoint.source.to_owned(), checkpoint.tree.clone());
            let difference = blocking(move || {
                compare::scanned_differs(
                    &present,
                    &source,
                    &manifest.files,
                    &manifest.directories,
                    &manifest.symlinks,
                )
            })
            .await?;
            Ok(difference.is_none())
        }
    }
}

//! What the tiers know of a run, as far as placing a new checkpoint needs it.

use std::collections::{BTreeMap, BTreeSet};

use stepvault_core::attempts::KnownStep;
use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::keys::KeyKind;
use stepvault_core::manifest::PartManifest;
use stepvault_core::nodes::Writer;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{ErrorKind, Result};
use stepvault_local::compare;
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::Tree;

use crate::blocking::blocking;
use crate::catalog::{committed_ids, read_commit, read_manifests, tombstones};
use crate::content::{
    ContentMatch, tree_is_of_step, tree_matches_manifest, tree_matches_part, tree_matches_record,
};
use crate::run_remote::RunRemote;

/// The checkpoint at hand.
#[derive(Debug)]
pub(super) struct AtHand<'a> {
    pub(super) source: &'a std::path::Path,
    pub(super) step: Step,
    pub(super) tree: &'a Tree,
}

/// What the local tier knows.
pub(super) fn known_locally(steps: &[SealedStep], at_hand: &AtHand<'_>) -> Vec<KnownStep> {
    steps
        .iter()
        .map(|step| KnownStep {
            id: step.id(),
            written_at: Some(step.record().written_at),
            same_content: step.id().step == at_hand.step && tree_matches_record(at_hand.tree, step.record()),
        })
        .collect()
}

/// What a remote knows: commits, names that are spent, and claims that never came to a commit.
pub(super) async fn known_on(remote: &RunRemote, at_hand: &AtHand<'_>) -> Result<Vec<KnownStep>> {
    let committed = committed_ids(remote).await?;
    let spent: BTreeSet<StepId> = tombstones(remote).await?.into_iter().collect();
    let to_read = worth_reading(committed.keys().copied(), at_hand.step);
    let mut known = Vec::new();
    for id in committed.keys().copied() {
        let mut entry = KnownStep {
            id,
            written_at: None,
            same_content: false,
        };
        if to_read.contains(&id) {
            match read_commit(remote, id).await {
                Ok(commit) => {
                    entry.written_at = Some(commit.written_at);
                    entry.same_content =
                        id.step == at_hand.step && same_content(remote, &commit, at_hand).await?;
                }
                // A damaged commit still takes its name; it is verify's to report.
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    entry.written_at = Some(Timestamp::default());
                }
                Err(error) => return Err(error),
            }
        }
        known.push(entry);
    }
    for id in &spent {
        if !committed.contains_key(id) {
            known.push(KnownStep {
                id: *id,
                written_at: None,
                same_content: false,
            });
        }
    }
    for object in remote.list(&remote.keys.claims_prefix()).await? {
        if let Some(KeyKind::Claim(id)) = remote.keys.classify(&object.key)
            && !committed.contains_key(&id)
            && !spent.contains(&id)
        {
            // Taken by an upload that never ended, here or on a lost node. When it was written is not known; 'long
            // ago' makes another save of it a new attempt.
            known.push(KnownStep {
                id,
                written_at: Some(Timestamp::default()),
                same_content: false,
            });
        }
    }
    Ok(known)
}

/// What a remote knows of this node's own parts, where several nodes write a step: the parts of the same step, and the
/// latest one of each attempt. What the others have written, and when by their clocks, decides nothing here. The second
/// value is whether the checkpoint at hand is part of a step that is committed.
pub(super) async fn own_parts_on(
    remote: &RunRemote,
    at_hand: &AtHand<'_>,
    writer: &Writer,
) -> Result<(Vec<KnownStep>, bool)> {
    let committed = committed_ids(remote).await?;
    let mut ids: BTreeSet<StepId> = committed.keys().copied().collect();
    for object in remote.list(&remote.keys.claims_prefix()).await? {
        if let Some(KeyKind::Claim(id)) = remote.keys.classify(&object.key) {
            ids.insert(id);
        }
    }
    let mut known = Vec::new();
    for id in worth_reading(ids.into_iter(), at_hand.step) {
        let key = remote.keys.part(id, writer.place.node());
        let manifest = match remote.read_record::<PartManifest>(&key).await {
            Ok(Some((manifest, _))) => manifest,
            Ok(None) => continue,
            Err(error) if crate::catalog::is_outage(&error) => return Err(error),
            // It takes its place nevertheless.
            Err(_) => {
                known.push(taken(id, Some(Timestamp::default())));
                continue;
            }
        };
        let written_at = Some(manifest.written_at);
        let same_content = id.step == at_hand.step
            && if committed.contains_key(&id) {
                is_of_committed(remote, id, at_hand, &manifest).await?
            } else {
                tree_matches_part(at_hand.tree, &manifest)
            };
        known.push(KnownStep {
            same_content,
            ..taken(id, written_at)
        });
    }
    for id in tombstones(remote).await? {
        known.retain(|entry| entry.id != id);
        known.push(taken(id, None));
    }
    let is_committed = known
        .iter()
        .any(|entry| entry.same_content && committed.contains_key(&entry.id));
    Ok((known, is_committed))
}

/// Whether the checkpoint is a step that is committed: what this node wrote of it, with or without the others' parts, as
/// a restore puts them there. By times as well: what is saved again is another save, be its bytes the same or not, or the
/// nodes would not agree.
async fn is_of_committed(
    remote: &RunRemote,
    id: StepId,
    at_hand: &AtHand<'_>,
    own: &PartManifest,
) -> Result<bool> {
    if tree_matches_part(at_hand.tree, own) {
        return Ok(true);
    }
    let parts = async {
        let commit = read_commit(remote, id).await?;
        read_manifests(remote, &commit).await
    };
    match parts.await {
        Ok(parts) => Ok(tree_is_of_step(at_hand.tree, own, &parts)),
        Err(error) if error.kind() == ErrorKind::Damaged => Ok(false),
        Err(error) => Err(error),
    }
}

fn taken(id: StepId, written_at: Option<Timestamp>) -> KnownStep {
    KnownStep {
        id,
        written_at,
        same_content: false,
    }
}

/// The commits whose times decide: those of the same step, and the first and last of each attempt.
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
    at_hand: &AtHand<'_>,
) -> Result<bool> {
    let manifests = match read_manifests(remote, commit).await {
        Ok(manifests) => manifests,
        Err(error) if error.kind() == ErrorKind::Damaged => return Ok(false),
        Err(error) => return Err(error),
    };
    let Ok([manifest]) = <[PartManifest; 1]>::try_from(manifests) else {
        // A step of several nodes is never that of one alone.
        return Ok(false);
    };
    part_matches(at_hand, manifest).await
}

async fn part_matches(at_hand: &AtHand<'_>, manifest: PartManifest) -> Result<bool> {
    match tree_matches_manifest(at_hand.tree, &manifest) {
        ContentMatch::Same => Ok(true),
        ContentMatch::Different => Ok(false),
        ContentMatch::HashToTell => {
            let (source, present) = (at_hand.source.to_owned(), at_hand.tree.clone());
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

//! What the tiers know of a run, as far as placing a new checkpoint needs it.

use std::collections::{BTreeMap, BTreeSet};

use stepvault_core::attempts::KnownStep;
use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::keys::KeyKind;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::compare;
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::Tree;

use crate::blocking::blocking;
use crate::catalog::{committed_ids, read_commit, read_manifests, tombstones};
use crate::content::{ContentMatch, tree_matches_manifest, tree_matches_record};
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
    let [manifest] = manifests.try_into().map_err(|manifests: Vec<_>| {
        Error::new(ErrorKind::Usage, "cannot push over a step of several nodes")
            .on(commit.id)
            .because(format!("it has {} parts", manifests.len()))
    })?;
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

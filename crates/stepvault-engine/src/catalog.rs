//! Reads what a remote holds of a run: commits, manifests, pins, leases, tombstones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use futures::{StreamExt, TryStreamExt, stream};
use stepvault_core::commit::{Commit, CommittedPart, FoundPart};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::{NodeName, StepId};
use stepvault_core::keys::KeyKind;
use stepvault_core::manifest::PartManifest;
use stepvault_core::nodes::NodeSet;
use stepvault_core::records::{Lease, Tombstone};
use stepvault_core::retired::{RetiredRecord, RetiredSteps};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::store::ObjectInfo;

use crate::run_remote::RunRemote;

/// Number of small records that are read concurrently.
const PARALLEL_READS: usize = 32;
/// Number of manifests of unknown length that are read concurrently.
const PARALLEL_MANIFESTS: usize = 4;
/// Maximum total bytes of manifests that are read concurrently, unless a single one is larger.
const MANIFESTS_AT_ONCE_BYTES: u64 = 32 << 20;

/// A commit that was found on a remote.
#[derive(Debug)]
pub struct FoundCommit {
    /// The object: its time is when the step was committed, by the store's clock.
    pub object: ObjectInfo,
    /// The commit, or why it cannot be read.
    pub commit: Result<Commit>,
}

/// All commits of a run on a remote.
#[derive(Debug, Default)]
pub struct Commits {
    /// By step, the newest last.
    pub by_step: BTreeMap<StepId, FoundCommit>,
    /// Keys under `commits/` that do not follow stepvault's layout.
    pub foreign: Vec<String>,
}

/// Lists the steps committed on a remote without reading the commits: one LIST.
pub async fn committed_ids(remote: &RunRemote) -> Result<BTreeMap<StepId, ObjectInfo>> {
    let mut ids = BTreeMap::new();
    for object in remote.list(&remote.keys.commits_prefix()).await? {
        if let Some(KeyKind::Commit(id)) = remote.keys.classify(&object.key) {
            ids.insert(id, object);
        }
    }
    Ok(ids)
}

/// Lists and reads all commits. A failed listing is an error; an unreadable commit is part of the result.
pub async fn commits(remote: &RunRemote) -> Result<Commits> {
    let listed = remote.list(&remote.keys.commits_prefix()).await?;
    let mut commits = Commits::default();
    let mut wanted = Vec::new();
    for object in listed {
        match remote.keys.classify(&object.key) {
            Some(KeyKind::Commit(id)) => wanted.push((id, object)),
            _ => commits.foreign.push(object.key),
        }
    }
    let read: Vec<(StepId, FoundCommit)> = stream::iter(wanted)
        .map(|(id, object)| async move {
            let commit = read_commit(remote, id).await;
            match commit {
                // The remote is unreachable, which proves nothing about the commit.
                Err(error) if is_outage(&error) => Err(error),
                commit => Ok((id, FoundCommit { object, commit })),
            }
        })
        .buffer_unordered(PARALLEL_READS)
        .try_collect()
        .await?;
    commits.by_step.extend(read);
    Ok(commits)
}

/// Whether an error concerns access to a tier, or this process, rather than the tier's content.
pub fn is_outage(error: &Error) -> bool {
    error.is_inconclusive()
        || matches!(
            error.kind(),
            ErrorKind::Unreachable | ErrorKind::Denied | ErrorKind::Interrupted
        )
}

/// Returns the error as an outage, if it is one: the tier could not be read.
#[must_use]
pub fn outage(error: Error) -> Error {
    if error.is_inconclusive() {
        return error.with_kind(ErrorKind::Unreachable);
    }
    error
}

/// Reads one commit and checks that its content matches its key.
pub async fn read_commit(remote: &RunRemote, id: StepId) -> Result<Commit> {
    let key = remote.keys.commit(id);
    let (commit, _) = remote.read_record::<Commit>(&key).await?.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "cannot read the commit: it does not exist").on(remote.describe(&key))
    })?;
    if commit.id == id && commit.run == *remote.keys.run() {
        return Ok(commit);
    }
    Err(Error::new(ErrorKind::Damaged, "cannot use the commit")
        .on(remote.describe(&key))
        .because(format!("it belongs to {}, run {}", commit.id, commit.run)))
}

/// Reads one part manifest and checks it against its commit.
pub async fn read_part_manifest(
    remote: &RunRemote,
    commit: &Commit,
    part: &CommittedPart,
) -> Result<PartManifest> {
    let key = remote.keys.part(commit.id, &part.node);
    let subject = remote.describe(&key);
    let damaged = |why: &str| {
        Error::new(ErrorKind::Damaged, "cannot use the part manifest")
            .on(&subject)
            .because(why)
    };
    let bytes = remote
        .read_small(&key)
        .await?
        .ok_or_else(|| damaged("it is missing"))?;
    if bytes.len() as u64 != part.manifest_bytes || Sha256Digest::of(&bytes) != part.manifest_sha256 {
        return Err(damaged("its digest is not the one in the commit"));
    }
    let manifest: PartManifest = stepvault_core::codec::decode(&bytes, &subject)?;
    let consistent = manifest.run == commit.run
        && manifest.id == commit.id
        && manifest.node == part.node
        && manifest.name == commit.name
        && manifest.shape == commit.shape
        && manifest.data_bytes() == part.data_bytes
        && manifest.files.len() as u64 == part.file_count;
    if consistent {
        Ok(manifest)
    } else {
        Err(damaged("it contradicts its commit"))
    }
}

/// Returns all part manifests of a step, in the order of its nodes.
pub async fn read_manifests(remote: &RunRemote, commit: &Commit) -> Result<Vec<PartManifest>> {
    read_manifests_of(remote, commit, &commit.parts).await
}

/// Returns the manifests of some of a step's parts.
pub(crate) async fn read_manifests_of(
    remote: &RunRemote,
    commit: &Commit,
    parts: &[CommittedPart],
) -> Result<Vec<PartManifest>> {
    let largest_bytes = parts.iter().map(|part| part.manifest_bytes).max().unwrap_or(0);
    let at_once = MANIFESTS_AT_ONCE_BYTES / largest_bytes.max(1);
    let at_once = usize::try_from(at_once)
        .unwrap_or(usize::MAX)
        .clamp(1, PARALLEL_READS);
    stream::iter(parts)
        .map(|part| read_part_manifest(remote, commit, part))
        .buffered(at_once)
        .try_collect()
        .await
}

/// Returns the nodes whose parts of a step exist: one LIST.
pub async fn present_parts(remote: &RunRemote, id: StepId) -> Result<BTreeSet<NodeName>> {
    let objects = remote.list(&remote.keys.step_parts_prefix(id)).await?;
    Ok(objects
        .iter()
        .filter_map(|object| match remote.keys.classify(&object.key) {
            Some(KeyKind::Part(_, node)) => Some(node),
            _ => None,
        })
        .collect())
}

/// Returns the part manifests of `nodes` for a step that has no commit yet to check them against.
pub(crate) async fn read_found_parts(
    remote: &RunRemote,
    id: StepId,
    nodes: &NodeSet,
) -> Result<Vec<FoundPart>> {
    stream::iter(nodes.iter())
        .map(|node| async move {
            let key = remote.keys.part(id, node);
            let found = remote.read_record::<PartManifest>(&key).await?;
            let (manifest, bytes) = found.ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    "cannot read the part manifest: it does not exist",
                )
                .on(remote.describe(&key))
            })?;
            if manifest.id != id || manifest.node != *node || manifest.run != *remote.keys.run() {
                return Err(Error::new(ErrorKind::Damaged, "cannot use the part manifest")
                    .on(remote.describe(&key))
                    .because(format!("it belongs to {}, {}", manifest.node, manifest.id)));
            }
            Ok(FoundPart::of(
                &manifest,
                Sha256Digest::of(&bytes),
                bytes.len() as u64,
            ))
        })
        // Their lengths are unknown before they are read.
        .buffered(PARALLEL_MANIFESTS)
        .try_collect()
        .await
}

/// Lists the pins on a remote. The key alone pins: a pin with an unreadable record still holds.
pub async fn pins(remote: &RunRemote) -> Result<Vec<StepId>> {
    let objects = remote.list(&remote.keys.pins_prefix()).await?;
    Ok(objects
        .iter()
        .filter_map(|object| match remote.keys.classify(&object.key) {
            Some(KeyKind::Pin(id)) => Some(id),
            _ => None,
        })
        .collect())
}

/// Lists the tombstones on a remote: the steps that are being removed, and those removed recently.
pub async fn tombstones(remote: &RunRemote) -> Result<Vec<StepId>> {
    let objects = remote.list(&remote.keys.tombstones_prefix()).await?;
    Ok(objects
        .iter()
        .filter_map(|object| match remote.keys.classify(&object.key) {
            Some(KeyKind::Tombstone(id)) => Some(id),
            _ => None,
        })
        .collect())
}

/// The steps of a run that were, or are being, removed from a remote. Their identities are never reused (S9).
#[derive(Debug, Default)]
pub struct RemovedSteps {
    /// Those that still have a tombstone.
    pub tombstoned: BTreeSet<StepId>,
    /// Those of which only the record of retired steps is left.
    pub retired: RetiredSteps,
}

impl RemovedSteps {
    /// Whether the step is among them.
    pub fn contains(&self, id: StepId) -> bool {
        self.tombstoned.contains(&id) || self.retired.contains(id)
    }

    /// Returns the highest of them, by attempt and step.
    pub fn last(&self) -> Option<StepId> {
        self.tombstoned.last().copied().max(self.retired.last())
    }
}

/// Lists the steps that were, or are being, removed from a remote.
///
/// # Errors
/// When the remote is unreachable.
pub async fn removed_steps(remote: &RunRemote) -> Result<RemovedSteps> {
    // In this order: gc writes the record that replaces a tombstone before it deletes the tombstone.
    let tombstoned = tombstones(remote).await?.into_iter().collect();
    let (retired, _) = retired_steps(remote).await?;
    Ok(RemovedSteps { tombstoned, retired })
}

/// Returns the key of the record that marks a step as removed: its tombstone, or a record of retired steps.
///
/// # Errors
/// When the remote is unreachable.
pub async fn removal_record(remote: &RunRemote, id: StepId) -> Result<Option<String>> {
    let tombstone = remote.keys.tombstone(id);
    if remote.store.head(&tombstone).await?.is_some() {
        return Ok(Some(tombstone));
    }
    let (retired, numbers) = retired_steps(remote).await?;
    let newest = numbers.last().map(|number| remote.keys.retired(*number));
    Ok(newest.filter(|_| retired.contains(id)))
}

/// Returns the steps in all records of retired steps, and the numbers of those records.
pub(crate) async fn retired_steps(remote: &RunRemote) -> Result<(RetiredSteps, BTreeSet<u64>)> {
    let objects = remote.list(&remote.keys.retired_prefix()).await?;
    let mut numbers = BTreeSet::new();
    let mut retired = RetiredSteps::default();
    for object in objects {
        let Some(KeyKind::Retired(number)) = remote.keys.classify(&object.key) else {
            continue;
        };
        numbers.insert(number);
        match remote.read_record::<RetiredRecord>(&object.key).await {
            Ok(Some((record, _))) => retired.extend(record),
            // Deleted since the listing: a later record holds the same.
            Ok(None) => {}
            Err(error) if is_outage(&error) => return Err(error),
            // Two records are kept, and a step whose objects are gone is not restored anyway.
            Err(error) => tracing::warn!("{error}"),
        }
    }
    Ok((retired, numbers))
}

/// Reads a tombstone, which has the step's name.
pub async fn read_tombstone(remote: &RunRemote, id: StepId) -> Result<Option<Tombstone>> {
    Ok(remote
        .read_record::<Tombstone>(&remote.keys.tombstone(id))
        .await?
        .map(|(tombstone, _)| tombstone))
}

/// A lease on a step or on the run that was found on a remote.
#[derive(Debug)]
pub struct FoundLease {
    /// Its key.
    pub key: String,
    /// Its step; `None` for a lease on the run.
    pub id: Option<StepId>,
    /// Its holder.
    pub holder: String,
    /// When it was last renewed, by the store's clock.
    pub renewed: SystemTime,
    /// How long it lasts from then. An unreadable lease lasts as long as the longest one that is given.
    pub time_to_live_seconds: u64,
}

impl FoundLease {
    /// Whether it is still valid at `now`, by the store's clock.
    pub fn is_live(&self, now: SystemTime) -> bool {
        now.duration_since(self.renewed)
            .map_or(true, |age| age.as_secs() < self.time_to_live_seconds)
    }
}

/// Lists all leases, live or not.
pub async fn leases(remote: &RunRemote) -> Result<Vec<FoundLease>> {
    let objects = remote.list(&remote.keys.leases_prefix()).await?;
    stream::iter(objects)
        .filter_map(|object| async move {
            let (id, holder) = match remote.keys.classify(&object.key)? {
                KeyKind::Lease(id, holder) => (Some(id), holder),
                KeyKind::PruneLease(holder) => (None, holder),
                _ => return None,
            };
            Some((object, id, holder))
        })
        .map(|(object, id, holder)| async move {
            let time_to_live_seconds = match remote.read_record::<Lease>(&object.key).await {
                Ok(Some((lease, _))) => lease.time_to_live_seconds,
                // Deleted since the listing.
                Ok(None) => 0,
                Err(error) if is_outage(&error) => return Err(error),
                Err(_) => crate::leases::TIME_TO_LIVE_SECONDS,
            };
            Ok(FoundLease {
                key: object.key,
                id,
                holder,
                renewed: object.modified,
                time_to_live_seconds,
            })
        })
        .buffer_unordered(PARALLEL_READS)
        .try_collect()
        .await
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;

//! Reads what a remote holds of a run: commits, manifests, pins, leases, tombstones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use futures::{StreamExt, TryStreamExt, stream};
use stepvault_core::codec::{Record, decode};
use stepvault_core::commit::{Commit, CommittedPart, FoundPart};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::{Attempt, NodeName, StepId};
use stepvault_core::keys::KeyKind;
use stepvault_core::manifest::PartManifest;
use stepvault_core::nodes::NodeSet;
use stepvault_core::records::{Lease, Tombstone};
use stepvault_core::retired::{RetiredRecord, RetiredSteps};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::store::ObjectInfo;
use tokio::time::Instant;

use super::commit_cache::CommitCache;
use super::listed::confirmed;
use super::run_remote::RunRemote;
use crate::outage::is_outage;

/// Number of small records that are read concurrently.
pub(crate) const PARALLEL_READS: usize = 32;
/// Number of manifests of unknown length that are read concurrently.
const PARALLEL_MANIFESTS: usize = 4;
/// Maximum total bytes of manifests that are read concurrently, unless a single one is larger.
pub(crate) const MANIFESTS_AT_ONCE_BYTES: u64 = 32 << 20;
/// Maximum number of records of one kind, each of another node, that are read from a remote.
const MAX_NODE_RECORDS: usize = 64;

/// A commit that was found on a remote.
#[derive(Debug)]
pub struct FoundCommit {
    /// The object: its time is when the step was committed, by the store's clock.
    pub object: ObjectInfo,
    /// The commit, or why it cannot be read.
    pub commit: Result<Commit>,
    /// Whether it was read in an earlier listing, in this version of the object.
    pub(crate) is_cached: bool,
}

/// Lists the steps committed on a remote without reading the commits: one LIST.
///
/// Steps that are being removed are among them; [`visible_steps`](crate::tier::step_state::visible_steps) leaves them out.
pub async fn committed_ids(remote: &RunRemote) -> Result<BTreeMap<StepId, ObjectInfo>> {
    list_ids(remote, &remote.keys.commits_prefix()).await
}

/// Lists the steps whose upload has begun on a remote, with their claims: one LIST.
pub(crate) async fn claimed_ids(remote: &RunRemote) -> Result<BTreeMap<StepId, ObjectInfo>> {
    list_ids(remote, &remote.keys.claims_prefix()).await
}

/// Lists the pins on a remote. The key alone pins: a pin with an unreadable record still holds.
pub async fn pins(remote: &RunRemote) -> Result<BTreeSet<StepId>> {
    let listed = list_ids(remote, &remote.keys.pins_prefix()).await?;
    Ok(listed.into_keys().collect())
}

/// Lists the tombstones on a remote: the steps that are being removed, and those removed recently.
pub(crate) async fn tombstones(remote: &RunRemote) -> Result<BTreeSet<StepId>> {
    let listed = list_ids(remote, &remote.keys.tombstones_prefix()).await?;
    Ok(listed.into_keys().collect())
}

/// Lists the records under a prefix that holds one for each step.
async fn list_ids(remote: &RunRemote, prefix: &str) -> Result<BTreeMap<StepId, ObjectInfo>> {
    let select = |kind| match kind {
        KeyKind::Commit(id) | KeyKind::Claim(id) | KeyKind::Pin(id) | KeyKind::Tombstone(id) => Some(id),
        _ => None,
    };
    Ok(remote.list_kind(prefix, select).await?.into_iter().collect())
}

/// Lists and reads all commits. A failed listing is an error; an unreadable commit is part of the result.
///
/// Each commit is read now, for callers that rely on what the remote holds: gc deletes what no commit names.
pub async fn commits(remote: &RunRemote) -> Result<BTreeMap<StepId, FoundCommit>> {
    read_commits(remote, committed_ids(remote).await?, None).await
}

/// Reads listed commits like [`commits`], but takes those from the vault that it has read before, in the version that
/// was listed: the second time takes no request.
///
/// For overviews and plans. A caller that relies on the commit of a step, because it restores it, calls it sound or
/// removes others in its favour, reads that commit again, by [`read_commit`].
pub(crate) async fn known_commits(
    remote: &RunRemote,
    listed: BTreeMap<StepId, ObjectInfo>,
) -> Result<BTreeMap<StepId, FoundCommit>> {
    let Some(cache) = CommitCache::load(remote).await else {
        return read_commits(remote, listed, None).await;
    };
    let found = read_commits(remote, listed, Some(&cache)).await?;
    cache.update(remote, &found).await;
    Ok(found)
}

/// Reads listed commits concurrently; those that the cache has in the listed version are not read. An unreadable commit is
/// part of the result.
pub(crate) async fn read_commits(
    remote: &RunRemote,
    listed: BTreeMap<StepId, ObjectInfo>,
    cache: Option<&CommitCache>,
) -> Result<BTreeMap<StepId, FoundCommit>> {
    stream::iter(listed)
        .map(|(id, object)| async move {
            if let Some(commit) = cache.and_then(|cache| cache.commit(remote, id, &object)) {
                return Ok((id, FoundCommit::new(object, Ok(commit), true)));
            }
            match read_commit(remote, id).await {
                // The remote is unreachable, which proves nothing about the commit.
                Err(error) if is_outage(&error) => Err(error),
                commit => Ok((id, FoundCommit::new(object, commit, false))),
            }
        })
        .buffer_unordered(PARALLEL_READS)
        .try_collect()
        .await
}

impl FoundCommit {
    fn new(object: ObjectInfo, commit: Result<Commit>, is_cached: bool) -> Self {
        Self {
            object,
            commit,
            is_cached,
        }
    }
}

/// Reads one commit and checks that its content matches its key.
pub async fn read_commit(remote: &RunRemote, id: StepId) -> Result<Commit> {
    let key = remote.keys.commit(id);
    let Some(bytes) = remote.read_small(&key).await? else {
        let missing = Error::new(ErrorKind::NotFound, "cannot read the commit: it does not exist");
        return Err(confirmed(remote, &key, None, missing.on(remote.describe(&key))).await);
    };
    match decode_commit(remote, id, &bytes) {
        Ok(commit) => Ok(commit),
        Err(error) => Err(confirmed(remote, &key, Some(bytes.len()), error).await),
    }
}

fn decode_commit(remote: &RunRemote, id: StepId, bytes: &[u8]) -> Result<Commit> {
    let subject = remote.describe(&remote.keys.commit(id));
    let commit: Commit = decode(bytes, &subject)?;
    if commit.id == id && commit.run == *remote.keys.run() {
        return Ok(commit);
    }
    Err(Error::new(ErrorKind::Damaged, "cannot use the commit")
        .on(subject)
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
    let Some(bytes) = remote.read_small(&key).await? else {
        let missing = damaged("it is missing").with_kind(ErrorKind::NotFound);
        let error = confirmed(remote, &key, None, missing).await;
        return Err(match error.kind() {
            ErrorKind::NotFound => error.with_kind(ErrorKind::Damaged),
            _ => error,
        });
    };
    if bytes.len() as u64 != part.manifest_bytes || Sha256Digest::of(&bytes) != part.manifest_sha256 {
        let other = damaged("its digest is not the one in the commit");
        return Err(confirmed(remote, &key, Some(bytes.len()), other).await);
    }
    let manifest: PartManifest = decode(&bytes, &subject)?;
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
    stream::iter(parts)
        .map(|part| read_part_manifest(remote, commit, part))
        .buffered(manifests_at_once(largest_bytes))
        .try_collect()
        .await
}

/// Returns how many manifests, of which the largest has `largest_bytes`, are read concurrently.
pub(crate) fn manifests_at_once(largest_bytes: u64) -> usize {
    let at_once = MANIFESTS_AT_ONCE_BYTES / largest_bytes.max(1);
    usize::try_from(at_once)
        .unwrap_or(usize::MAX)
        .clamp(1, PARALLEL_READS)
}

/// Returns the nodes whose parts of a step exist: one LIST.
pub async fn present_parts(remote: &RunRemote, id: StepId) -> Result<BTreeSet<NodeName>> {
    nodes_below(remote, &remote.keys.step_parts_prefix(id)).await
}

/// Returns the nodes that have reported that they start in an attempt: one LIST.
pub(crate) async fn starting_nodes(remote: &RunRemote, attempt: Attempt) -> Result<BTreeSet<NodeName>> {
    nodes_below(remote, &remote.keys.staged_prefix(attempt)).await
}

/// Returns the nodes that follow the decision of an attempt: one LIST.
pub(crate) async fn following_nodes(remote: &RunRemote, attempt: Attempt) -> Result<BTreeSet<NodeName>> {
    nodes_below(remote, &remote.keys.followers_prefix(attempt)).await
}

/// Returns the nodes that have a record of their own below a prefix.
async fn nodes_below(remote: &RunRemote, prefix: &str) -> Result<BTreeSet<NodeName>> {
    let select = |kind| match kind {
        KeyKind::Part(_, node) | KeyKind::Staged(_, node) | KeyKind::Follower(_, node) => Some(node),
        _ => None,
    };
    let listed = remote.list_kind(prefix, select).await?;
    Ok(listed.into_iter().map(|(node, _)| node).collect())
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

/// The steps of a run that were, or are being, removed from a remote. Their identities are never reused (S9).
#[derive(Debug, Default)]
pub struct RemovedSteps {
    /// Those that still have a tombstone.
    pub tombstoned: BTreeSet<StepId>,
    /// Those of which only the record of retired steps is left.
    pub retired: RetiredSteps,
    /// The numbers of the records that hold the retired ones.
    pub(crate) retired_records: BTreeSet<u64>,
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
    let tombstoned = tombstones(remote).await?;
    let (retired, retired_records) = retired_steps(remote).await?;
    Ok(RemovedSteps {
        tombstoned,
        retired,
        retired_records,
    })
}

/// Returns the key of the record that marks a step as removed: its tombstone, or a record of retired steps.
///
/// # Errors
/// When the remote is unreachable.
pub async fn removal_record(remote: &RunRemote, id: StepId) -> Result<Option<String>> {
    if let Some(tombstone) = tombstone_of(remote, id).await? {
        return Ok(Some(tombstone));
    }
    let (retired, numbers) = retired_steps(remote).await?;
    let newest = numbers.last().map(|number| remote.keys.retired(*number));
    Ok(newest.filter(|_| retired.contains(id)))
}

/// Like [`removal_record`], but may miss a step that was retired within the last minute: for a check that only spares
/// needless work.
pub(crate) async fn likely_removal_record(remote: &RunRemote, id: StepId) -> Result<Option<String>> {
    match remote.retired.recent() {
        Some(retired) if !retired.contains(id) => tombstone_of(remote, id).await,
        _ => removal_record(remote, id).await,
    }
}

async fn tombstone_of(remote: &RunRemote, id: StepId) -> Result<Option<String>> {
    let tombstone = remote.keys.tombstone(id);
    Ok(remote.store.head(&tombstone).await?.map(|_| tombstone))
}

/// Returns the steps in all records of retired steps, and the numbers of those records.
pub(crate) async fn retired_steps(remote: &RunRemote) -> Result<(RetiredSteps, BTreeSet<u64>)> {
    let select = |kind| match kind {
        KeyKind::Retired(number) => Some(number),
        _ => None,
    };
    let begun = Instant::now();
    let listed = remote.list_kind(&remote.keys.retired_prefix(), select).await?;
    let mut retired = RetiredSteps::default();
    let mut read = Vec::new();
    let mut numbers = BTreeSet::new();
    for (number, object) in listed {
        numbers.insert(number);
        let record = match remote.retired.record(&object) {
            Some(known) => Ok(Some(known)),
            None => remote
                .read_record::<RetiredRecord>(&object.key)
                .await
                .map(|found| found.map(|(record, _)| record)),
        };
        match record {
            Ok(Some(record)) => {
                retired.extend(record.clone());
                read.push((object, record));
            }
            // Deleted since the listing: a later record holds the same.
            Ok(None) => {}
            Err(error) if is_outage(&error) => return Err(error),
            // Two records are kept, and a step whose objects are gone is not restored anyway.
            Err(error) => tracing::warn!("{error}"),
        }
    }
    remote.retired.replace(begun, read, &retired);
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
    let select = |kind| match kind {
        KeyKind::Lease(id, holder) => Some((Some(id), holder)),
        KeyKind::PruneLease(holder) => Some((None, holder)),
        _ => None,
    };
    let listed = remote.list_kind(&remote.keys.leases_prefix(), select).await?;
    stream::iter(listed)
        .map(|((id, holder), object)| async move {
            let time_to_live_seconds = match remote.read_record::<Lease>(&object.key).await {
                Ok(Some((lease, _))) => lease.time_to_live_seconds,
                // Deleted since the listing.
                Ok(None) => 0,
                Err(error) if is_outage(&error) => return Err(error),
                Err(_) => super::leases::TIME_TO_LIVE_SECONDS,
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

/// Lists the leases that are live at the time at which the last of them was renewed. The
/// store's clock has reached that time at least.
pub(crate) async fn live_leases(remote: &RunRemote) -> Result<Vec<FoundLease>> {
    let mut found = leases(remote).await?;
    if let Some(now) = found.iter().map(|lease| lease.renewed).max() {
        found.retain(|lease| lease.is_live(now));
    }
    Ok(found)
}

/// Returns the latest objects of one kind under a prefix, the latest first: nodes come and go under new names.
pub(crate) async fn latest_objects(
    remote: &RunRemote,
    prefix: &str,
    is_kind: impl Fn(&KeyKind) -> bool,
) -> Result<Vec<ObjectInfo>> {
    let listed = remote
        .list_kind(prefix, |kind| is_kind(&kind).then_some(()))
        .await?;
    let mut objects: Vec<ObjectInfo> = listed.into_iter().map(|((), object)| object).collect();
    objects.sort_by_key(|object| Reverse(object.modified));
    objects.truncate(MAX_NODE_RECORDS);
    Ok(objects)
}

/// Returns the records of such objects, without those that cannot be used or that `is_wanted` rejects.
pub(crate) async fn latest_records<R: Record>(
    remote: &RunRemote,
    prefix: &str,
    is_kind: impl Fn(&KeyKind) -> bool,
    is_wanted: impl Fn(&R) -> bool,
) -> Result<Vec<R>> {
    let mut records = Vec::new();
    for object in latest_objects(remote, prefix, is_kind).await? {
        let record = remote.read_usable_record(&object.key).await?;
        records.extend(record.filter(&is_wanted));
    }
    Ok(records)
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;

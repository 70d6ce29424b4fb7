//! Reads what a remote holds of a run: commits, manifests, pins, the nodes of an attempt.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt, stream};
use stepvault_core::codec::{Record, decode};
use stepvault_core::commit::{Commit, CommittedPart, FoundPart};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::{Attempt, NodeName, StepId};
use stepvault_core::manifest::PartManifest;
use stepvault_core::nodes::NodeSet;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::store::ObjectInfo;

use super::commit_cache::CommitCache;
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
    remote.list_steps(&remote.keys.commits_prefix()).await
}

/// Lists the steps whose upload has begun on a remote, with their claims: one LIST.
pub async fn claimed_ids(remote: &RunRemote) -> Result<BTreeMap<StepId, ObjectInfo>> {
    remote.list_steps(&remote.keys.claims_prefix()).await
}

/// Lists the pins on a remote. The key alone pins: a pin with an unreadable record still holds.
pub async fn pins(remote: &RunRemote) -> Result<BTreeSet<StepId>> {
    let listed = remote.list_steps(&remote.keys.pins_prefix()).await?;
    Ok(listed.into_keys().collect())
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
        Self { object, commit, is_cached }
    }
}

/// Reads one commit and checks that its content matches its key.
pub async fn read_commit(remote: &RunRemote, id: StepId) -> Result<Commit> {
    let key = remote.keys.commit(id);
    let Some(bytes) = remote.read_small(&key).await? else {
        let missing = Error::new(ErrorKind::NotFound, "cannot read the commit: it does not exist");
        return Err(remote.confirmed(&key, None, missing.on(remote.describe(&key))).await);
    };
    match decode_commit(remote, id, &bytes) {
        Ok(commit) => Ok(commit),
        Err(error) => Err(remote.confirmed(&key, Some(bytes.len()), error).await),
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
    let damaged =
        |why: &str| Error::new(ErrorKind::Damaged, "cannot use the part manifest").on(&subject).because(why);
    let Some(bytes) = remote.read_small(&key).await? else {
        let missing = damaged("it is missing").with_kind(ErrorKind::NotFound);
        let error = remote.confirmed(&key, None, missing).await;
        return Err(match error.kind() {
            ErrorKind::NotFound => error.with_kind(ErrorKind::Damaged),
            _ => error,
        });
    };
    if bytes.len() as u64 != part.manifest_bytes || Sha256Digest::of(&bytes) != part.manifest_sha256 {
        let other = damaged("its digest is not the one in the commit");
        return Err(remote.confirmed(&key, Some(bytes.len()), other).await);
    }
    let manifest: PartManifest = decode(&bytes, &subject)?;
    let consistent = manifest.run == commit.run
        && manifest.id == commit.id
        && manifest.node == part.node
        && manifest.name == commit.name
        && manifest.shape == commit.shape
        && manifest.data_bytes() == part.data_bytes
        && manifest.files.len() as u64 == part.file_count;
    if consistent { Ok(manifest) } else { Err(damaged("it contradicts its commit")) }
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
    usize::try_from(at_once).unwrap_or(usize::MAX).clamp(1, PARALLEL_READS)
}

/// Returns the nodes whose parts of a step exist: one LIST.
pub async fn present_parts(remote: &RunRemote, id: StepId) -> Result<BTreeSet<NodeName>> {
    remote.list_nodes(&remote.keys.step_parts_prefix(id)).await
}

/// Returns the nodes that have reported that they start in an attempt: one LIST.
pub(crate) async fn starting_nodes(remote: &RunRemote, attempt: Attempt) -> Result<BTreeSet<NodeName>> {
    remote.list_nodes(&remote.keys.staged_prefix(attempt)).await
}

/// Returns the nodes that follow the decision of an attempt: one LIST.
pub(crate) async fn following_nodes(remote: &RunRemote, attempt: Attempt) -> Result<BTreeSet<NodeName>> {
    remote.list_nodes(&remote.keys.followers_prefix(attempt)).await
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
                Error::new(ErrorKind::NotFound, "cannot read the part manifest: it does not exist")
                    .on(remote.describe(&key))
            })?;
            if manifest.id != id || manifest.node != *node || manifest.run != *remote.keys.run() {
                return Err(Error::new(ErrorKind::Damaged, "cannot use the part manifest")
                    .on(remote.describe(&key))
                    .because(format!("it belongs to {}, {}", manifest.node, manifest.id)));
            }
            Ok(FoundPart::of(&manifest, Sha256Digest::of(&bytes), bytes.len() as u64))
        })
        // Their lengths are unknown before they are read.
        .buffered(PARALLEL_MANIFESTS)
        .try_collect()
        .await
}

/// Returns the latest records under a prefix that holds one for each node, the latest first: nodes come and go under new
/// names.
pub(crate) async fn latest_objects(remote: &RunRemote, prefix: &str) -> Result<Vec<ObjectInfo>> {
    let listed = remote.list_kind(prefix, |kind| kind.node().cloned()).await?;
    let mut objects: Vec<ObjectInfo> = listed.into_iter().map(|(_, object)| object).collect();
    objects.sort_by_key(|object| Reverse(object.modified));
    objects.truncate(MAX_NODE_RECORDS);
    Ok(objects)
}

/// Returns the records of such objects, without those that cannot be used or that `is_wanted` rejects.
pub(crate) async fn latest_records<R: Record>(
    remote: &RunRemote,
    prefix: &str,
    is_wanted: impl Fn(&R) -> bool,
) -> Result<Vec<R>> {
    let mut records = Vec::new();
    for object in latest_objects(remote, prefix).await? {
        let record = remote.read_usable_record(&object.key).await?;
        records.extend(record.filter(&is_wanted));
    }
    Ok(records)
}

//! What a remote holds of a run: commits, manifests, pins, leases, tombstones.

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
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::store::ObjectInfo;

use crate::run_remote::RunRemote;

/// Records read at once.
const PARALLEL_READS: usize = 32;

/// A commit as it was found.
#[derive(Debug)]
pub struct FoundCommit {
    /// The object: its time is the store's own word on when the step was committed.
    pub object: ObjectInfo,
    /// The commit, or why it cannot be read.
    pub commit: Result<Commit>,
}

/// All commits of a run on a remote.
#[derive(Debug, Default)]
pub struct Commits {
    /// By step, the newest last.
    pub by_step: BTreeMap<StepId, FoundCommit>,
    /// Keys under `commits/` that are none of ours.
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

/// Lists and reads all commits. A failed listing is an error; an unreadable commit stands in the result.
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
                // The remote cannot be reached: that says nothing of the commit.
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

/// Whether an error is about the way to the store, or about this process, rather than about what the store holds.
pub fn is_outage(error: &Error) -> bool {
    error.is_about_itself()
        || matches!(
            error.kind(),
            ErrorKind::Unreachable | ErrorKind::Denied | ErrorKind::Interrupted
        )
}

/// Reads one commit and checks that it says what its key says.
pub async fn read_commit(remote: &RunRemote, id: StepId) -> Result<Commit> {
    let key = remote.keys.commit(id);
    let (commit, _) = remote.read_record::<Commit>(&key).await?.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "there is no such commit").on(remote.describe(&key))
    })?;
    if commit.id == id && commit.run == *remote.keys.run() {
        return Ok(commit);
    }
    Err(Error::new(ErrorKind::Damaged, "cannot use the commit")
        .on(remote.describe(&key))
        .because(format!("it is one of {}, run {}", commit.id, commit.run)))
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
        return Err(damaged("its bytes are not those that the commit names"));
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

/// All part manifests of a step, in the order of its nodes.
pub async fn read_manifests(remote: &RunRemote, commit: &Commit) -> Result<Vec<PartManifest>> {
    read_manifests_of(remote, commit, &commit.parts).await
}

/// The manifests of some of a step's parts.
pub(crate) async fn read_manifests_of(
    remote: &RunRemote,
    commit: &Commit,
    parts: &[CommittedPart],
) -> Result<Vec<PartManifest>> {
    stream::iter(parts)
        .map(|part| read_part_manifest(remote, commit, part))
        .buffered(PARALLEL_READS)
        .try_collect()
        .await
}

/// The nodes whose parts of a step are there: one LIST.
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

/// The part manifests of `nodes`, of a step that has no commit yet to say what they should be.
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
                Error::new(ErrorKind::NotFound, "there is no such part").on(remote.describe(&key))
            })?;
            if manifest.id != id || manifest.node != *node || manifest.run != *remote.keys.run() {
                return Err(Error::new(ErrorKind::Damaged, "cannot use the part manifest")
                    .on(remote.describe(&key))
                    .because(format!("it is one of {}, {}", manifest.node, manifest.id)));
            }
            Ok(FoundPart {
                manifest,
                sha256: Sha256Digest::of(&bytes),
                bytes: bytes.len() as u64,
            })
        })
        .buffered(PARALLEL_READS)
        .try_collect()
        .await
}

/// Pins on a remote. The key alone pins: a pin whose record cannot be read still holds.
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

/// Tombstones on a remote: what was removed, or is being removed.
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

/// Reads a tombstone, for the name of the step it stands for.
pub async fn read_tombstone(remote: &RunRemote, id: StepId) -> Result<Option<Tombstone>> {
    Ok(remote
        .read_record::<Tombstone>(&remote.keys.tombstone(id))
        .await?
        .map(|(tombstone, _)| tombstone))
}

/// A lease on a step or on the run, as it was found.
#[derive(Debug)]
pub struct FoundLease {
    /// Its key.
    pub key: String,
    /// Its step; `None` for a pruner's.
    pub id: Option<StepId>,
    /// Its holder.
    pub holder: String,
    /// When it was last renewed, by the store's clock.
    pub renewed: SystemTime,
    /// How long it lasts from then. A lease that cannot be read lasts as long as the longest that is given.
    pub time_to_live_seconds: u64,
}

impl FoundLease {
    /// Whether it still counts at `now`, by the store's clock.
    pub fn is_live(&self, now: SystemTime) -> bool {
        now.duration_since(self.renewed)
            .map_or(true, |age| age.as_secs() < self.time_to_live_seconds)
    }
}

/// All leases, live or not.
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
                // Gone between the listing and now.
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

//! Reads what a remote holds of a run: commits, manifests, pins, the nodes of an attempt.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stepvault_core::codec::{FORMAT, Record, decode, encode};
use stepvault_core::commit::{Commit, CommittedPart, FoundPart};
use stepvault_core::keys::{CLAIMS, COMMITS, PINS};
use stepvault_core::manifest::PartManifest;
use stepvault_core::records::Pin;
use stepvault_core::{Attempt, Error, ErrorKind, NodeName, NodeSet, Result, Sha256Digest, StepId};
use stepvault_local::notes::MAX_NOTE_BYTES;
use stepvault_remote::store::ObjectInfo;

use super::cache::{Note, RemoteCache};
use super::removed::removal_record;
use super::run_remote::RunRemote;
use crate::blocking::{blocking, in_order};
use crate::notes::encode as encode_note;
use crate::outage::is_outage;

/// Number of small records that are read concurrently.
pub(crate) const PARALLEL_READS: usize = 32;
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
    pub commit: Result<Arc<Commit>>,
    /// Whether it was read in an earlier listing, in this version of the object.
    pub(crate) is_cached: bool,
}

/// Lists the steps committed on a remote without reading the commits: one LIST.
///
/// Steps that are being removed are among them; [`visible_steps`](crate::tier::step_state::visible_steps) leaves them out.
pub async fn committed_ids(remote: &RunRemote) -> Result<BTreeMap<StepId, ObjectInfo>> {
    remote.list_steps(COMMITS).await
}

/// Lists the steps whose upload has begun on a remote, with their claims: one LIST.
pub async fn claimed_ids(remote: &RunRemote) -> Result<BTreeMap<StepId, ObjectInfo>> {
    remote.list_steps(CLAIMS).await
}

/// Lists the pins on a remote. The key alone pins: a pin with an unreadable record still holds.
pub async fn pins(remote: &RunRemote) -> Result<BTreeSet<StepId>> {
    let listed = remote.list_steps(PINS).await?;
    Ok(listed.into_keys().collect())
}

/// Lists and reads all commits. A failed listing is an error; an unreadable commit is part of the result.
///
/// Each commit is read now, for callers that rely on what the remote holds: gc deletes what no commit names.
pub async fn commits(remote: &RunRemote) -> Result<BTreeMap<StepId, FoundCommit>> {
    read_commits(remote, committed_ids(remote).await?, |_, _| None).await
}

/// Reads listed commits like [`commits`], but takes those from the vault, or from this process if it
/// [remembers](RunRemote::remembering_commits) them, that were read before in the version that was listed: the second time
/// takes no request.
///
/// For overviews and plans. A caller that relies on the commit of a step, because it restores it, calls it sound or
/// removes others in its favour, reads that commit again, by [`read_commit`].
pub(crate) async fn known_commits(
    remote: &RunRemote,
    listed: BTreeMap<StepId, ObjectInfo>,
) -> Result<BTreeMap<StepId, FoundCommit>> {
    let memory = &remote.commits;
    let is_remembered = listed.iter().all(|(id, object)| memory.commit(*id, object).is_some());
    let cache = if is_remembered { None } else { CommitCache::load(remote).await };
    let in_vault = |id: StepId, object: &ObjectInfo| cache.as_ref()?.commit(remote, id, object).map(Arc::new);
    let known = |id: StepId, object: &ObjectInfo| memory.commit(id, object).or_else(|| in_vault(id, object));
    let found = read_commits(remote, listed, known).await?;
    memory.replace(&found);
    if let Some(cache) = cache {
        cache.update(remote, &found).await;
    }
    Ok(found)
}

/// Reads listed commits concurrently, but those that are `known` in the listed version. An unreadable commit is part of the
/// result.
pub(crate) async fn read_commits(
    remote: &RunRemote,
    listed: BTreeMap<StepId, ObjectInfo>,
    known: impl Fn(StepId, &ObjectInfo) -> Option<Arc<Commit>>,
) -> Result<BTreeMap<StepId, FoundCommit>> {
    let known = &known;
    stream::iter(listed)
        .map(|(id, object)| async move {
            if let Some(commit) = known(id, &object) {
                return Ok((id, FoundCommit { object, commit: Ok(commit), is_cached: true }));
            }
            match read_commit(remote, id).await {
                // The remote is unreachable, which proves nothing about the commit.
                Err(error) if is_outage(&error) => Err(error),
                commit => Ok((id, FoundCommit { object, commit: commit.map(Arc::new), is_cached: false })),
            }
        })
        .buffer_unordered(PARALLEL_READS)
        .try_collect()
        .await
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
        && manifest.files.len() as u64 == part.file_count
        && manifest.imported == part.imported
        && manifest.trusted_files() == part.trusted_files;
    if consistent { Ok(manifest) } else { Err(damaged("it contradicts its commit")) }
}

/// Reads the part manifests of a committed step.
pub(crate) async fn manifests_of(remote: &RunRemote, id: StepId) -> Result<Vec<PartManifest>> {
    read_manifests(remote, &read_commit(remote, id).await?).await
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
    in_order(manifests_at_once(largest_bytes), parts, |part| read_part_manifest(remote, commit, part)).await
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

/// Returns the part manifests of `nodes` for a step that has no commit yet to check them against. The longest was listed
/// with `largest_bytes`.
pub(crate) async fn read_found_parts(
    remote: &RunRemote,
    id: StepId,
    nodes: &NodeSet,
    largest_bytes: u64,
) -> Result<Vec<FoundPart>> {
    in_order(manifests_at_once(largest_bytes), nodes.iter(), |node| async move {
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
    .await
}

/// Returns the latest records in a directory that holds one for each node, the latest first: nodes come and go under new
/// names.
pub(crate) async fn latest_objects(remote: &RunRemote, directory: &str) -> Result<Vec<ObjectInfo>> {
    let listed = remote.list_kind(&remote.keys.all(directory), |kind| kind.node().cloned()).await?;
    let mut objects: Vec<ObjectInfo> = listed.into_iter().map(|(_, object)| object).collect();
    objects.sort_by_key(|object| Reverse(object.modified));
    objects.truncate(MAX_NODE_RECORDS);
    Ok(objects)
}

/// Returns the records of such objects, without those that cannot be used or that `is_wanted` rejects.
pub(crate) async fn latest_records<R: Record>(
    remote: &RunRemote,
    directory: &str,
    is_wanted: impl Fn(&R) -> bool,
) -> Result<Vec<R>> {
    let mut records = Vec::new();
    for object in latest_objects(remote, directory).await? {
        let record = remote.read_usable_record(&object.key).await?;
        records.extend(record.filter(&is_wanted));
    }
    Ok(records)
}

/// Pins a step on a remote; returns false when it was already pinned.
///
/// # Invariants
/// Every remover of steps sees an acknowledged pin (S4): the pinning process checks for a tombstone after writing the
/// pin, and the remover checks for pins after writing the tombstone.
///
/// # Errors
/// [`ErrorKind::NotFound`] when the step is not committed on it; [`ErrorKind::Refused`] when it is being removed.
pub async fn pin(remote: &RunRemote, id: StepId, note: &str) -> Result<bool> {
    if remote.store.head(&remote.keys.commit(id)).await?.is_none() {
        return Err(Error::new(ErrorKind::NotFound, format!("cannot pin {id}"))
            .on(remote.store.url())
            .because("it is not committed on this remote")
            .hint("run 'stepvault list' to see the steps"));
    }
    let key = remote.keys.pin(id);
    if remote.store.head(&key).await?.is_some() {
        return Ok(false);
    }
    let pin = Pin { format: FORMAT, run: remote.keys.run().clone(), id, note: note.to_owned() };
    // One that was pinned meanwhile with a different note is pinned, which is what matters.
    let is_new = remote.create_unless_taken(&key, &pin).await?;
    if removal_record(remote, id).await?.is_none() {
        return Ok(is_new);
    }
    // The pin stays: another process may have pinned the step in time. Otherwise it is deleted with the step.
    Err(Error::new(ErrorKind::Refused, format!("cannot pin {id}"))
        .on(remote.store.url())
        .because("retention is removing it")
        .hint("run 'stepvault list' to see the steps that can be pinned"))
}

/// Removes a pin; returns false when there was none.
pub async fn unpin(remote: &RunRemote, id: StepId) -> Result<bool> {
    let key = remote.keys.pin(id);
    let existed = remote.store.head(&key).await?.is_some();
    remote.store.delete(&[key]).await?;
    Ok(existed)
}

/// Commits, each with the version of its object that was read.
type RememberedCommits = BTreeMap<StepId, (ObjectInfo, Arc<Commit>)>;

/// The commits that this process has read from a remote, for one that lists it again and again. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct CommitMemory {
    max_parts: usize,
    commits: Arc<Mutex<RememberedCommits>>,
}

impl CommitMemory {
    /// Creates a memory of as many commits as have this number of parts together, of some 150 bytes each.
    pub(crate) fn of_parts(max_parts: usize) -> Self {
        Self { max_parts, ..Self::default() }
    }

    /// Returns the commit in this version of its object, if it is known.
    pub(crate) fn commit(&self, id: StepId, object: &ObjectInfo) -> Option<Arc<Commit>> {
        let commits = self.commits.lock();
        let (known, commit) = commits.get(&id)?;
        let is_same = known.version.is_some() && known.version == object.version;
        (is_same && known.size_bytes == object.size_bytes).then(|| Arc::clone(commit))
    }

    /// Replaces what is known by what was found, the newest first while there is room.
    fn replace(&self, found: &BTreeMap<StepId, FoundCommit>) {
        if self.max_parts == 0 {
            return;
        }
        let mut parts = 0;
        let newest = found.iter().rev();
        let readable =
            newest.filter_map(|(id, found)| Some((*id, &found.object, found.commit.as_ref().ok()?)));
        let fitting = readable.take_while(|(.., commit)| {
            parts += commit.parts.len();
            parts <= self.max_parts
        });
        let kept = fitting.map(|(id, object, commit)| (id, (object.clone(), Arc::clone(commit))));
        *self.commits.lock() = kept.collect();
    }
}

/// Maximum number of notes of a remote. Commits that find no room are read each time.
const MAX_SEGMENTS: usize = 256;
/// Bytes of commits after which a note is full. Encoding them in the note adds less than the other half.
const SEGMENT_BYTES: usize = 400 << 10;
const _: () = assert!(SEGMENT_BYTES as u64 * 2 < MAX_NOTE_BYTES);

/// One version of a commit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CachedCommit {
    version: String,
    size_bytes: u64,
    /// The encoded commit.
    record: String,
}

/// One note of the cache.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Segment {
    /// The remote's [identity URL](RunRemote::identity_url): a remote of the same name may be another one by now.
    url: String,
    /// The commits, by the label of their step.
    commits: BTreeMap<String, CachedCommit>,
    #[serde(skip)]
    is_changed: bool,
}

impl Segment {
    fn new(place: &str) -> Self {
        Self { url: place.to_owned(), commits: BTreeMap::new(), is_changed: false }
    }

    fn bytes(&self) -> usize {
        let bytes = |(label, commit): (&String, &CachedCommit)| entry_bytes(label, commit);
        self.commits.iter().map(bytes).sum()
    }
}

fn entry_bytes(label: &str, commit: &CachedCommit) -> usize {
    label.len() + commit.version.len() + commit.record.len() + 64
}

/// The cached commits of a run on one remote.
///
/// An entry counts for one version of an object: the store changes the entity tag or generation whenever the object
/// changes. Entries are kept in notes of the vault, of limited size: a new commit rewrites the last of them, and the
/// removal of old steps the first. The cache is never an error: one that cannot be read or written is none.
#[derive(Debug)]
pub(crate) struct CommitCache {
    notes: RemoteCache,
    segments: Vec<Segment>,
    /// The number of each step's segment, by label.
    places: HashMap<String, usize>,
}

impl CommitCache {
    /// Reads the cache of the vault that remembers this remote; `None` if no vault does.
    pub(crate) async fn load(remote: &RunRemote) -> Option<Self> {
        let (notes, place) = (remote.cache(remote.vault()?), remote.identity_url());
        let reader = notes.clone();
        let read = blocking(move || Ok(read_segments(&reader, &place))).await;
        let segments: Vec<Segment> = read.unwrap_or_default();
        let labels = |(number, segment): (usize, &Segment)| {
            segment.commits.keys().map(|label| (label.clone(), number)).collect::<Vec<_>>()
        };
        let places = segments.iter().enumerate().flat_map(labels).collect();
        Some(Self { notes, segments, places })
    }

    /// Returns the commit in this version of its object, if it is known.
    pub(crate) fn commit(&self, remote: &RunRemote, id: StepId, object: &ObjectInfo) -> Option<Commit> {
        let version = object.version.as_deref()?;
        let label = id.label();
        let known = self.segments.get(*self.places.get(&label)?)?.commits.get(&label)?;
        if known.version != version || known.size_bytes != object.size_bytes {
            return None;
        }
        decode_commit(remote, id, known.record.as_bytes()).ok()
    }

    /// Adds the commits that were read from the remote, and drops those that are no longer listed in this version.
    pub(crate) async fn update(mut self, remote: &RunRemote, found: &BTreeMap<StepId, FoundCommit>) {
        let used: BTreeMap<String, &FoundCommit> =
            found.iter().map(|(id, found)| (id.label(), found)).collect();
        for segment in &mut self.segments {
            let before = segment.commits.len();
            segment.commits.retain(|label, _| used.get(label).is_some_and(|found| found.is_cached));
            segment.is_changed |= segment.commits.len() != before;
        }
        let place = remote.identity_url();
        let mut room_bytes = match self.segments.last() {
            Some(last) => SEGMENT_BYTES.saturating_sub(last.bytes()),
            None => 0,
        };
        for (label, found) in used.into_iter().filter(|(_, found)| !found.is_cached) {
            let Some(entry) = entry(found) else { continue };
            let bytes = entry_bytes(&label, &entry);
            if bytes > SEGMENT_BYTES {
                continue;
            }
            if bytes > room_bytes {
                if self.segments.len() == MAX_SEGMENTS {
                    break;
                }
                self.segments.push(Segment::new(&place));
                room_bytes = SEGMENT_BYTES;
            }
            room_bytes -= bytes;
            if let Some(last) = self.segments.last_mut() {
                last.commits.insert(label, entry);
                last.is_changed = true;
            }
        }
        if self.segments.iter().any(|segment| segment.is_changed) {
            let written = blocking(move || write_segments(&self.notes, &self.segments)).await;
            if let Err(error) = written {
                tracing::debug!(%error, "cannot keep the commits that were read");
            }
        }
    }
}

/// Returns the entry for a commit that was read; `None` for one that cannot be read, or whose version is unknown.
fn entry(found: &FoundCommit) -> Option<CachedCommit> {
    let commit = found.commit.as_deref().ok()?;
    Some(CachedCommit {
        version: found.object.version.clone()?,
        size_bytes: found.object.size_bytes,
        record: String::from_utf8(encode(commit).ok()?).ok()?,
    })
}

fn read_segments(notes: &RemoteCache, place: &str) -> Vec<Segment> {
    let mut segments = Vec::new();
    for number in 0..MAX_SEGMENTS {
        let bytes = match notes.bytes(Note::Commits(number)) {
            Ok(None) => break,
            Ok(Some(bytes)) => bytes,
            Err(error) => {
                tracing::debug!(%error, "cannot read the commits that were kept");
                Vec::new()
            }
        };
        let segment = serde_json::from_slice(&bytes).ok();
        let segment = segment.filter(|segment: &Segment| segment.url == place);
        // An unusable note is replaced.
        segments.push(segment.unwrap_or_else(|| Segment { is_changed: true, ..Segment::new(place) }));
    }
    segments
}

/// Writes the segments that changed, without empty ones.
fn write_segments(notes: &RemoteCache, segments: &[Segment]) -> Result<()> {
    let mut number = 0;
    for (index, segment) in segments.iter().enumerate() {
        if segment.commits.is_empty() {
            continue;
        }
        if segment.is_changed || number != index {
            notes.put(Note::Commits(number), &encode_note(segment)?)?;
        }
        number += 1;
    }
    notes.remove_commits(number)
}

//! Commits that a vault has read from a remote before, so that the next listing reads only those that are new.
//!
//! An entry counts for one version of an object: the store changes the entity tag or generation whenever the object
//! changes. Entries are kept in notes of the vault, of limited size: a new commit rewrites the last of them, and the
//! removal of old steps the first. The cache is never an error: one that cannot be read or written is none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepvault_core::Result;
use stepvault_core::codec::{decode, encode};
use stepvault_core::commit::Commit;
use stepvault_core::ids::StepId;
use stepvault_local::notes::MAX_NOTE_BYTES;
use stepvault_remote::store::ObjectInfo;

use super::cache::{Note, RemoteCache};
use super::catalog::FoundCommit;
use super::run_remote::RunRemote;
use crate::blocking::blocking;
use crate::notes::encode as encode_note;

/// Maximum number of notes of a remote. Commits that find no room are read each time.
const MAX_SEGMENTS: usize = 64;
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
#[derive(Debug)]
pub(crate) struct CommitCache {
    notes: RemoteCache,
    segments: Vec<Segment>,
}

impl CommitCache {
    /// Reads the cache of the vault that remembers this remote; `None` if no vault does.
    pub(crate) async fn load(remote: &RunRemote) -> Option<Self> {
        let (notes, place) = (remote.cache(remote.vault()?), remote.identity_url());
        let reader = notes.clone();
        let read = blocking(move || Ok(read_segments(&reader, &place))).await;
        let segments = read.unwrap_or_default();
        Some(Self { notes, segments })
    }

    /// Returns the commit in this version of its object, if it is known.
    pub(crate) fn commit(&self, remote: &RunRemote, id: StepId, object: &ObjectInfo) -> Option<Commit> {
        let version = object.version.as_deref()?;
        let label = id.label();
        let mut known = self.segments.iter().filter_map(|it| it.commits.get(&label));
        let known = known.find(|known| known.version == version && known.size_bytes == object.size_bytes)?;
        let commit: Commit = decode(known.record.as_bytes(), &remote.describe(&object.key)).ok()?;
        (commit.id == id && commit.run == *remote.keys.run()).then_some(commit)
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
    let commit = found.commit.as_ref().ok()?;
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

//! Checks of the store's own state: every commit is compared with the objects that it names, under the store's lock.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use stepvault_core::codec::decode;
use stepvault_core::commit::Commit;
use stepvault_core::digest::{FileDigest, PartDigest, Sha256Digest};
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::keys::{COMMITS, KeyKind, RunKeys};
use stepvault_core::manifest::PartManifest;
use stepvault_testkit::objects::{Objects, StoredObject};

use crate::nodes::cluster::{PREFIX, RUN};
use crate::nodes::schedule::NODES;

type Table = BTreeMap<String, StoredObject>;

/// Checks every state of the store, and records the faults.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The commits, with the entity tags of everything that each names, itself included.
    committed: BTreeMap<StepId, BTreeMap<String, String>>,
    faults: Vec<String>,
}

impl Ledger {
    /// Watches these objects from now on.
    pub(crate) fn watch(objects: &Objects) -> Self {
        let ledger = Self::default();
        let seen = Arc::clone(&ledger.seen);
        objects.watch(move |table| seen.lock().unwrap_or_else(PoisonError::into_inner).look(table));
        ledger
    }

    /// Returns the committed steps.
    pub(crate) fn committed(&self) -> Vec<StepId> {
        self.lock().committed.keys().copied().collect()
    }

    /// Returns the faults of all states so far.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.lock().faults.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn look(&mut self, table: &Table) {
        let keys = RunKeys::new(RunName::new(RUN).unwrap());
        let prefix = format!("{PREFIX}{}", keys.all(COMMITS));
        let commits = table.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        for (key, object) in commits.take_while(|(key, _)| key.starts_with(&prefix)) {
            let Some(KeyKind::Commit(id)) = keys.classify(&key[PREFIX.len()..]) else {
                self.faults.push(format!("{key} stands among the commits"));
                continue;
            };
            if self.committed.contains_key(&id) {
                continue;
            }
            let mut names = BTreeMap::from([(key.clone(), object.etag.clone())]);
            if let Err(fault) = check(table, &keys, key, &object.body, &mut names) {
                self.faults.push(format!("{key}: {fault}"));
            }
            self.committed.insert(id, names);
        }
        for (key, etag) in self.committed.values().flatten() {
            if table.get(key).is_none_or(|object| object.etag != *etag) {
                let fault = format!("{key}, which a commit names, was changed or is gone");
                if !self.faults.contains(&fault) {
                    self.faults.push(fault);
                }
            }
        }
    }
}

/// Checks that a commit names a part of each node, and that each part manifest exists and is the recorded one, as
/// well as each file that it lists.
fn check(
    table: &Table,
    keys: &RunKeys,
    key: &str,
    body: &[u8],
    names: &mut BTreeMap<String, String>,
) -> Result<(), String> {
    let commit: Commit = decode(body, key).map_err(|error| error.to_string())?;
    let nodes: Vec<&str> = commit.parts.iter().map(|part| part.node.as_str()).collect();
    let wanted: Vec<String> = (0..NODES).map(|node| format!("node-{node}")).collect();
    if nodes != wanted {
        return Err(format!("it names the parts of {nodes:?}"));
    }
    let mut object = |key: String| {
        let key = format!("{PREFIX}{key}");
        let object = table.get(&key).ok_or(format!("{key} is missing"))?;
        names.insert(key.clone(), object.etag.clone());
        Ok::<_, String>((key, object.body.clone()))
    };
    for part in &commit.parts {
        let (key, bytes) = object(keys.part(commit.id, &part.node))?;
        if Sha256Digest::of(&bytes) != part.manifest_sha256 || bytes.len() as u64 != part.manifest_bytes {
            return Err(format!("{key} is another than it names"));
        }
        let manifest: PartManifest = decode(&bytes, &key).map_err(|error| error.to_string())?;
        let (files, bytes) = (manifest.files.len() as u64, manifest.data_bytes());
        if (&manifest.node, manifest.id, files, bytes)
            != (&part.node, commit.id, part.file_count, part.data_bytes)
        {
            return Err(format!("{key} is not of that node and step, or has other totals"));
        }
        for file in &manifest.files {
            let data = keys.data(&commit.name, commit.id, &file.path).map_err(|error| error.to_string())?;
            let (key, bytes) = object(data)?;
            let size_bytes = usize::try_from(file.part_size_bytes).unwrap();
            let parts: Vec<PartDigest> = bytes.chunks(size_bytes).map(PartDigest::of).collect();
            let digest = FileDigest::from_parts(&parts);
            if Some(digest) != file.digest() {
                return Err(format!("{key} holds other bytes than {} lists", part.node));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use stepvault_core::codec::{FORMAT, encode};
    use stepvault_core::commit::FoundPart;
    use stepvault_core::ids::NodeName;
    use stepvault_core::manifest::{DirectoryEntry, FileEntry, Shape};
    use stepvault_core::path::RelativePath;
    use stepvault_core::timestamp::Timestamp;

    use super::*;

    fn stored(body: Vec<u8>) -> StoredObject {
        StoredObject {
            etag: Sha256Digest::of(&body).to_string(),
            body: body.into(),
            modified: SystemTime::UNIX_EPOCH,
            generation: 0,
            checksums: BTreeMap::new(),
            attributes: BTreeMap::new(),
        }
    }

    /// Returns the objects of a step that `nodes` nodes have written, the commit last.
    fn objects_of_a_step(nodes: usize) -> Vec<(String, StoredObject)> {
        let keys = RunKeys::new(RunName::new(RUN).unwrap());
        let id = StepId::from_label("000000000010.a1").unwrap();
        let mut objects = Vec::new();
        let mut parts = Vec::new();
        for node in 0..nodes {
            let path = RelativePath::new(format!("rank_{node}.bin")).unwrap();
            let body = format!("of {node}").into_bytes();
            let data = keys.data("step_10", id, &path).unwrap();
            let digests = [PartDigest::of(&body)];
            let manifest = PartManifest {
                digest: stepvault_core::digest::DigestAlgorithm::Sha256,
                format: FORMAT,
                run: keys.run().clone(),
                id,
                node: NodeName::new(format!("node-{node}")).unwrap(),
                name: "step_10".to_owned(),
                shape: Shape::Directory,
                written_at: Timestamp::default(),
                metrics: BTreeMap::new(),
                shared_tree_sha256: None,
                files: vec![FileEntry::from_parts(path, 0o600, Timestamp::default(), &digests).unwrap()],
                directories: vec![DirectoryEntry { path: None, mode: 0o700, mtime: Timestamp::default() }],
                symlinks: Vec::new(),
                imported: None,
                members: Vec::new(),
                origin: stepvault_core::step_origin::StepOrigin::default(),
            };
            let bytes = encode(&manifest).unwrap();
            objects.push((format!("{PREFIX}{data}"), stored(body)));
            objects.push((format!("{PREFIX}{}", keys.part(id, &manifest.node)), stored(bytes.clone())));
            parts.push(FoundPart::of(&manifest, Sha256Digest::of(&bytes), bytes.len() as u64));
        }
        let commit = encode(&Commit::of(parts).unwrap()).unwrap();
        objects.push((format!("{PREFIX}{}", keys.commit(id)), stored(commit)));
        objects
    }

    fn faults_of(objects: impl IntoIterator<Item = (String, StoredObject)>) -> String {
        let store = Objects::default();
        let ledger = Ledger::watch(&store);
        for (key, object) in objects {
            store.with(|table| table.insert(key, object));
        }
        assert_eq!(ledger.committed().len(), 1);
        ledger.faults().join("; ")
    }

    #[test]
    fn a_commit_that_is_not_whole_is_seen_the_moment_it_is_there() {
        let whole = objects_of_a_step(NODES);
        assert_eq!(faults_of(whole.clone()), "");
        assert!(faults_of(objects_of_a_step(2)).contains("it names the parts of [\"node-0\", \"node-1\"]"));
        for missing in 0..whole.len() - 1 {
            // The object is written as well, but after the commit.
            let mut late = whole.clone();
            let object = late.remove(missing);
            late.push(object.clone());
            let faults = faults_of(late);
            assert!(faults.contains(&format!("{} is missing", object.0)), "{faults}");
            let mut other = whole.clone();
            other[missing].1 = stored(b"others".to_vec());
            let faults = faults_of(other);
            assert!(faults.contains(&object.0), "{faults}");
            let changed = (object.0.clone(), stored(b"others".to_vec()));
            let faults = faults_of(whole.iter().cloned().chain([changed]));
            assert!(faults.contains("was changed or is gone"), "{faults}");
        }
    }
}

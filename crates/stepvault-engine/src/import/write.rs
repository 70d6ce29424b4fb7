//! Carries out an import: reads and digests the objects of each step, and writes its records.
//!
//! The order is that of an upload: claim, part manifest, commit, each created only if its key is free, and read back. A
//! process that is killed leaves whole steps, and at most the claim and the part manifest of one that no reader sees.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::TryStreamExt as _;
use parking_lot::Mutex;
use stepvault_core::codec::{FORMAT, FORMAT_OF_IMPORTED, FORMAT_OF_TRUSTED};
use stepvault_core::commit::{Commit, FoundPart};
use stepvault_core::file_parts::FileParts;
use stepvault_core::imported::{IMPORT_NODE, ImportSource};
use stepvault_core::keys::FileKeys;
use stepvault_core::manifest::{DirectoryEntry, EntryDigests, FileEntry, FileProof, PartManifest, Shape};
use stepvault_core::records::Claim;
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::{
    DigestAlgorithm, Error, ErrorKind, Event, NodeName, NodeSet, Observer, PartDigest, RelativePath, Result,
    Sha256Digest, StepId, Timestamp,
};
use stepvault_formats::tree::EntryKind;
use stepvault_local::vault::Vault;
use stepvault_remote::store::ObjectInfo;

use super::StepToImport;
use super::trust::{TrustedObject, TrustedObjects, ensure_verifies};
use crate::blocking::run_bounded;
use crate::outage::is_outage;
use crate::push::seal::choose_digest;
use crate::tier::removed::ensure_not_removed;
use crate::tier::run_remote::RunRemote;

/// Permission bits of what is restored: objects have none.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// What became of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportOutcome {
    /// It is committed.
    Imported,
    /// Another import has committed it meanwhile.
    AlreadyImported,
}

/// Steps of a plan, to be imported into a run.
#[derive(Debug)]
pub struct Imports<'a> {
    /// The run on the remote that has the objects.
    pub remote: &'a RunRemote,
    /// The vault that remembers the remote, if there is one.
    pub vault: Option<&'a Vault>,
    /// The algorithm of the digests; `None` for that of the run's newest step, or the one that suits the processor.
    pub digest: Option<DigestAlgorithm>,
    /// Receives progress.
    pub observer: &'a Arc<dyn Observer>,
}

/// Imports steps one after another, and returns what became of each. After a remote that does not answer, the remaining
/// steps are not tried.
///
/// # Errors
/// When the run's marker can be neither read nor written, or the store's checksums are to be trusted and cannot be.
pub async fn import_steps(
    imports: &Imports<'_>,
    steps: &[StepToImport],
) -> Result<Vec<(StepId, Result<ImportOutcome>)>> {
    let remote = imports.remote;
    let marker = match imports.vault {
        Some(vault) => remote.ensure_marker(vault).await?,
        None => remote.ensure_marker_without_vault().await?,
    };
    if steps.iter().any(|step| step.trusted_files() > 0) {
        ensure_verifies(imports, &marker.vault).await?;
    }
    let algorithm = match imports.digest {
        Some(algorithm) => algorithm,
        None => choose_digest(&[], std::slice::from_ref(remote)).await?,
    };
    let bytes = steps.iter().map(StepToImport::read_bytes).fold(0, u64::saturating_add);
    imports.observer.on_event(&Event::ReadingStarted { tier: &remote.tier, bytes });
    let mut outcomes = Vec::with_capacity(steps.len());
    for step in steps {
        let algorithm = step.algorithm(algorithm);
        let (step, node) = (Cow::Borrowed(step), NodeName::new(IMPORT_NODE)?);
        let writer = StepWriter { imports, step, algorithm, node };
        let outcome = writer.import().await;
        let is_over = outcome.as_ref().is_err_and(is_outage);
        outcomes.push((writer.step.id, outcome));
        if is_over {
            break;
        }
    }
    imports.observer.on_event(&Event::ReadingFinished { tier: &remote.tier });
    Ok(outcomes)
}

/// The objects of a step, by their paths in it.
type Objects = BTreeMap<RelativePath, ObjectInfo>;

struct StepWriter<'a> {
    imports: &'a Imports<'a>,
    step: Cow<'a, StepToImport>,
    algorithm: DigestAlgorithm,
    node: NodeName,
}

impl StepWriter<'_> {
    /// Imports the step.
    ///
    /// # Invariants
    /// Every file that the commit names had the recorded bytes, or the recorded checksum by its store, while its object had
    /// one version, which it still had when all were read (S2); the step was not tombstoned meanwhile (S9).
    async fn import(&self) -> Result<ImportOutcome> {
        let (remote, id) = (self.imports.remote, self.step.id);
        if self.is_committed().await? {
            return Ok(ImportOutcome::AlreadyImported);
        }
        ensure_not_removed(remote, id).await?;
        let claim = Claim {
            format: FORMAT,
            run: remote.keys.run().clone(),
            id,
            name: self.step.identity.name.clone(),
            nodes: NodeSet::single_node(self.node.clone()),
            launch: None,
        };
        let claimed = remote.write_record(&remote.keys.claim(id), &claim).await;
        let claimed = claimed.map_err(|error| self.taken(error))?;
        let is_first = claimed.is_new();
        claimed.confirm(remote).await.map_err(|error| self.taken(error))?;
        let begun =
            if is_first { None } else { remote.read_record(&remote.keys.part(id, &self.node)).await? };
        match begun {
            Some((begun, _)) => self.continuing(&begun)?.read_and_write().await,
            None => self.read_and_write().await,
        }
    }

    /// Returns the writer that finishes the step as an import that was cut off has begun it: its part manifest is there.
    ///
    /// # Invariants
    /// S2: that manifest is neither replaced nor removed, because another import may be about to commit it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when that one trusts the store, and this one does not.
    fn continuing(&self, begun: &PartManifest) -> Result<StepWriter<'_>> {
        let (algorithm, node) = (begun.digest, self.node.clone());
        let mut step = Cow::Borrowed(&*self.step);
        if begun.trusted_files() == 0 {
            step =
                Cow::Owned(StepToImport { trusted: TrustedObjects::new(), ..self.step.clone().into_owned() });
        } else if step.trusted.is_empty() {
            return Err(Error::new(ErrorKind::Conflict, format!("cannot import {}", step.id))
                .on(self.imports.remote.describe(self.step_place()))
                .because(
                    "an import with --trust-store has begun it and was cut off, and this one would read every byte",
                )
                .hint("finish it with --trust-store, or import it under another attempt, with --attempt N"));
        }
        Ok(StepWriter { imports: self.imports, step, algorithm, node })
    }

    /// Proves the objects, and writes the part manifest and the commit.
    async fn read_and_write(&self) -> Result<ImportOutcome> {
        let (remote, id) = (self.imports.remote, self.step.id);
        let before = self.objects().await?;
        self.ensure_as_found(&before)?;
        let digests = self.digest(&before).await?;
        if self.objects().await? != before {
            return Err(self.changed("while it was read"));
        }
        // Another program's writes may not be on the disk yet.
        let keys = self.file_keys();
        let keys: Result<Vec<String>> = before.keys().map(|path| keys.key(path)).collect();
        remote.store.sync(&keys?).await?;
        let manifest = self.manifest(&before, digests)?;
        let written = self.write(&manifest).await;
        match written {
            Err(error) if error.kind() == ErrorKind::Conflict && self.is_committed().await? => {
                ensure_not_removed(remote, id).await?;
                Ok(ImportOutcome::AlreadyImported)
            }
            written => written,
        }
    }

    /// Writes the part manifest and the commit.
    async fn write(&self, manifest: &PartManifest) -> Result<ImportOutcome> {
        let (remote, id) = (self.imports.remote, self.step.id);
        let key = remote.keys.part(id, &self.node);
        let bytes = remote.create_record(&key, manifest).await.map_err(|error| self.taken(error))?;
        let part = FoundPart::of(manifest, Sha256Digest::of(&bytes), bytes.len() as u64);
        let commit = Commit::of(vec![part])?;
        ensure_not_removed(remote, id).await?;
        let written = remote.write_record(&remote.keys.commit(id), &commit).await?;
        let outcome = if written.is_new() { ImportOutcome::Imported } else { ImportOutcome::AlreadyImported };
        let (confirmed, not_removed) = tokio::join!(written.confirm(remote), ensure_not_removed(remote, id));
        not_removed?;
        confirmed?;
        let (run, tier) = (remote.keys.run(), &remote.tier);
        self.imports.observer.on_event(&Event::Durable { run, tier, id, saved: None });
        Ok(outcome)
    }

    /// Returns whether the step is committed from the same place.
    async fn is_committed(&self) -> Result<bool> {
        let remote = self.imports.remote;
        let found = remote.read_record::<Commit>(&remote.keys.commit(self.step.id)).await?;
        Ok(found.is_some_and(|(commit, _)| {
            let mut sources = commit.parts.iter().filter_map(|part| part.imported.clone());
            sources.any(|imported| ImportSource { imported, name: commit.name.clone() } == self.step.source)
        }))
    }

    fn taken(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Conflict {
            return error;
        }
        let place = self.imports.remote.describe(self.step_place());
        Error::new(ErrorKind::Conflict, format!("cannot import {}", self.step.id))
            .on(place)
            .because(error)
            .hint("an upload, or an import of other objects or with other options, has begun this step: repeat that one, or import this one under another attempt, with --attempt N")
    }

    fn changed(&self, when: &str) -> Error {
        Error::new(ErrorKind::Conflict, format!("cannot import {}", self.step.id))
            .on(self.imports.remote.describe(self.step_place()))
            .because(format!("its objects changed {when}"))
            .hint("import it again when nothing writes to it")
    }

    /// Returns the key of its directory or file.
    fn step_place(&self) -> &str {
        self.step.source.imported.prefix.as_ref().map_or("", RelativePath::as_str)
    }

    fn file_keys(&self) -> FileKeys {
        self.step.source.imported.file_keys()
    }

    /// Lists its objects. Names of directories are no files.
    async fn objects(&self) -> Result<Objects> {
        let (remote, keys) = (self.imports.remote, self.file_keys());
        let mut found = Objects::new();
        let mut add = |info: ObjectInfo| {
            let path = info.key.strip_prefix(keys.prefix()).unwrap_or_default();
            if path.is_empty() || path.ends_with('/') {
                return Ok(());
            }
            found.insert(RelativePath::new(path)?, info);
            Ok::<_, Error>(())
        };
        for (root, is_directory) in &self.step.roots {
            let root = root.as_deref().unwrap_or_default();
            if *is_directory {
                let below = format!("{}{root}{}", keys.prefix(), if root.is_empty() { "" } else { "/" });
                let mut listed = remote.store.list(&below);
                while let Some(info) = listed.try_next().await? {
                    add(info)?;
                }
            } else if let Some(head) = remote.store.head(&format!("{}{root}", keys.prefix())).await? {
                add(head.info)?;
            }
        }
        Ok(found)
    }

    /// Checks that the objects are those that were inspected.
    fn ensure_as_found(&self, objects: &Objects) -> Result<()> {
        let tree = &self.step.tree;
        let inspected: BTreeMap<&str, Option<u64>> =
            tree.files().map(|(path, _)| (path, tree.file_size_bytes(path))).collect();
        let listed = objects.iter().map(|(path, info)| (path.as_str(), Some(info.size_bytes)));
        // The checksum is that of the version whose metadata was read.
        let has_version = |(path, trusted): (&RelativePath, &TrustedObject)| {
            objects.get(path).is_some_and(|info| info.version.as_ref() == Some(&trusted.version))
        };
        if inspected == listed.collect() && self.step.trusted.iter().all(has_version) {
            Ok(())
        } else {
            Err(self.changed("since they were checked"))
        }
    }

    /// Reads every byte once, and returns the digests of the parts of each file; none for one whose checksum is trusted.
    async fn digest(&self, objects: &Objects) -> Result<Vec<Vec<PartDigest>>> {
        let (remote, algorithm) = (self.imports.remote, self.algorithm);
        let mut slots = Vec::with_capacity(objects.len());
        let mut jobs = Vec::new();
        for (file, (path, info)) in objects.iter().enumerate() {
            if self.step.trusted.contains_key(path) {
                slots.push(Vec::new());
                continue;
            }
            let parts = FileParts::of(info.size_bytes)?;
            slots.push(vec![PartDigest::by(algorithm, &[]); parts.count() as usize]);
            let key: Arc<str> = info.key.as_str().into();
            jobs.extend((0..parts.count()).map(|part| (file, part, Arc::clone(&key), parts.range(part))));
        }
        let slots = Arc::new(Mutex::new(slots));
        let jobs = jobs.into_iter().map({
            let (remote, observer, slots) =
                (remote.clone(), Arc::clone(self.imports.observer), Arc::clone(&slots));
            move |(file, part, key, range)| {
                let (remote, observer, slots) = (remote.clone(), Arc::clone(&observer), Arc::clone(&slots));
                async move {
                    let digest = remote.digest_range(&key, range, algorithm).await?;
                    observer.on_event(&Event::BytesMoved { tier: &remote.tier, bytes: digest.size_bytes });
                    if let Some(slot) =
                        slots.lock().get_mut(file).and_then(|parts| parts.get_mut(part as usize))
                    {
                        *slot = digest;
                    }
                    Ok(())
                }
            }
        });
        run_bounded(jobs, remote.settings.max_concurrent_requests).await.map_err(|error| {
            match error.kind() {
                ErrorKind::NotFound | ErrorKind::Damaged => {
                    self.changed(&format!("while it was read: {error}"))
                }
                _ => error,
            }
        })?;
        let digests = std::mem::take(&mut *slots.lock());
        Ok(digests)
    }

    fn manifest(&self, objects: &Objects, digests: Vec<Vec<PartDigest>>) -> Result<PartManifest> {
        let step = &*self.step;
        let written_at =
            objects.values().map(|info| Timestamp::from(info.modified)).max().unwrap_or_default();
        let files = objects.iter().zip(digests).map(|((path, info), parts)| {
            let proof = match step.trusted.get(path) {
                Some(object) => FileProof::Trusted(object.checksum),
                None => FileProof::Digests(EntryDigests::of_parts(&parts)),
            };
            let (path, mtime) = (path.clone(), Timestamp::from(info.modified));
            FileEntry::new(path, FILE_MODE, mtime, info.size_bytes, proof)
        });
        let is_directory = |kind: &EntryKind| *kind == EntryKind::Directory;
        let listed = step.tree.entries().filter(|(_, entry)| is_directory(&entry.kind)).map(|(path, _)| path);
        let above = objects.keys().flat_map(RelativePath::ancestors);
        let paths: BTreeSet<&str> = listed.chain(above).collect();
        let directory = |path| DirectoryEntry { mode: DIRECTORY_MODE, mtime: written_at, path };
        let mut directories = Vec::new();
        if step.shape == Shape::Directory {
            directories.push(directory(None));
            for path in paths {
                directories.push(directory(Some(RelativePath::new(path)?)));
            }
        }
        let manifest = PartManifest {
            digest: self.algorithm,
            directories,
            files: files.collect::<Result<_>>()?,
            format: if step.trusted.is_empty() { FORMAT_OF_IMPORTED } else { FORMAT_OF_TRUSTED },
            id: step.id,
            imported: Some(step.source.imported.clone()),
            members: step.identity.members.clone(),
            metrics: BTreeMap::new(),
            name: step.identity.name.clone(),
            node: self.node.clone(),
            origin: StepOrigin { best: step.best.clone(), ..step.identity.origin.clone() },
            run: self.imports.remote.keys.run().clone(),
            shape: step.shape,
            shared_tree_sha256: None,
            symlinks: Vec::new(),
            written_at,
        };
        Ok(manifest)
    }
}

//! What an upload sends: a step that is sealed in the vault, or one that another remote has. They differ in where bytes are
//! read and what proves them: a sealed file is hashed as it is read, and a file of a remote is compared with the manifest
//! of its part.

use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt as _;
use stepvault_core::codec::{FORMAT, encode};
use stepvault_core::commit::{Commit, FoundPart};
use stepvault_core::keys::FileKeys;
use stepvault_core::manifest::{FileEntry, PartManifest};
use stepvault_core::records::Claim;
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::{
    DigestAlgorithm, Error, ErrorKind, NodeSet, PartDigest, RelativePath, Result, Sha256Digest, StepId,
};
use stepvault_local::seal_record::{AttemptOrigin, SealRecord, SealedFile, SnapshotMethod};
use stepvault_local::sealed::SealedStep;
use tokio::sync::Semaphore;

use crate::blocking::blocking;
use crate::memory::{Buffer, MemoryBudget};
use crate::tier::catalog::{read_commit, read_manifests};
use crate::tier::removed::removal_record;
use crate::tier::run_remote::{BodyRetries, RunRemote};

/// What an upload sends. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// This node's part of a step that is sealed in the vault.
    Sealed(SealedStep),
    /// All parts of a step of another remote.
    Remote(Arc<SourceStep>),
}

impl Origin {
    /// Returns who wrote the step, what it is called, and its files.
    pub(super) fn record(&self) -> &SealRecord {
        match self {
            Self::Sealed(sealed) => sealed.record(),
            Self::Remote(step) => &step.record,
        }
    }

    pub(super) fn id(&self) -> StepId {
        self.record().id
    }

    /// Whether the upload sends one part of several, which other nodes complete.
    pub(super) fn is_one_of_several(&self) -> bool {
        matches!(self, Self::Sealed(sealed) if sealed.record().is_one_of_several())
    }

    /// Whether other uploads may have sent files of the step: those of other nodes, or an earlier one from this origin that
    /// left no journal here.
    pub(super) fn may_be_present(&self) -> bool {
        self.is_one_of_several() || matches!(self, Self::Remote(_))
    }

    /// Returns where the bytes of one of its files are.
    pub(super) fn source_of(&self, path: &RelativePath) -> Result<FileSource> {
        Ok(match self {
            Self::Sealed(sealed) => FileSource::Sealed(sealed.file_path(path)),
            Self::Remote(step) => FileSource::Remote(Arc::new(step.file(path)?)),
        })
    }
}

/// Where the bytes of a file are.
#[derive(Debug, Clone)]
pub(super) enum FileSource {
    /// In the vault, or where the trainer wrote it.
    Sealed(PathBuf),
    /// On another remote.
    Remote(Arc<RemoteFile>),
}

impl FileSource {
    /// Returns the algorithm of the digests that its manifest has; `None` for a sealed file, which is hashed.
    pub(super) fn algorithm(&self) -> Option<DigestAlgorithm> {
        match self {
            Self::Sealed(_) => None,
            Self::Remote(file) => Some(file.entry.content.algorithm()),
        }
    }

    /// Returns the path of a sealed file.
    pub(super) fn sealed_path(&self) -> Result<PathBuf> {
        match self {
            Self::Sealed(path) => Ok(path.clone()),
            Self::Remote(file) => Err(Error::new(ErrorKind::Failed, "cannot read a sealed file")
                .on(file.remote.describe(&file.key))
                .because("it is on a remote")),
        }
    }
}

/// A committed step of a remote, with its records as they are there, from which it is copied to another one.
#[derive(Debug)]
pub struct SourceStep {
    pub(super) remote: RunRemote,
    pub(super) commit: Commit,
    /// In the order of the commit's parts, as they are written on the target.
    pub(super) manifests: Vec<PartManifest>,
    /// Where the files of each manifest are on the source.
    keys: Vec<FileKeys>,
    /// As if all its parts had been sealed here. Each of its files is in one of the manifests.
    record: SealRecord,
}

impl SourceStep {
    /// Reads the records of a step.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when it has no commit; [`ErrorKind::Damaged`] when its records cannot be used.
    pub async fn read(remote: &RunRemote, id: StepId) -> Result<Self> {
        let commit = read_commit(remote, id).await?;
        let manifests = read_manifests(remote, &commit).await?;
        let keys = manifests.iter().map(PartManifest::file_keys).collect();
        let (commit, manifests) = in_own_layout(commit, manifests)?;
        let claim = remote.read_usable_record::<Claim>(&remote.keys.claim(id)).await?;
        let nodes = || NodeSet::new(commit.parts.iter().map(|part| part.node.clone()));
        let (nodes, launch) = match claim {
            Some(claim) => (claim.nodes, claim.launch),
            None => (nodes()?, None),
        };
        let first = manifests.first().ok_or_else(|| {
            Error::new(ErrorKind::Damaged, "cannot copy a step without parts").on(remote.describe(""))
        })?;
        let record = SealRecord {
            attempt: AttemptOrigin::default(),
            digest: first.digest,
            directories: Vec::new(),
            files: files_of(&manifests)
                .map_err(|error| error.on(remote.describe(&remote.keys.commit(id))))?,
            format: FORMAT,
            id,
            launch,
            members: Vec::new(),
            metrics: commit.metrics.clone(),
            name: commit.name.clone(),
            node: first.node.clone(),
            nodes: Some(nodes),
            origin: StepOrigin::default(),
            run: commit.run.clone(),
            shape: commit.shape,
            shared: false,
            source: None,
            symlinks: Vec::new(),
            written_at: commit.written_at,
        };
        Ok(Self { remote: remote.clone(), commit, manifests, keys, record })
    }

    /// Returns the digest of its commit, which determines all of it.
    pub(super) fn commit_sha256(&self) -> Result<Sha256Digest> {
        Ok(Sha256Digest::of(&encode(&self.commit)?))
    }

    /// Returns one of its files: the only place that knows where a remote has the bytes of a step that is copied.
    pub(super) fn file(&self, path: &RelativePath) -> Result<RemoteFile> {
        let found = self.manifests.iter().zip(&self.keys).find_map(|(manifest, keys)| {
            let position = manifest.files.binary_search_by(|file| file.path.cmp(path)).ok()?;
            Some((manifest.files.get(position)?, keys))
        });
        let (entry, keys) = found.ok_or_else(|| {
            Error::new(ErrorKind::Failed, "cannot read a file that its step does not have").on(path)
        })?;
        Ok(RemoteFile { remote: self.remote.clone(), key: keys.key(path)?, entry: entry.clone() })
    }

    /// Checks that the step still exists: what is removed on its remote is not copied any more.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when it was removed, or is being removed.
    pub(super) async fn ensure_present(&self) -> Result<()> {
        let id = self.commit.id;
        let removal = removal_record(&self.remote, id).await;
        match removal.map_err(|error| of_source(&self.remote, error))? {
            None => Ok(()),
            Some(key) => Err(Error::new(ErrorKind::NotFound, format!("cannot copy {id}"))
                .on(self.remote.describe(&key))
                .because("it was removed from there meanwhile")),
        }
    }
}

/// Returns the records of a step as they are where its objects have stepvault's own layout: on the target of a copy, an
/// imported step is like any other.
fn in_own_layout(commit: Commit, mut manifests: Vec<PartManifest>) -> Result<(Commit, Vec<PartManifest>)> {
    if !commit.is_imported() {
        return Ok((commit, manifests));
    }
    let mut parts = Vec::with_capacity(manifests.len());
    for manifest in &mut manifests {
        (manifest.imported, manifest.format) = (None, FORMAT);
        let bytes = encode(manifest)?;
        parts.push(FoundPart::of(manifest, Sha256Digest::of(&bytes), bytes.len() as u64));
    }
    Ok((Commit::of(parts)?, manifests))
}

/// Returns the files of all parts, sorted by path. Two nodes may have written the same file.
fn files_of(manifests: &[PartManifest]) -> Result<Vec<SealedFile>> {
    let mut entries: Vec<&FileEntry> = manifests.iter().flat_map(|manifest| &manifest.files).collect();
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let differ = |pair: &&[&FileEntry]| pair[0].path == pair[1].path && !pair[0].has_same_bytes(pair[1]);
    if let Some(pair) = entries.windows(2).find(differ) {
        return Err(Error::new(ErrorKind::Damaged, "the parts of a step contradict each other")
            .because(format!("{} has different bytes in two of them", pair[0].path)));
    }
    entries.dedup_by(|one, other| one.path == other.path);
    let sealed = entries.into_iter().map(|entry| SealedFile {
        hole_bytes: entry.hole_bytes,
        inode: 0,
        method: SnapshotMethod::Copy,
        mode: entry.mode,
        mtime: entry.mtime,
        path: entry.path.clone(),
        size_bytes: entry.size_bytes,
    });
    Ok(sealed.collect())
}

/// Returns the error of reading the remote that a step is copied from, so that the message says which side failed.
pub(crate) fn of_source(remote: &RunRemote, error: Error) -> Error {
    of_side("cannot read the source", remote, error)
}

/// Returns the error of one side of a copy.
pub(crate) fn of_side(what: &str, remote: &RunRemote, error: Error) -> Error {
    let (kind, is_inconclusive) = (error.kind(), error.is_inconclusive());
    let hint = error.hint_text().unwrap_or_default().to_owned();
    let sided = Error::new(kind, what).on(remote.name()).because(error).hint(hint);
    if is_inconclusive { sided.inconclusive() } else { sided }
}

/// A file of a step on a remote.
#[derive(Debug)]
pub(super) struct RemoteFile {
    remote: RunRemote,
    pub(super) key: String,
    pub(super) entry: FileEntry,
}

/// How often a part is read that differs from its digest: the connection may have damaged it.
const READS: usize = 2;

impl RemoteFile {
    /// Reads one part into the memory of the budget. `hashing` limits the parts that are hashed at once.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] when the remote has other bytes than were saved.
    pub(super) async fn read_part(
        &self,
        index: u32,
        budget: &MemoryBudget,
        hashing: &Semaphore,
    ) -> Result<(Buffer, PartDigest)> {
        let range = self.entry.parts()?.range(index);
        let expected = self.entry.parts_content.get(index as usize).copied();
        let size = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut buffer = budget.take(size).await?;
        for _ in 0..READS {
            let filled = self.fill(buffer, range.start).await;
            let read = filled.map_err(|error| of_source(&self.remote, error))?;
            let algorithm = self.entry.content.algorithm();
            let _turn = hashing.acquire().await;
            let digest;
            (buffer, digest) = blocking(move || {
                let digest = read.digest(algorithm);
                Ok((read, digest))
            })
            .await?;
            if Some(digest.content) == expected {
                return Ok((buffer, digest));
            }
        }
        let (start, end) = (range.start, range.end);
        let damaged = Error::new(ErrorKind::Damaged, "an object differs from its manifest")
            .on(self.remote.describe(&self.key))
            .because(format!("bytes {start} to {end} are not those saved"))
            .hint("check the step with `stepvault verify --deep`");
        Err(of_source(&self.remote, damaged))
    }

    /// Reads as many bytes as the buffer has, from `start` on. Continues after a break where it broke.
    async fn fill(&self, mut buffer: Buffer, start: u64) -> Result<Buffer> {
        let end = start + buffer.size_bytes() as u64;
        if start == end {
            self.remote.ensure_empty(&self.key).await?;
        }
        let (mut position, mut breaks) = (start, BodyRetries::default());
        while position < end {
            let before = position;
            let opened = self.remote.store.read(&self.key, Some(position..end)).await;
            let mut stream = match opened {
                Ok(stream) => stream,
                Err(error) => return Err(self.remote.confirmed(&self.key, None, error).await),
            };
            let mut broken = None;
            while position < end && broken.is_none() {
                match stream.next().await {
                    Some(Ok(piece)) if piece.len() as u64 <= end - position => {
                        buffer.write_at(position - start, &piece);
                        position += piece.len() as u64;
                    }
                    Some(Ok(_)) => {
                        let what = "a store sent more bytes than requested";
                        broken = Some(Error::new(ErrorKind::Damaged, what));
                    }
                    Some(Err(error)) => broken = Some(error),
                    None => {
                        let what = "a read ended before its last byte";
                        broken = Some(Error::new(ErrorKind::Unreachable, what));
                    }
                }
            }
            drop(stream);
            if let Some(error) = broken {
                breaks.wait(error, position != before).await?;
            }
        }
        Ok(buffer)
    }
}

//! What an upload sends: a step that is sealed in the vault, or one that another remote has. They differ in where bytes are
//! read and what proves them: a sealed file is hashed as it is read, and a file of a remote is compared with the manifest
//! of its part. The bytes of the latter may come from the vault, if it has the step too.

use std::borrow::Cow;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stepvault_core::codec::{FORMAT, encoded_bytes, sha256_of};
use stepvault_core::commit::{Commit, FoundPart};
use stepvault_core::keys::FileKeys;
use stepvault_core::manifest::{EntryDigests, FileEntry, FileProof, PartManifest};
use stepvault_core::records::Claim;
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::{
    Crc32c, DigestAlgorithm, Error, ErrorKind, NodeSet, Observer, PartDigest, RelativePath, Result,
    Sha256Digest, StepId,
};
use stepvault_local::seal_record::{AttemptOrigin, SealRecord, SealedFile, SnapshotMethod};
use stepvault_local::sealed::SealedStep;
use stepvault_local::source::SourceFile;
use stepvault_remote::store::ConcurrencyLimit;
use tokio::sync::Semaphore;

use crate::blocking::blocking;
use crate::local_digest::read_and_digest;
use crate::memory::{Buffer, MemoryBudget};
use crate::remote_file::RangeBody;
use crate::tier::catalog::{read_commit, read_manifests};
use crate::tier::removed::removal_record;
use crate::tier::run_remote::RunRemote;

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
            Self::Remote(file) => Some(file.algorithm),
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
    /// The step in this machine's vault.
    sealed: Option<SealedStep>,
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
        // A copy without the launch that began the step would keep later ones from the target (L4).
        let claim: Option<Claim> = remote.read_usable_record(&remote.keys.claim(id)).await?;
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
        Ok(Self { remote: remote.clone(), commit, manifests, keys, record, sealed: None })
    }

    /// Lets the bytes be read from the step in this machine's vault, as far as they are those of the manifests.
    #[must_use]
    pub fn with_sealed(self, sealed: Option<SealedStep>) -> Self {
        Self { sealed, ..self }
    }

    /// Returns its records on the target. `digests_of` returns those of a file that has none at the source.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] when they are of other bytes.
    pub(super) fn completed(
        &self,
        digests_of: impl Fn(&RelativePath) -> Option<EntryDigests>,
    ) -> Result<(Cow<'_, Commit>, Cow<'_, [PartManifest]>)> {
        if self.commit.trusted_files() == 0 {
            return Ok((Cow::Borrowed(&self.commit), Cow::Borrowed(&self.manifests)));
        }
        let mut manifests = self.manifests.clone();
        for file in manifests.iter_mut().flat_map(|manifest| &mut manifest.files) {
            let Some(checksum) = file.trusted_checksum() else { continue };
            let found = digests_of(&file.path).map(FileProof::Digests);
            let complete = found.map(|proof| FileEntry { proof, ..file.clone() });
            let is_it = |found: &FileEntry| found.digest().is_some_and(|digest| checksum.matches(&digest));
            *file = complete.filter(is_it).ok_or_else(|| {
                Error::new(ErrorKind::Damaged, "cannot copy a file without digests")
                    .on(&file.path)
                    .because(format!("what is on the target does not have its {checksum}"))
            })?;
        }
        Ok((Cow::Owned(commit_of(&manifests)?), Cow::Owned(manifests)))
    }

    /// Returns the digest of its commit, which determines all of it.
    pub(super) fn commit_sha256(&self) -> Result<Sha256Digest> {
        sha256_of(&self.commit)
    }

    /// Returns one of its files: the only place that knows where a remote has the bytes of a step that is copied.
    pub(super) fn file(&self, path: &RelativePath) -> Result<RemoteFile> {
        let found = self.manifests.iter().zip(&self.keys).find_map(|(manifest, keys)| {
            let position = manifest.files.binary_search_by(|file| file.path.cmp(path)).ok()?;
            Some((manifest.files.get(position)?, manifest.digest, keys))
        });
        let (entry, algorithm, keys) = found.ok_or_else(|| {
            Error::new(ErrorKind::Failed, "cannot read a file that its step does not have").on(path)
        })?;
        let (remote, key, entry) = (self.remote.clone(), keys.key(path)?, entry.clone());
        let sealed = self.sealed.as_ref().and_then(|step| SealedCopy::of(step, &entry));
        Ok(RemoteFile { remote, key, entry, algorithm, sealed })
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
    for manifest in &mut manifests {
        (manifest.imported, manifest.format) = (None, FORMAT);
    }
    Ok((commit_of(&manifests)?, manifests))
}

/// Returns the commit of these parts.
fn commit_of(manifests: &[PartManifest]) -> Result<Commit> {
    let part =
        |manifest: &PartManifest| Ok(FoundPart::of(manifest, sha256_of(manifest)?, encoded_bytes(manifest)?));
    Commit::of(manifests.iter().map(part).collect::<Result<_>>()?)
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
    /// That of its part: a file without digests gets some by it.
    algorithm: DigestAlgorithm,
    sealed: Option<SealedCopy>,
}

/// What the vault has under the path of a file. Only its digests tell whether it is that file.
#[derive(Debug)]
struct SealedCopy {
    path: PathBuf,
    file: SealedFile,
    /// Whether some of it could not be read, or has another digest.
    is_unusable: AtomicBool,
}

impl SealedCopy {
    fn of(step: &SealedStep, entry: &FileEntry) -> Option<Self> {
        let file = step.record().file(&entry.path)?.clone();
        Some(Self { path: step.file_path(&entry.path), file, is_unusable: AtomicBool::new(false) })
    }
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
        let expected = self.entry.part_digest(index);
        let (range, mut buffer) = self.buffer_of(index, budget).await?;
        for _ in 0..READS {
            let read = self.fill(buffer, range.start).await?;
            let algorithm = self.algorithm;
            let _turn = hashing.acquire().await;
            let digest;
            (buffer, digest) = blocking(move || {
                let digest = read.digest(algorithm);
                Ok((read, digest))
            })
            .await?;
            // A part that has no digest is proved with its file.
            if expected.is_none_or(|expected| expected == digest.content) {
                return Ok((buffer, digest));
            }
        }
        Err(self.differs_in(&range))
    }

    /// Returns what the manifest says of a part, if that is enough to send it: the digest. The checksums of one of several
    /// parts are not known, and are those of no bytes.
    pub(super) fn expected(&self, index: u32) -> Option<PartDigest> {
        let content = self.entry.part_digest(index)?;
        let range = self.entry.parts().ok()?.range(index);
        let size_bytes = range.end - range.start;
        let whole = self.entry.digest()?;
        if size_bytes == whole.size_bytes {
            return Some(PartDigest {
                content,
                crc32c: whole.crc32c,
                crc64nvme: whole.crc64nvme,
                size_bytes,
            });
        }
        let is_enough = content.algorithm() == DigestAlgorithm::Sha256;
        is_enough.then(|| PartDigest { content, crc32c: Crc32c::of(&[]), crc64nvme: None, size_bytes })
    }

    /// Returns a range of it as it arrives.
    pub(super) fn body(&self, range: Range<u64>) -> RangeBody {
        RangeBody::new(&self.remote.store, &self.key, range)
    }

    /// Returns the error for a body that could not be read.
    pub(super) async fn unread(&self, error: Error) -> Error {
        of_source(&self.remote, self.remote.confirmed(&self.key, None, error).await)
    }

    /// Returns how many parts the source may be asked for at once.
    pub(super) fn requests_at_once(&self) -> usize {
        self.remote.store.concurrency_limit().map_or(usize::MAX, ConcurrencyLimit::current)
    }

    /// Returns the error for a range whose bytes differ from its digest.
    pub(super) fn differs_in(&self, range: &Range<u64>) -> Error {
        let Range { start, end } = range;
        self.differs(&format!("bytes {start} to {end} are not those saved"))
    }

    async fn buffer_of(&self, index: u32, budget: &MemoryBudget) -> Result<(Range<u64>, Buffer)> {
        let range = self.entry.parts()?.range(index);
        let size = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        Ok((range, budget.take(size).await?))
    }

    /// Reads one part from the vault; `None` if it has to be read from the remote.
    ///
    /// # Invariants
    /// S2: the bytes that are returned have the digest in the manifest, whatever happened to the vault.
    pub(super) async fn read_sealed_part(
        &self,
        index: u32,
        budget: &MemoryBudget,
        hashing: &Semaphore,
        observer: &dyn Observer,
    ) -> Result<Option<(Buffer, PartDigest)>> {
        let Some((sealed, expected)) = self.sealed.as_ref().zip(self.entry.part_digest(index)) else {
            return Ok(None);
        };
        if sealed.is_unusable.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (range, buffer) = self.buffer_of(index, budget).await?;
        let (path, file, algorithm) = (sealed.path.clone(), sealed.file.clone(), self.algorithm);
        let turn = hashing.acquire().await;
        let read = blocking(move || {
            read_and_digest(&SourceFile::open(&path, &file)?, range.start, buffer, algorithm)
        });
        let why = match read.await {
            Ok((buffer, digest)) if digest.content == expected => return Ok(Some((buffer, digest))),
            Ok(_) => "its bytes are not those of the manifest".to_owned(),
            Err(error) => error.to_string(),
        };
        drop(turn);
        let is_known = sealed.is_unusable.swap(true, Ordering::Relaxed);
        // One that was evicted meanwhile is no surprise.
        if !is_known && sealed.path.exists() {
            let (path, remote) = (sealed.path.display(), self.remote.name());
            observer.warn(format!("{path}: {why}; the file is read from {remote}"));
        }
        Ok(None)
    }

    /// Returns the error for an object that holds something else than its manifest says.
    pub(super) fn differs(&self, why: &str) -> Error {
        let damaged = Error::new(ErrorKind::Damaged, "an object differs from its manifest")
            .on(self.remote.describe(&self.key))
            .because(why)
            .hint("check the step with `stepvault verify --deep`");
        of_source(&self.remote, damaged)
    }

    /// Reads as many bytes as the buffer has, from `start` on. Continues after a break where it broke.
    async fn fill(&self, mut buffer: Buffer, start: u64) -> Result<Buffer> {
        let end = start + buffer.size_bytes() as u64;
        if start == end {
            let checked = self.remote.ensure_empty(&self.key).await;
            checked.map_err(|error| of_source(&self.remote, error))?;
        }
        let (mut body, mut filled) = (self.body(start..end), 0);
        loop {
            match body.next().await {
                Ok(Some(piece)) => {
                    buffer.write_at(filled, &piece);
                    filled += piece.len() as u64;
                }
                Ok(None) => return Ok(buffer),
                Err(error) => return Err(self.unread(error).await),
            }
        }
    }
}

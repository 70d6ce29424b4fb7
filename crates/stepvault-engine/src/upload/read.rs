//! Reads and hashes file parts: into memory while there is plenty, otherwise only for their digest, to be read again while
//! they are sent. A step's bytes are hashed once, however many remotes it goes to and however often it is tried.
//!
//! A shared digest proves nothing by itself. It is what the bytes that are sent are held against, by the store or by
//! reading them back.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use stepvault_core::{
    DigestAlgorithm, Error, ErrorKind, PartDigest, RelativePath, Result, RunName, StepId, Timestamp,
};
use stepvault_local::seal_record::SealedFile;
use stepvault_local::source::SourceFile;
use stepvault_remote::payload::{BlockSource, BodySource, Payload, READ_BLOCK_BYTES};
use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::file::FileUpload;
use super::origin::{FileSource, RemoteFile};
use super::pass::{PASSED_BYTES, PassedPart};
use super::session::UploadSession;
use crate::blocking::blocking;
use crate::local_digest::{digest_range, read_and_digest};
use crate::memory::Buffer;

/// The memory of a body that is read again while it is sent: the block that the connection takes its slices from, the
/// next one, and what the connection has queued.
const STREAMED_BYTES: usize = 2 * READ_BLOCK_BYTES;

impl FileUpload {
    pub(super) async fn open(&self) -> Result<Arc<SourceFile>> {
        let (slot, path, file) =
            (Arc::clone(&self.progress.source), self.source.sealed_path()?, self.file.clone());
        blocking(move || {
            let mut slot = slot.lock();
            if let Some(source) = slot.as_ref() {
                return Ok(Arc::clone(source));
            }
            let source = Arc::new(SourceFile::open(&path, &file)?);
            *slot = Some(Arc::clone(&source));
            Ok(source)
        })
        .await
    }

    pub(super) async fn read_part(&self, index: u32) -> Result<ReadPart> {
        if let FileSource::Remote(file) = &self.source {
            let UploadSession { budget, state, observer, .. } = &self.session;
            let sealed = file.read_sealed_part(index, budget, &state.hashing, observer.as_ref()).await?;
            if let Some(part) = sealed {
                state.vault_bytes.fetch_add(part.1.size_bytes, Ordering::Relaxed);
                return Ok(ReadPart::held(part));
            }
            if let Some(part) = self.pass_on(file, index).await? {
                return Ok(part);
            }
            return file.read_part(index, budget, &state.hashing).await.map(ReadPart::held);
        }
        let range = self.layout.range(index);
        let source = self.open().await?;
        match self.buffer_for(range.end - range.start).await? {
            Some(buffer) => self.read(source, index, buffer).await,
            None => self.hash(source, index).await,
        }
    }

    /// Returns a part of another remote's file without its bytes, once it may be passed on; `None` where they have to be in
    /// memory: the store needs more than the manifest says before it gets them, or may copy the part instead.
    async fn pass_on(&self, file: &Arc<RemoteFile>, index: u32) -> Result<Option<ReadPart>> {
        let UploadSession { remote, budget, state, .. } = &self.session;
        let capabilities = remote.store.capabilities();
        let range = self.layout.range(index);
        let size_bytes = range.end - range.start;
        let size = usize::try_from(size_bytes).unwrap_or(usize::MAX);
        let streams = capabilities.streams_bodies && capabilities.checks_sha256_alone && size > PASSED_BYTES;
        let Some(expected) = file.expected(index).filter(|_| streams) else { return Ok(None) };
        if self.copies.source_of_part(self.layout.size_bytes(), index, &expected).is_some() {
            return Ok(None);
        }
        // A request whose bytes wait for the source's turn would keep the target waiting. On a slow link more parts at once
        // than memory holds would only take longer, and none would be whole when the copy is interrupted.
        let may_begin = |under_way: usize| {
            under_way < file.requests_at_once()
                && (*state.acks_fast.borrow() || budget.holds(under_way + 1, size))
        };
        let turn = state.passing.take(may_begin).await;
        let room = budget.reserve(PASSED_BYTES).await?;
        let part = Arc::new(PassedPart::new(Arc::clone(file), range, expected, turn));
        let body = Payload::streamed_from(Arc::clone(&part) as Arc<dyn BodySource>, size_bytes);
        Ok(Some(ReadPart { body, digest: expected, room: Some(room), passed: Some(part) }))
    }

    /// Reads a file of one part, and checks after its last byte that it is what was sealed.
    pub(super) async fn read_whole(&self) -> Result<ReadPart> {
        if matches!(self.source, FileSource::Remote(_)) {
            return self.read_part(0).await;
        }
        let (path, file, algorithm) = (self.source.sealed_path()?, self.file.clone(), self.algorithm);
        let buffer = match (self.buffer_for(self.layout.size_bytes()).await?, self.shared_digest(0)) {
            (Some(buffer), None) => {
                let read = blocking(move || {
                    let source = SourceFile::open(&path, &file)?;
                    let read = read_and_digest(&source, 0, buffer, algorithm)?;
                    source.check_unchanged()?;
                    Ok(read)
                });
                return Ok(ReadPart::held(read.await?));
            }
            (buffer, _) => buffer,
        };
        let source = blocking(move || Ok(Arc::new(SourceFile::open(&path, &file)?))).await?;
        let part = match buffer {
            Some(buffer) => self.read(Arc::clone(&source), 0, buffer).await?,
            None => self.hash(Arc::clone(&source), 0).await?,
        };
        blocking(move || source.check_unchanged()).await?;
        Ok(part)
    }

    /// Reads a part into memory, and hashes it unless its digest is known.
    async fn read(&self, source: Arc<SourceFile>, index: u32, mut buffer: Buffer) -> Result<ReadPart> {
        let (start, algorithm) = (self.layout.range(index).start, self.algorithm);
        let Some(shared) = self.shared_digest(index) else {
            let read = blocking(move || read_and_digest(&source, start, buffer, algorithm));
            return Ok(ReadPart::held(read.await?));
        };
        let mut is_read = false;
        let digest = *shared
            .get_or_try_init(|| async {
                let (source, unread) = (Arc::clone(&source), std::mem::take(&mut buffer));
                let (read, digest) =
                    blocking(move || read_and_digest(&source, start, unread, algorithm)).await?;
                (buffer, is_read) = (read, true);
                Ok::<_, Error>(digest)
            })
            .await?;
        if !is_read {
            buffer = blocking(move || {
                buffer.fill(|position, block| source.read_at(start + position, block))?;
                Ok(buffer)
            })
            .await?;
        }
        Ok(ReadPart::held((buffer, digest)))
    }

    /// Returns the place of a part's digest that all remotes of the step share.
    fn shared_digest(&self, index: u32) -> Option<PartCell> {
        self.digests.as_ref()?.part(&self.file, index)
    }

    /// Returns how the bytes of a part differ from what an upload to another remote has hashed, if they do.
    pub(super) async fn changed_since_hashed(&self, index: u32) -> Option<Error> {
        let shared = self.shared_digest(index)?;
        let known = *shared.get()?;
        let path = self.source.sealed_path().ok()?;
        let (shown, file, range) = (path.clone(), self.file.clone(), self.layout.range(index));
        let algorithm = self.algorithm;
        let hashed = blocking(move || digest_range(&SourceFile::open(&path, &file)?, range, algorithm)).await;
        match hashed {
            Ok(digest) if digest == known => None,
            Ok(_) => {
                if let Some(digests) = &self.digests {
                    digests.forget(&self.file, index);
                }
                Some(changed_between_uploads(&shown.display()))
            }
            Err(error) => Some(error),
        }
    }

    /// Returns memory for a whole body; `None` where there is not plenty for the requests that the store is worth, and the
    /// body can be read again while it is sent: the store streams bodies, and parts are acknowledged quickly. On a slow
    /// link, more of them at once would only take longer, and none would be whole when the machine is taken away.
    async fn buffer_for(&self, size_bytes: u64) -> Result<Option<Buffer>> {
        let size = usize::try_from(size_bytes).unwrap_or(usize::MAX);
        let budget = &self.session.budget;
        let store = &self.session.remote.store;
        let streams = store.capabilities().streams_bodies && size > STREAMED_BYTES;
        // The bodies of all concurrent requests fit into memory, also after the next step up in concurrency: reading them
        // twice would gain nothing.
        let suffices = store.concurrency_limit().is_some_and(|limit| budget.holds(2 * limit.current(), size));
        if !streams || suffices {
            return budget.take(size).await.map(Some);
        }
        if let Some(buffer) = budget.take_if_plenty(size) {
            return Ok(Some(buffer));
        }
        let mut acks_fast = self.session.state.acks_fast.subscribe();
        tokio::select! {
            // The fixed order lets a simulation be repeated.
            biased;
            Ok(_) = acks_fast.wait_for(|acks_fast| *acks_fast) => Ok(None),
            buffer = budget.take(size) => buffer.map(Some),
        }
    }

    /// Hashes a part whose bytes are read again for each request, from the same open file: the store checks them against
    /// the digest.
    async fn hash(&self, source: Arc<SourceFile>, index: u32) -> Result<ReadPart> {
        let range = self.layout.range(index);
        let (start, size_bytes, algorithm) = (range.start, range.end - range.start, self.algorithm);
        let room = self.session.budget.reserve(STREAMED_BYTES).await?;
        let hash = || async {
            let hashed = Arc::clone(&source);
            let _turn = self.session.state.hashing.acquire().await;
            blocking(move || digest_range(&hashed, range, algorithm)).await
        };
        let digest = match self.shared_digest(index) {
            Some(shared) => *shared.get_or_try_init(hash).await?,
            None => hash().await?,
        };
        let source: Arc<dyn BlockSource> = Arc::new(SourceRange { source, start });
        Ok(ReadPart { body: Payload::read_from(&source, size_bytes), digest, room: Some(room), passed: None })
    }
}

/// A part that was read and hashed, or is passed on.
pub(super) struct ReadPart {
    pub(super) body: Payload,
    pub(super) digest: PartDigest,
    /// The memory of a body that is read again while it is sent.
    pub(super) room: Option<OwnedSemaphorePermit>,
    /// A body that is passed on as it arrives: its digest is what its manifest says of it.
    pub(super) passed: Option<Arc<PassedPart>>,
}

impl ReadPart {
    fn held((buffer, digest): (Buffer, PartDigest)) -> Self {
        Self { body: buffer.into_payload(), digest, room: None, passed: None }
    }
}

/// A range of a sealed file, from `start` on.
#[derive(Debug)]
struct SourceRange {
    source: Arc<SourceFile>,
    start: u64,
}

impl BlockSource for SourceRange {
    fn read(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        let mut block = vec![0; length];
        self.source.read_at(self.start + offset, &mut block).map_err(io::Error::other)?;
        Ok(block.into())
    }
}

/// Number of steps whose digests are kept, the most recent ones.
const MOST_STEPS: usize = 4;
/// Number of parts of a step whose digests are kept: some ten megabytes of memory, for 512 GiB in parts of 8 MiB.
const MOST_PARTS: usize = 1 << 16;
/// Files below this size are hashed for each remote: that costs less than their request.
const SMALLEST_FILE_BYTES: u64 = 1 << 20;

/// The digests of the steps that a process uploads. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SharedDigests {
    steps: Arc<Mutex<VecDeque<(SealedAs, StepDigests)>>>,
}

/// A step, and the algorithm of its digests: a step that is sealed again may have another one.
type SealedAs = (RunName, StepId, DigestAlgorithm);

/// The digests of one step. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct StepDigests {
    parts: Arc<Mutex<BTreeMap<PartOfFile, PartCell>>>,
}

/// The digest of one part: the first remote that needs it computes it, and the others wait for that.
type PartCell = Arc<OnceCell<PartDigest>>;

/// A part of a file as it was sealed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PartOfFile {
    path: RelativePath,
    size_bytes: u64,
    mtime: Timestamp,
    index: u32,
}

impl SharedDigests {
    /// Returns the digests of a step.
    pub(super) fn of_step(&self, run: &RunName, id: StepId, algorithm: DigestAlgorithm) -> StepDigests {
        let mut steps = self.steps.lock();
        let sealed_as = (run.clone(), id, algorithm);
        let known = steps.iter().find(|(step, _)| *step == sealed_as);
        if let Some((_, digests)) = known {
            return digests.clone();
        }
        let digests = StepDigests::default();
        if steps.len() == MOST_STEPS {
            steps.pop_front();
        }
        steps.push_back((sealed_as, digests.clone()));
        digests
    }

    /// Forgets the digests of a step that was not sealed.
    pub(super) fn forget(&self, digests: &StepDigests) {
        let mut steps = self.steps.lock();
        steps.retain(|(_, known)| !Arc::ptr_eq(&known.parts, &digests.parts));
    }
}

impl PartOfFile {
    fn of(file: &SealedFile, index: u32) -> Self {
        Self { path: file.path.clone(), size_bytes: file.size_bytes, mtime: file.mtime, index }
    }
}

impl StepDigests {
    /// Returns the place of a part's digest; `None` if it is not shared.
    fn part(&self, file: &SealedFile, index: u32) -> Option<PartCell> {
        if file.size_bytes < SMALLEST_FILE_BYTES {
            return None;
        }
        let part = PartOfFile::of(file, index);
        let mut parts = self.parts.lock();
        if let Some(cell) = parts.get(&part) {
            return Some(Arc::clone(cell));
        }
        if parts.len() >= MOST_PARTS {
            return None;
        }
        Some(Arc::clone(parts.entry(part).or_default()))
    }

    /// Forgets a digest that is not, or no longer, that of the part.
    fn forget(&self, file: &SealedFile, index: u32) {
        let mut parts = self.parts.lock();
        parts.remove(&PartOfFile::of(file, index));
    }
}

/// Returns the error for files at `place` that two uploads found different.
pub(super) fn changed_between_uploads(place: &dyn Display) -> Error {
    Error::new(ErrorKind::SourceChanged, "a sealed step changed between two uploads")
        .on(place)
        .because("the digests of the bytes sent to two remotes differ")
        .hint("set local.links = \"copy\": a process rewrites the checkpoint's files in place")
}

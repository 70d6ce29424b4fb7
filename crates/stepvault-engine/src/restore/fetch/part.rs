//! Fetches one part of one file from the first source that has it valid.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use stepvault_core::digest::{ContentHasher, PartHasher};
use stepvault_core::manifest::FileEntry;
use stepvault_core::{ContentDigest, Error, ErrorKind, Event, PartDigest, Result, Tier};
use stepvault_local::sealed::SealedStep;
use stepvault_local::source::SourceFile;
use stepvault_local::staging::{StagedFile, Staging};
use stepvault_remote::payload::BLOCK_BYTES;

use crate::blocking::blocking;
use crate::remote_file::RangeBody;
use crate::restore::candidates::{Faults, OrFaults};
use crate::restore::request::RestoreContext;
use crate::restore::resolve::{ResolvedStep, Source};
use crate::tier::run_remote::RunRemote;

/// Number of bytes that are hashed and written together. A larger batch would no longer fit in the cache.
const BATCH_BYTES: usize = 512 << 10;

/// Writes part `index` of `file` into the staged file and verifies it; with the last part, the file becomes durable.
/// Returns the tier that it was read from, `None` for what an interrupted restore left, and whether its file is now
/// complete. Faults are returned if no source has it valid.
///
/// # Invariants
/// L4: a remote has a part damaged only if it was read twice.
///
/// # Errors
/// When the disk that the step is restored to fails, or the restore is interrupted.
pub(super) async fn fetch_part(
    context: &RestoreContext,
    resolved: &ResolvedStep,
    file: &Arc<FileRestore>,
    index: u32,
) -> Result<OrFaults<(Option<Tier>, bool)>> {
    let range = file.range(index)?;
    let path = &file.entry.path;
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    // A batch, and the connection's read-ahead.
    let _held = context.budget.reserve(2 * length.min(BATCH_BYTES)).await?;
    // The checksum of a whole file proves no part of what is there.
    if file.staging.resumes && file.entry.digests().is_some() {
        let writer = PartWriter::new(file, index)?;
        if let PartOutcome::Valid { file_is_done } = blocking(move || writer.verify_present()).await? {
            return Ok(Ok((None, file_is_done)));
        }
    }
    let mut faults = Faults::default();
    for source in &resolved.sources {
        let (tier, writer) = (source.tier(), PartWriter::new(file, index)?);
        let outcome = match source {
            Source::Local(step)
                if step.record().is_one_of_several() && step.record().file(path).is_none() =>
            {
                // Another node's file: its absence is no damage of this node's part.
                faults.proven.push(format!("{tier}: it holds only the part of {}", step.record().node));
                continue;
            }
            Source::Local(step) => read_local(step, file, writer).await?,
            Source::Remote(remote) => {
                let read = async |writer| read_remote(context, resolved, remote, file, writer).await;
                match read(writer).await? {
                    // The connection may have damaged it: one response proves nothing.
                    PartOutcome::Wrong => read(PartWriter::new(file, index)?).await?,
                    outcome => outcome,
                }
            }
        };
        match outcome {
            PartOutcome::Valid { file_is_done } => {
                return Ok(Ok((Some(tier), file_is_done)));
            }
            PartOutcome::Wrong => {
                let (start, end) = (range.start, range.end);
                let damage = match file.entry.trusted_checksum() {
                    None => format!("bytes {start} to {end} differ from those saved"),
                    Some(checksum) => {
                        format!("its bytes do not have the {checksum} with which it was imported")
                    }
                };
                faults.add_proven(&tier, format!("{path}: {damage}"));
            }
            PartOutcome::Unreadable(error) => faults.add(&tier, error)?,
        }
    }
    Ok(Err(faults))
}

async fn read_local(step: &SealedStep, file: &FileRestore, writer: PartWriter) -> Result<PartOutcome> {
    let path = &file.entry.path;
    let Some(sealed) = step.record().file(path).cloned() else {
        let error = Error::new(ErrorKind::Damaged, "the sealed step lacks a file");
        return Ok(PartOutcome::Unreadable(error.on(path)));
    };
    let path = step.file_path(path);
    blocking(move || match SourceFile::open(&path, &sealed) {
        Ok(source) => writer.copy_from(&source),
        Err(error) => Ok(PartOutcome::Unreadable(error)),
    })
    .await
}

/// Reads a part by ranges; resumes after a broken connection where it broke.
async fn read_remote(
    context: &RestoreContext,
    resolved: &ResolvedStep,
    remote: &RunRemote,
    file: &FileRestore,
    mut writer: PartWriter,
) -> Result<PartOutcome> {
    let key = match resolved.keys.key(&file.entry.path) {
        Ok(key) => key,
        Err(error) => return Ok(PartOutcome::Unreadable(error)),
    };
    if writer.missing.is_empty()
        && let Err(error) = remote.ensure_empty(&key).await
    {
        return Ok(PartOutcome::Unreadable(error));
    }
    let mut body = RangeBody::new(&remote.store, &key, writer.missing.clone());
    loop {
        let (mut pieces, mut batch_bytes) = (Vec::new(), 0);
        while batch_bytes < BATCH_BYTES {
            match body.next().await {
                Ok(Some(piece)) => {
                    batch_bytes += piece.len();
                    pieces.push(piece);
                }
                Ok(None) => break,
                Err(error) => {
                    let error = remote.confirmed(&key, None, error).await;
                    return Ok(PartOutcome::Unreadable(error));
                }
            }
        }
        if batch_bytes == 0 {
            break;
        }
        writer = blocking(move || writer.write_all(&pieces)).await?;
        context.observer.on_event(&Event::BytesMoved { tier: &remote.tier, bytes: batch_bytes as u64 });
    }
    blocking(move || writer.verify()).await
}

// Streams one file part into its staged file, hashing as it writes while the data is still in the processor's cache.
//
// Written data proves nothing before its digest does: a staged file gets its name only after every part of it was
// verified, and data left by an interrupted restore is hashed again.

/// What one source has of a file part.
#[derive(Debug)]
pub(super) enum PartOutcome {
    /// The saved bytes, which are staged now.
    Valid {
        /// Whether their file is now complete and durable.
        file_is_done: bool,
    },
    /// Other bytes than those saved.
    Wrong,
    /// It could not be read.
    Unreadable(Error),
}

/// A file part of which some bytes are written. Errors of its methods are those of the disk that is restored to.
#[derive(Debug)]
pub(super) struct PartWriter {
    file: Arc<FileRestore>,
    staged: Option<Arc<StagedFile>>,
    proof: PartProof,
    index: u32,
    range: Range<u64>,
    missing: Range<u64>,
}

/// What will prove a file part whose bytes stream by.
#[derive(Debug)]
enum PartProof {
    /// Its own digest.
    Digest(ContentHasher, ContentDigest),
    /// Together with the file's other parts, the checksum of the file.
    OfFile(Box<PartHasher>),
}

impl PartProof {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Digest(hasher, _) => hasher.update(bytes),
            Self::OfFile(hasher) => hasher.update(bytes),
        }
    }
}

impl PartWriter {
    /// Starts part `index` with no bytes written.
    pub(super) fn new(file: &Arc<FileRestore>, index: u32) -> Result<Self> {
        let range = file.range(index)?;
        let proof = match file.entry.part_digest(index) {
            Some(expected) => PartProof::Digest(ContentHasher::new(expected.algorithm()), expected),
            None => PartProof::OfFile(Box::new(PartHasher::new(file.entry.algorithm()))),
        };
        Ok(Self { file: Arc::clone(file), staged: None, proof, index, missing: range.clone(), range })
    }

    /// Writes the next bytes, no more than are missing.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let staged =
            if let Some(staged) = &self.staged { staged } else { self.staged.insert(self.file.open()?) };
        self.proof.update(bytes);
        staged.write_at(self.missing.start, bytes)?;
        self.missing.start += bytes.len() as u64;
        Ok(())
    }

    /// Writes several pieces.
    pub(super) fn write_all(mut self, pieces: &[Bytes]) -> Result<Self> {
        pieces.iter().try_for_each(|piece| self.write(piece))?;
        Ok(self)
    }

    /// Copies the missing bytes from a file of the vault, and verifies them.
    pub(super) fn copy_from(mut self, source: &SourceFile) -> Result<PartOutcome> {
        let mut block = vec![0; BLOCK_BYTES];
        while !self.missing.is_empty() {
            let length = block_length(&self.missing);
            if let Err(error) = source.read_at(self.missing.start, &mut block[..length]) {
                return Ok(PartOutcome::Unreadable(error));
            }
            self.write(&block[..length])?;
        }
        self.verify()
    }

    /// Verifies the data that an interrupted restore left of the part.
    pub(super) fn verify_present(mut self) -> Result<PartOutcome> {
        let staged = self.file.open()?;
        let mut block = vec![0; BLOCK_BYTES];
        while !self.missing.is_empty() {
            let length = block_length(&self.missing);
            if !staged.read_at(self.missing.start, &mut block[..length])? {
                return Ok(PartOutcome::Wrong);
            }
            self.proof.update(&block[..length]);
            self.missing.start += length as u64;
        }
        self.verify()
    }

    /// Compares the digest, once nothing is missing; for a file that has only a checksum, that of the file once its last part
    /// is written.
    pub(super) fn verify(self) -> Result<PartOutcome> {
        let part = match self.proof {
            PartProof::Digest(hasher, expected) => {
                if hasher.finish() != expected {
                    return Ok(PartOutcome::Wrong);
                }
                None
            }
            PartProof::OfFile(hasher) => Some((self.index, hasher.finish())),
        };
        let Some(file_is_done) = self.file.count_part(part)? else {
            return Ok(PartOutcome::Wrong);
        };
        // A file that is done was synced.
        if let (false, Some(staged)) = (file_is_done, &self.staged) {
            staged.start_writeback(&self.range);
        }
        Ok(PartOutcome::Valid { file_is_done })
    }
}

/// Returns how much of a range the next block covers.
fn block_length(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).map_or(BLOCK_BYTES, |length| length.min(BLOCK_BYTES))
}

// A file being restored: opened for its first part and finished with its last.

/// One file of a restore; its parts arrive in any order. Methods that access the disk may block.
#[derive(Debug)]
pub(super) struct FileRestore {
    pub(super) entry: FileEntry,
    staging: Arc<Staging>,
    staged: Mutex<Option<Arc<StagedFile>>>,
    remaining: AtomicU32,
    /// The digests of the parts that are written, if the file has only a checksum.
    written: Mutex<BTreeMap<u32, PartDigest>>,
}

impl FileRestore {
    /// Creates the state of a file none of whose `part_count` parts exist, unless an interrupted restore left some.
    pub(super) fn new(entry: FileEntry, part_count: u32, staging: &Arc<Staging>) -> Self {
        Self {
            entry,
            staging: Arc::clone(staging),
            staged: Mutex::default(),
            remaining: AtomicU32::new(part_count),
            written: Mutex::default(),
        }
    }

    /// Returns the range of part `index` in the file.
    pub(super) fn range(&self, index: u32) -> Result<Range<u64>> {
        Ok(self.entry.parts()?.range(index))
    }

    /// Returns the staged file, opened once for all parts.
    pub(super) fn open(&self) -> Result<Arc<StagedFile>> {
        let mut staged = self.staged.lock();
        if let Some(staged) = staged.as_ref() {
            return Ok(Arc::clone(staged));
        }
        let opened = self.staging.file(&self.entry.path, self.entry.size_bytes)?;
        let opened = if self.entry.hole_bytes > 0 { opened.with_holes() } else { opened };
        Ok(Arc::clone(staged.insert(Arc::new(opened))))
    }

    /// Counts a part that is valid, or that the file's checksum will prove, with its index and digest; makes the file durable
    /// after the last. Returns whether it was the last, or `None` if the file turned out to have another checksum.
    pub(super) fn count_part(&self, part: Option<(u32, PartDigest)>) -> Result<Option<bool>> {
        if let Some((index, digest)) = part {
            self.written.lock().insert(index, digest);
        }
        let is_last = self.remaining.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            let parts: Vec<PartDigest> = self.written.lock().values().copied().collect();
            if part.is_some() && self.entry.first_difference(&parts).is_some() {
                // The part is not valid after all.
                self.remaining.fetch_add(1, Ordering::AcqRel);
                return Ok(None);
            }
            self.open()?.finish(self.entry.mode, self.entry.mtime)?;
        }
        Ok(Some(is_last))
    }
}

//! Streams one part into its staged file, hashing as it writes while the data is still in the processor's cache.
//!
//! Written data proves nothing before its digest does: a staged file gets its name only after every part of it was
//! verified, and data left by an interrupted restore is hashed again.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use stepvault_core::Result;
use stepvault_core::digest::{Sha256Digest, Sha256Hasher};
use stepvault_local::source::SourceFile;
use stepvault_local::staging::StagedFile;
use stepvault_remote::payload::BLOCK_BYTES;

use super::staged_file::FileRestore;

/// Whether a received part matches the saved bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It does not match.
    Wrong,
    /// It matches.
    Right {
        /// Whether its file is now complete and durable.
        file_is_done: bool,
    },
}

/// A part of which some bytes were received.
#[derive(Debug)]
pub(super) struct Arrival {
    file: Arc<FileRestore>,
    staged: Option<Arc<StagedFile>>,
    hasher: Sha256Hasher,
    missing: Range<u64>,
    expected: Sha256Digest,
}

impl Arrival {
    /// Starts part `index` with no bytes received.
    pub(super) fn of(file: &Arc<FileRestore>, index: u32) -> Result<Self> {
        let (missing, expected) = file.part(index)?;
        Ok(Self {
            file: Arc::clone(file),
            staged: None,
            hasher: Sha256Hasher::default(),
            missing,
            expected,
        })
    }

    /// Returns the range that was not received yet.
    pub(super) fn missing(&self) -> Range<u64> {
        self.missing.clone()
    }

    /// Accepts the next bytes, no more than are missing.
    ///
    /// # Errors
    /// When the disk fails.
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let staged = if let Some(staged) = &self.staged {
            staged
        } else {
            self.staged.insert(self.file.open()?)
        };
        self.hasher.update(bytes);
        staged.write_at(self.missing.start, bytes)?;
        self.missing.start += bytes.len() as u64;
        Ok(())
    }

    /// Accepts several pieces; after the last byte, returns the verdict.
    pub(super) fn take_all(mut self, pieces: &[Bytes]) -> Result<Progress> {
        pieces.iter().try_for_each(|piece| self.take(piece))?;
        if self.missing.is_empty() {
            self.judge().map(Progress::Whole)
        } else {
            Ok(Progress::Partial(self))
        }
    }

    /// Copies the missing bytes from a file of the vault. The outer result concerns the staged file, the inner one the
    /// source.
    pub(super) fn copy(mut self, source: &SourceFile) -> Result<Result<Verdict>> {
        let mut block = vec![0; BLOCK_BYTES];
        while !self.missing.is_empty() {
            let length = length_of(&self.missing);
            if let Err(error) = source.read_at(self.missing.start, &mut block[..length]) {
                return Ok(Err(error));
            }
            self.take(&block[..length])?;
        }
        self.judge().map(Ok)
    }

    /// Reads the data that an interrupted restore left of the part.
    pub(super) fn look_at_present(mut self) -> Result<Verdict> {
        let staged = self.file.open()?;
        let mut block = vec![0; BLOCK_BYTES];
        while !self.missing.is_empty() {
            let length = length_of(&self.missing);
            if !staged.read_at(self.missing.start, &mut block[..length])? {
                return Ok(Verdict::Wrong);
            }
            self.hasher.update(&block[..length]);
            self.missing.start += length as u64;
        }
        self.judge()
    }

    /// Checks the digest; called once nothing is missing.
    pub(super) fn judge(self) -> Result<Verdict> {
        if self.hasher.finish() == self.expected {
            let file_is_done = self.file.part_is_right()?;
            Ok(Verdict::Right { file_is_done })
        } else {
            Ok(Verdict::Wrong)
        }
    }
}

/// Progress of one part.
#[derive(Debug)]
pub(super) enum Progress {
    /// Bytes are missing.
    Partial(Arrival),
    /// None is.
    Whole(Verdict),
}

/// Returns how much of a range the next block covers.
fn length_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES))
}

//! Bytes of a part on their way into a staged file: hashed and written as they pass, while the processor's cache still
//! has them.
//!
//! What is written so proves nothing before its digest does: a staged file gets its name only after every part of it was
//! right, and what an interrupted restore left is hashed again.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use stepvault_core::Result;
use stepvault_core::digest::{Sha256Digest, Sha256Hasher};
use stepvault_local::source::SourceFile;
use stepvault_local::staging::StagedFile;
use stepvault_remote::payload::BLOCK_BYTES;

use super::staged_file::FileRestore;

/// Whether a part that has come is what was saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is not.
    Wrong,
    /// It is.
    Right {
        /// Whether its file is whole and durable now.
        file_is_done: bool,
    },
}

/// A part of which some bytes have come.
#[derive(Debug)]
pub(super) struct Arrival {
    file: Arc<FileRestore>,
    staged: Option<Arc<StagedFile>>,
    hasher: Sha256Hasher,
    missing: Range<u64>,
    expected: Sha256Digest,
}

impl Arrival {
    /// Nothing has come yet of part `index`.
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

    /// What has not come yet.
    pub(super) fn missing(&self) -> Range<u64> {
        self.missing.clone()
    }

    /// Takes the next bytes, no more than are missing.
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

    /// The same, one piece after another; with the last byte, the verdict.
    pub(super) fn take_all(mut self, pieces: &[Bytes]) -> Result<Progress> {
        pieces.iter().try_for_each(|piece| self.take(piece))?;
        if self.missing.is_empty() {
            self.judge().map(Progress::Whole)
        } else {
            Ok(Progress::Partial(self))
        }
    }

    /// Takes what is missing from a file of the vault: the outer result is the staged file's, the inner one the source's.
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

    /// Reads what an interrupted restore left of the part.
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

    /// Whether what came is right; called once nothing is missing.
    pub(super) fn judge(self) -> Result<Verdict> {
        if self.hasher.finish() == self.expected {
            let file_is_done = self.file.part_is_right()?;
            Ok(Verdict::Right { file_is_done })
        } else {
            Ok(Verdict::Wrong)
        }
    }
}

/// How far a part has come.
#[derive(Debug)]
pub(super) enum Progress {
    /// Bytes are missing.
    Partial(Arrival),
    /// None is.
    Whole(Verdict),
}

/// How much of a range the next block holds.
fn length_of(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES))
}

//! Streams one file part into its staged file, hashing as it writes while the data is still in the processor's cache.
//!
//! Written data proves nothing before its digest does: a staged file gets its name only after every part of it was
//! verified, and data left by an interrupted restore is hashed again.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use stepvault_core::digest::{ContentDigest, ContentHasher};
use stepvault_core::{Error, Result};
use stepvault_local::source::SourceFile;
use stepvault_local::staging::StagedFile;
use stepvault_remote::payload::BLOCK_BYTES;

use super::file::FileRestore;

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
    hasher: ContentHasher,
    missing: Range<u64>,
    expected: ContentDigest,
}

impl PartWriter {
    /// Starts part `index` with no bytes written.
    pub(super) fn new(file: &Arc<FileRestore>, index: u32) -> Result<Self> {
        let (missing, expected) = file.part(index)?;
        Ok(Self {
            file: Arc::clone(file),
            staged: None,
            hasher: ContentHasher::new(expected.algorithm()),
            missing,
            expected,
        })
    }

    /// Returns the range that is not written yet.
    pub(super) fn missing(&self) -> Range<u64> {
        self.missing.clone()
    }

    /// Writes the next bytes, no more than are missing.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let staged =
            if let Some(staged) = &self.staged { staged } else { self.staged.insert(self.file.open()?) };
        self.hasher.update(bytes);
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
            self.hasher.update(&block[..length]);
            self.missing.start += length as u64;
        }
        self.verify()
    }

    /// Compares the digest, once nothing is missing.
    pub(super) fn verify(self) -> Result<PartOutcome> {
        if self.hasher.finish() != self.expected {
            return Ok(PartOutcome::Wrong);
        }
        let file_is_done = self.file.count_valid_part()?;
        Ok(PartOutcome::Valid { file_is_done })
    }
}

/// Returns how much of a range the next block covers.
fn block_length(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).map_or(BLOCK_BYTES, |length| length.min(BLOCK_BYTES))
}

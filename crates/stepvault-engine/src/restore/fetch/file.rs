//! A file being restored: opened for its first part and finished with its last.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stepvault_core::digest::ContentDigest;
use stepvault_core::manifest::FileEntry;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::staging::{StagedFile, Staging};

/// One file of a restore; its parts arrive in any order. Methods that access the disk may block.
#[derive(Debug)]
pub(super) struct FileRestore {
    pub(super) entry: FileEntry,
    staging: Arc<Staging>,
    staged: Mutex<Option<Arc<StagedFile>>>,
    remaining: AtomicU32,
}

impl FileRestore {
    /// Creates the state of a file none of whose `part_count` parts exist, unless an interrupted restore left some.
    pub(super) fn new(entry: FileEntry, part_count: u32, staging: &Arc<Staging>) -> Self {
        Self {
            entry,
            staging: Arc::clone(staging),
            staged: Mutex::default(),
            remaining: AtomicU32::new(part_count),
        }
    }

    /// Returns the range of part `index` in the file, and its digest.
    pub(super) fn part(&self, index: u32) -> Result<(Range<u64>, ContentDigest)> {
        let digest =
            self.entry.parts_content.get(index as usize).ok_or_else(|| {
                Error::new(ErrorKind::Damaged, "a part without a digest").on(&self.entry.path)
            })?;
        Ok((self.entry.parts()?.range(index), *digest))
    }

    /// Whether an interrupted restore may have left some of its data.
    pub(super) fn may_be_present(&self) -> bool {
        self.staging.resumes()
    }

    /// Returns the staged file, opened once for all parts.
    pub(super) fn open(&self) -> Result<Arc<StagedFile>> {
        let mut staged = self.staged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(staged) = staged.as_ref() {
            return Ok(Arc::clone(staged));
        }
        let opened = self.staging.file(&self.entry.path, self.entry.size_bytes)?;
        let opened = if self.entry.hole_bytes > 0 { opened.with_holes() } else { opened };
        Ok(Arc::clone(staged.insert(Arc::new(opened))))
    }

    /// Counts a valid part; makes the file durable after the last. Returns whether it was the last.
    pub(super) fn count_valid_part(&self) -> Result<bool> {
        let is_last = self.remaining.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            self.open()?.finish(self.entry.mode, self.entry.mtime)?;
        }
        Ok(is_last)
    }
}

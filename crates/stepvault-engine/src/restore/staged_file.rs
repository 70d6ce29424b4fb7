//! A file on its way back: opened when its first part comes, and finished with its last.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stepvault_core::digest::Sha256Digest;
use stepvault_core::manifest::FileEntry;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::staging::{StagedFile, Staging};

/// One file of a restore; its parts come in any order. Everything that touches the disk may block.
#[derive(Debug)]
pub(super) struct FileRestore {
    pub(super) entry: FileEntry,
    staging: Arc<Staging>,
    staged: Mutex<Option<Arc<StagedFile>>>,
    remaining: AtomicU32,
}

impl FileRestore {
    /// Nothing of it is there yet, unless an interrupted restore left something.
    ///
    /// # Errors
    /// `Damaged` when the entry's numbers make no parts.
    pub(super) fn new(entry: &FileEntry, staging: &Arc<Staging>) -> Result<Self> {
        Ok(Self {
            entry: entry.clone(),
            staging: Arc::clone(staging),
            staged: Mutex::default(),
            remaining: AtomicU32::new(entry.parts()?.count()),
        })
    }

    /// Where part `index` stands in the file, and its digest.
    pub(super) fn part(&self, index: u32) -> Result<(Range<u64>, Sha256Digest)> {
        let digest =
            self.entry.parts_sha256.get(index as usize).ok_or_else(|| {
                Error::new(ErrorKind::Damaged, "a part without a digest").on(&self.entry.path)
            })?;
        Ok((self.entry.parts()?.range(index), *digest))
    }

    /// Whether an interrupted restore may have left anything of it.
    pub(super) fn may_be_present(&self) -> bool {
        self.staging.resumes()
    }

    /// The file in staging, opened once for all parts.
    pub(super) fn open(&self) -> Result<Arc<StagedFile>> {
        let mut staged = self.staged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(staged) = staged.as_ref() {
            return Ok(Arc::clone(staged));
        }
        let opened = Arc::new(self.staging.file(&self.entry.path, self.entry.size_bytes)?);
        Ok(Arc::clone(staged.insert(opened)))
    }

    /// One more part is right; the last one makes the file durable. Whether it was the last.
    pub(super) fn part_is_right(&self) -> Result<bool> {
        let is_last = self.remaining.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            self.open()?.finish(self.entry.mode, self.entry.mtime)?;
        }
        Ok(is_last)
    }
}

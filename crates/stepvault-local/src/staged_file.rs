//! One file of a restore in progress.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Mode;
use rustix::io::Errno;
use stepvault_core::manifest::MODE_MASK;
use stepvault_core::path::RelativePath;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};

use crate::errors::{self, IoAt as _};
use crate::holes;
use crate::stat::{Facts, times};

const WHAT: &str = "cannot restore the file";

/// The finished files and links of a restore: for each path its inode, or `None` until it is finished.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<BTreeMap<RelativePath, Option<u64>>>);

impl Progress {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<RelativePath, Option<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file of a restore in progress. `&self` may be used from several threads at once.
#[derive(Debug)]
pub struct StagedFile {
    pub(crate) file: File,
    /// Path for messages.
    pub(crate) place: PathBuf,
    pub(crate) path: RelativePath,
    pub(crate) size_bytes: u64,
    pub(crate) progress: Arc<Progress>,
    /// Whether blocks of zeros become holes.
    pub(crate) keeps_holes: bool,
    /// Held to write: the kernel lets one writer into a file at a time, and the others would spin at its lock.
    pub(crate) turn: Mutex<()>,
}

impl StagedFile {
    /// Writes blocks of zeros as holes.
    #[must_use]
    pub fn with_holes(self) -> Self {
        Self { keeps_holes: true, ..self }
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// `Failed` when the bytes would exceed the size that the file was opened for.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= self.size_bytes);
        if end.is_none() {
            return Err(Error::at(ErrorKind::Failed, WHAT, &self.place).because(format!(
                "{} bytes at {offset} reach past its {} bytes",
                bytes.len(),
                self.size_bytes
            )));
        }
        let fault = |error: std::io::Error| errors::io(WHAT, &self.place, error);
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.keeps_holes {
            return self.file.write_all_at(bytes, offset).map_err(fault);
        }
        for (piece, is_left_out) in holes::pieces(offset, bytes, self.size_bytes) {
            let at = offset + piece.start as u64;
            let is_done = is_left_out
                && holes::punch(&self.file, at, piece.len() as u64).map_err(|error| fault(error.into()))?;
            if !is_done {
                self.file.write_all_at(&bytes[piece], at).map_err(fault)?;
            }
        }
        Ok(())
    }

    /// Fills `buffer` from `offset`. Returns `false` when the file ends before that.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        match self.file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(errors::io(WHAT, &self.place, error)),
        }
    }

    /// Sets mode and time and makes the file durable.
    ///
    /// # Errors
    /// `Failed` when the file does not have the size it was opened for.
    pub fn finish(&self, mode: u32, mtime: Timestamp) -> Result<()> {
        let facts = self.facts()?;
        if facts.size_bytes != self.size_bytes {
            let why = format!("it has {} of {} bytes", facts.size_bytes, self.size_bytes);
            return Err(Error::at(ErrorKind::Failed, WHAT, &self.place).because(why));
        }
        let fault = |error: Errno| errors::io(WHAT, &self.place, error);
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode & MODE_MASK)).map_err(fault)?;
        rustix::fs::futimens(&self.file, &times(mtime)).map_err(fault)?;
        rustix::fs::fsync(&self.file).map_err(fault)?;
        self.progress.lock().insert(self.path.clone(), Some(facts.inode));
        Ok(())
    }

    fn facts(&self) -> Result<Facts> {
        let stat = rustix::fs::fstat(&self.file).at(WHAT, &self.place)?;
        Ok(stat.into())
    }
}

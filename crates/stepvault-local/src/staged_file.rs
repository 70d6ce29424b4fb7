//! One file of a restore under way.

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

use crate::errors;
use crate::stat::{Facts, times};

const WHAT: &str = "cannot restore the file";

/// What a restore has put in place so far: for each path the inode of the finished file or link, none before.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<BTreeMap<RelativePath, Option<u64>>>);

impl Progress {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<RelativePath, Option<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file of a restore under way. `&self` may be used from many threads at once.
#[derive(Debug)]
pub struct StagedFile {
    pub(crate) file: File,
    /// For messages.
    pub(crate) place: PathBuf,
    pub(crate) path: RelativePath,
    pub(crate) size_bytes: u64,
    pub(crate) progress: Arc<Progress>,
}

impl StagedFile {
    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// `Failed` when they would reach past the size that the file was opened for.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset
            .checked_add(bytes.len() as u64)
            .filter(|end| *end <= self.size_bytes);
        if end.is_none() {
            return Err(Error::new(ErrorKind::Failed, WHAT)
                .on(self.place.display())
                .because(format!(
                    "{} bytes at {offset} reach past its {} bytes",
                    bytes.len(),
                    self.size_bytes
                )));
        }
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| errors::io(WHAT, &self.place, error))
    }

    /// Fills `buffer` from `offset`; `false` when the file ends before that.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        match self.file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(errors::io(WHAT, &self.place, error)),
        }
    }

    /// Sets mode and time and makes the bytes durable.
    ///
    /// # Errors
    /// `Failed` when the file does not have the size it was opened for.
    pub fn finish(&self, mode: u32, mtime: Timestamp) -> Result<()> {
        let facts = self.facts()?;
        if facts.size_bytes != self.size_bytes {
            let why = format!("it has {} of {} bytes", facts.size_bytes, self.size_bytes);
            return Err(Error::new(ErrorKind::Failed, WHAT)
                .on(self.place.display())
                .because(why));
        }
        let fault = |error: Errno| errors::io(WHAT, &self.place, error);
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode & MODE_MASK)).map_err(fault)?;
        rustix::fs::futimens(&self.file, &times(mtime)).map_err(fault)?;
        rustix::fs::fsync(&self.file).map_err(fault)?;
        self.progress.lock().insert(self.path.clone(), Some(facts.inode));
        Ok(())
    }

    fn facts(&self) -> Result<Facts> {
        let stat = rustix::fs::fstat(&self.file).map_err(|error| errors::io(WHAT, &self.place, error))?;
        Ok(stat.into())
    }
}

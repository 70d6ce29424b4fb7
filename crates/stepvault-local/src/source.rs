//! Reads a sealed file through one descriptor whose identity is checked before and after.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};

use crate::beneath::Facts;
use crate::durable;
use crate::errors::{self, IoAt as _};
use crate::seal::CopiedFile;
use crate::seal_record::SealedFile;

const WHAT: &str = "cannot read the sealed file";

/// An open file of a sealed step. `&self` may be used from several threads at once.
#[derive(Debug)]
pub struct SourceFile {
    file: File,
    path: PathBuf,
    expected: SealedFile,
}

impl SourceFile {
    /// Opens the file and checks that it is still the one that was sealed.
    ///
    /// # Errors
    /// `SourceChanged` when it is not, or no longer exists.
    pub fn open(path: &Path, expected: &SealedFile) -> Result<Self> {
        let source = Self { file: open(path)?, path: path.to_path_buf(), expected: expected.clone() };
        source.check_unchanged()?;
        Ok(source)
    }

    /// Opens a copy whose end may not be written yet. [`check_unchanged`](Self::check_unchanged) holds for it when all
    /// of it is.
    ///
    /// # Errors
    /// `SourceChanged` when another file is at its place, or none.
    pub fn open_unfinished(copy: &CopiedFile) -> Result<Self> {
        let (path, expected) = (copy.place.clone(), copy.file.clone());
        let source = Self { file: open(&path)?, path, expected };
        if source.facts()?.inode != source.expected.inode {
            return Err(changed(&source.path, "it is not the file that is being sealed"));
        }
        Ok(source)
    }

    fn facts(&self) -> Result<Facts> {
        let stat = durable::with_retries(|| Ok(rustix::fs::fstat(&self.file)?)).at(WHAT, &self.path)?;
        Ok(Facts::from(stat))
    }

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// `SourceChanged` when the file ends before the buffer is full.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        match self.file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.ends_early()),
            Err(error) => self.read_anew_at(offset, buffer, &error),
        }
    }

    /// Reads through a new descriptor, because one that a network filesystem has lost does not recover.
    fn read_anew_at(&self, offset: u64, buffer: &mut [u8], error: &io::Error) -> Result<()> {
        tracing::debug!(path = %self.path.display(), %error, "reopening the sealed file");
        let another = Self::open(&self.path, &self.expected)?;
        durable::with_retries(|| another.file.read_exact_at(buffer, offset)).map_err(|error| {
            match error.kind() {
                io::ErrorKind::UnexpectedEof => self.ends_early(),
                _ => errors::io(WHAT, &self.path, error),
            }
        })
    }

    fn ends_early(&self) -> Error {
        changed(&self.path, "it is shorter than when it was sealed")
    }

    /// Checks again after the last byte that the file is still the one that was sealed.
    pub fn check_unchanged(&self) -> Result<()> {
        let facts = self.facts()?;
        if facts.kind != FileType::RegularFile {
            return Err(changed(&self.path, "something else is at that path now"));
        }
        if facts.size_bytes != self.expected.size_bytes {
            let why = format!("it has {} bytes and had {}", facts.size_bytes, self.expected.size_bytes);
            return Err(changed(&self.path, &why));
        }
        if facts.mtime != self.expected.mtime {
            return Err(changed(&self.path, "it was written again after it was sealed"));
        }
        // A copy remains valid when the vault is moved; the trainer's own file is valid only as the same inode.
        if self.expected.method.is_trainers_file() && facts.inode != self.expected.inode {
            return Err(changed(&self.path, "it is not the file that was sealed"));
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    durable::with_retries(|| Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
        .map(File::from)
        .map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => changed(path, "it no longer exists"),
            Some(Errno::LOOP) => changed(path, "it is now a symbolic link"),
            _ => errors::io(WHAT, path, error),
        })
}

fn changed(path: &Path, why: &str) -> Error {
    Error::at(ErrorKind::SourceChanged, WHAT, path).because(why).hint(
        "a trainer that rewrites its files in place changes what the vault links to as well: \
         configure sealing by reflinks or copies, or push with --copy",
    )
}

//! Reading a sealed file through one descriptor whose identity is checked before and after.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};

use crate::errors;
use crate::seal_record::{SealedFile, SnapshotMethod};
use crate::stat::Facts;

const WHAT: &str = "cannot read the sealed file";

/// An open file of a sealed step. `&self` may be used from many threads at once.
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
    /// `SourceChanged` when it is not, or is gone.
    pub fn open(path: &Path, expected: &SealedFile) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let descriptor =
            rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|error| match error {
                Errno::NOENT => changed(path, "it is gone"),
                Errno::LOOP => changed(path, "a symbolic link stands there now"),
                other => errors::io(WHAT, path, other),
            })?;
        let source = Self {
            file: File::from(descriptor),
            path: path.to_path_buf(),
            expected: expected.clone(),
        };
        source.check_unchanged()?;
        Ok(source)
    }

    /// Length in bytes, as sealed.
    pub fn size_bytes(&self) -> u64 {
        self.expected.size_bytes
    }

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// `SourceChanged` when the file ends before the buffer is full.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.file
            .read_exact_at(buffer, offset)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    changed(&self.path, "it ends sooner than when it was sealed")
                }
                _ => errors::io(WHAT, &self.path, error),
            })
    }

    /// Checks once more, after the last byte, that the file is still the one that was sealed.
    pub fn check_unchanged(&self) -> Result<()> {
        let stat = rustix::fs::fstat(&self.file).map_err(|error| errors::io(WHAT, &self.path, error))?;
        let facts = Facts::from(stat);
        if facts.kind != FileType::RegularFile {
            return Err(changed(&self.path, "something else stands there now"));
        }
        if facts.size_bytes != self.expected.size_bytes {
            let why = format!(
                "it has {} bytes and had {}",
                facts.size_bytes, self.expected.size_bytes
            );
            return Err(changed(&self.path, &why));
        }
        if facts.mtime != self.expected.mtime {
            return Err(changed(&self.path, "it was written again after it was sealed"));
        }
        // A copy keeps its worth when the vault is moved elsewhere; a hard link is worth something only as itself.
        if self.expected.method == SnapshotMethod::HardLink && facts.inode != self.expected.inode {
            return Err(changed(&self.path, "it is not the file that was sealed"));
        }
        Ok(())
    }
}

fn changed(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::SourceChanged, WHAT)
        .on(path.display())
        .because(why)
        .hint(
            "a trainer that rewrites its files in place changes the vault's hard links too: \
         let it seal with reflinks or copies",
        )
}

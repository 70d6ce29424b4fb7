//! Small pieces of state that the agent keeps for a run.

use std::path::PathBuf;

use stepvault_core::ids::RunName;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;
use crate::vault::Vault;

/// Longest note in bytes.
pub const MAX_NOTE_BYTES: u64 = 1 << 20;

impl Vault {
    /// Reads a note; `None` when there is none.
    pub fn read_note(&self, run: &RunName, key: &str) -> Result<Option<Vec<u8>>> {
        durable::read_bounded(&self.note_path(run, key)?, MAX_NOTE_BYTES)
    }

    /// Writes a note durably, in place of the one before. `key` is one path component without a leading dot.
    pub fn write_note(&self, run: &RunName, key: &str, bytes: &[u8]) -> Result<()> {
        let path = self.note_path(run, key)?;
        if bytes.len() as u64 > MAX_NOTE_BYTES {
            return Err(Error::new(ErrorKind::Usage, "cannot keep the note")
                .on(path.display())
                .because(format!(
                    "it has {} bytes, more than {MAX_NOTE_BYTES}",
                    bytes.len()
                )));
        }
        durable::create_directories(durable::parent_of(&path))?;
        durable::replace(&path, bytes)
    }

    fn note_path(&self, run: &RunName, key: &str) -> Result<PathBuf> {
        let single = RelativePath::new(key).is_ok_and(|path| path.components().count() == 1);
        if single && !key.starts_with('.') {
            return Ok(self.run_directory(run).join("notes").join(key));
        }
        Err(Error::new(ErrorKind::Usage, "not a note's key")
            .on(format!("{key:?}"))
            .because("it takes one plain name"))
    }
}

//! Small pieces of state that the agent stores for a run.

use std::path::PathBuf;

use stepvault_core::ids::RunName;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;
use crate::vault::{Vault, entries, is_temporary};

/// Maximum length of a note in bytes.
pub const MAX_NOTE_BYTES: u64 = 1 << 20;

impl Vault {
    /// Reads a note. Returns `None` when it does not exist.
    pub fn read_note(&self, run: &RunName, key: &str) -> Result<Option<Vec<u8>>> {
        durable::read_bounded(&self.note_path(run, key)?, MAX_NOTE_BYTES)
    }

    /// Writes a note durably and replaces the previous one. `key` is one path component without a leading dot.
    pub fn write_note(&self, run: &RunName, key: &str, bytes: &[u8]) -> Result<()> {
        let path = self.note_path(run, key)?;
        if bytes.len() as u64 > MAX_NOTE_BYTES {
            return Err(Error::at(ErrorKind::Usage, "cannot store the note", &path)
                .because(format!("it has {} bytes, more than {MAX_NOTE_BYTES}", bytes.len())));
        }
        self.create_directories(durable::parent_of(&path))?;
        durable::replace(&path, bytes)
    }

    /// Makes a note durable that was found: the process that wrote it may have been killed before its name was on disk.
    pub fn sync_note(&self, run: &RunName, key: &str) -> Result<()> {
        durable::fsync_name_found(&self.note_path(run, key)?)
    }

    /// Returns the keys of a run's notes, sorted.
    pub fn note_keys(&self, run: &RunName) -> Result<Vec<String>> {
        let paths = entries(&self.run_directory(run).join("notes"))?.into_iter();
        Ok(paths
            .filter(|path| !is_temporary(path))
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect())
    }

    /// Removes a note. Returns `false` when it did not exist.
    pub fn remove_note(&self, run: &RunName, key: &str) -> Result<bool> {
        durable::remove_file(&self.note_path(run, key)?)
    }

    fn note_path(&self, run: &RunName, key: &str) -> Result<PathBuf> {
        let single = RelativePath::new(key).is_ok_and(|path| path.components().count() == 1);
        if single && !key.starts_with('.') {
            return Ok(self.run_directory(run).join("notes").join(key));
        }
        Err(Error::new(ErrorKind::Usage, "invalid note key")
            .on(format!("{key:?}"))
            .because("use a single plain name"))
    }
}

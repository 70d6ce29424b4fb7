//! Small pieces of state that the agent stores for a run.

use std::path::PathBuf;

use stepvault_core::codec::{FORMAT, encode};
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::path::RelativePath;
use stepvault_core::records::Pin;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;
use crate::sealed::read_record;
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

// Pins of the local tier: steps that retention must keep.

impl Vault {
    /// Pins a step, whether or not it is sealed here.
    pub fn pin(&self, run: &RunName, id: StepId, note: &str) -> Result<()> {
        let path = self.pin_path(run, id);
        self.create_directories(durable::parent_of(&path))?;
        durable::replace(
            &path,
            &encode(&Pin { format: FORMAT, run: run.clone(), id, note: note.to_owned() })?,
        )
    }

    /// Removes a pin. Returns `false` when it did not exist.
    pub fn unpin(&self, run: &RunName, id: StepId) -> Result<bool> {
        durable::remove_file(&self.pin_path(run, id))
    }

    /// Returns all pins of a run, sorted by step. An unreadable pin is an error: a caller that deletes steps must not
    /// continue.
    pub fn pins(&self, run: &RunName) -> Result<Vec<Pin>> {
        let mut pins = Vec::new();
        for path in
            entries(&self.run_directory(run).join("pins"))?.into_iter().filter(|path| !is_temporary(path))
        {
            // Unpinned meanwhile.
            let Some(pin) = read_record::<Pin>(&path)? else {
                continue;
            };
            if pin.run != *run || self.pin_path(run, pin.id) != path {
                return Err(Error::at(ErrorKind::Damaged, "cannot read the pin", &path)
                    .because(format!("it belongs to {}, {}", pin.run, pin.id))
                    .hint("pin the step again and delete that file"));
            }
            pins.push(pin);
        }
        pins.sort_unstable_by_key(|pin| pin.id);
        Ok(pins)
    }

    fn pin_path(&self, run: &RunName, id: StepId) -> PathBuf {
        self.run_directory(run).join("pins").join(format!("{}.json", id.label()))
    }
}

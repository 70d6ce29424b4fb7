//! Small pieces of state that the agent stores for a run, and records with a checksum of their own.

use std::io::{self, BufWriter, IntoInnerError};
use std::path::{Path, PathBuf};

use stepvault_core::codec::{FORMAT, MAX_RECORD_BYTES, Record, decode, encode, write_to};
use stepvault_core::digest::Sha256Hasher;
use stepvault_core::records::Pin;
use stepvault_core::{Error, ErrorKind, RelativePath, Result, RunName, Sha256Digest, StepId};

use crate::durable::{self, CreateOutcome};
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

    // Pins of the local tier: steps that retention must keep.

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

/// Length of the second line, with the end of the first: 64 hexadecimal digits in quotes.
const DIGEST_BYTES: usize = 68;
/// Maximum length of such a file.
pub(crate) const MAX_BYTES: u64 = MAX_RECORD_BYTES + DIGEST_BYTES as u64;

/// Writes a record with its digest to a new file, unless the name is taken. A long record is not held as a whole.
///
/// On a store a commit holds the digest of every part manifest. In the vault, without a checksum, a flipped bit could
/// change the mode of a file, the target of a link or the name of a step unnoticed.
pub(crate) fn create<R: Record>(path: &Path, record: &R) -> Result<CreateOutcome> {
    durable::create_new_with(path, |file| write_with_digest(record, file))
}

/// Like [`create`], and replaces an existing file.
pub(crate) fn replace<R: Record>(path: &Path, record: &R) -> Result<()> {
    durable::replace_with(path, |file| write_with_digest(record, file))
}

fn write_with_digest<R: Record>(record: &R, file: &mut dyn io::Write) -> io::Result<()> {
    let mut buffered = BufWriter::new(Hashed { file, hasher: Sha256Hasher::default() });
    write_to(record, &mut buffered)?;
    let Hashed { file, hasher } = buffered.into_inner().map_err(IntoInnerError::into_error)?;
    file.write_all(digest_line(hasher.finish()).as_bytes())
}

/// Hashes what is written to a file.
struct Hashed<'a> {
    file: &'a mut dyn io::Write,
    hasher: Sha256Hasher,
}

impl io::Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the content of such a file from a record's canonical bytes.
pub fn with_digest(mut record: Vec<u8>) -> Vec<u8> {
    let end = digest_line(Sha256Digest::of(&record));
    record.extend_from_slice(end.as_bytes());
    record
}

fn digest_line(digest: Sha256Digest) -> String {
    format!("\n\"{digest}\"\n")
}

/// Reads such a record. Returns `None` when it does not exist.
pub(crate) fn read<R: Record>(path: &Path) -> Result<Option<R>> {
    let Some(bytes) = durable::read_bounded(path, MAX_BYTES)? else {
        return Ok(None);
    };
    let record = bytes
        .len()
        .checked_sub(DIGEST_BYTES)
        .map(|end| bytes.split_at(end))
        .filter(|(record, end)| digest_line(Sha256Digest::of(record)).as_bytes() == *end);
    let Some((record, _)) = record else {
        return Err(Error::at(ErrorKind::Damaged, format!("cannot read the {}", R::WHAT), path)
            .because("its digest does not match its content"));
    };
    decode(record, &path.display().to_string()).map(Some)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use std::fs;

    use stepvault_core::codec::{FORMAT, encode};
    use stepvault_core::records::Lease;

    use super::*;

    #[test]
    fn a_digest_takes_what_is_calculated_for_it() {
        assert_eq!(MAX_BYTES - MAX_RECORD_BYTES, with_digest(Vec::new()).len() as u64);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("record.json");
        assert!(read::<Lease>(&path).unwrap().is_none());
        let lease = Lease {
            format: FORMAT,
            holder: "me".to_owned(),
            purpose: "prune".to_owned(),
            time_to_live_seconds: 120,
        };
        let whole = with_digest(encode(&lease).unwrap());
        assert_eq!(whole.len() - DIGEST_BYTES, encode(&lease).unwrap().len());
        assert_eq!(create(&path, &lease).unwrap(), CreateOutcome::Written);
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert_eq!(read::<Lease>(&path).unwrap().unwrap(), lease);
        let is_damaged = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let error = read::<Lease>(&path).unwrap_err();
            error.kind() == ErrorKind::Damaged
        };
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert!(is_damaged(&flipped), "bit {bit} of byte {at}");
            }
            assert!(is_damaged(&whole[..at]), "cut at {at}");
        }
    }
}

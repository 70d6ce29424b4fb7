//! The format that `torch.save` writes since version 1.6, and TorchScript: a zip archive of one folder, with a pickle
//! that names the storages and a record for each storage.
//!
//! The rules are those of `torch/serialization.py` and `caffe2/serialize/inline_container.cc`. Tensors are never
//! read: only the headers and offsets of their records are. torch aligns storages, uses 64-bit fields and writes
//! checksums after the data, but the check does not require this, because an archive that another tool has rewritten
//! loads as well.
//!
//! # Blind spots
//! - The bytes of tensors: only a digest detects a change. The checksums that torch writes over them are not computed
//!   here.
//! - With `torch.serialization.set_crc32_options(False)`, a flipped bit in `data.pkl` that leaves a valid pickle.
//! - Fields that torch does not read either: times, versions and attributes of records, and the padding before their
//!   bytes.

use std::collections::HashMap;

use super::text::shown;
use super::torch_storage::references;
use super::zip::{self, Record};
use crate::pickle::{self, Keep, Pickle};
use crate::soundness::{Fault, broken, broken_at, read_piece, unknown};
use crate::tree::ReadAt;

/// The longest `data.pkl` whose checksum is computed, in bytes. A longer one holds arrays inside the pickle.
pub const MAX_CHECKSUMMED_PICKLE_BYTES: u64 = 64 << 20;
/// The longest of the other records whose checksum is computed, in bytes.
const MAX_SMALL_RECORD_BYTES: u64 = 4096;
/// The number of bytes of a record that are read at a time for its checksum.
const CHECKSUM_PIECE_BYTES: u64 = 64 * 1024;
/// The pickles of an archive, and the folder of each one's storages. TorchScript keeps the constants of its code in a
/// separate pickle.
const PICKLES: [(&str, &str); 2] = [("data.pkl", "data/"), ("constants.pkl", "constants/")];

/// Checks a file that begins with `PK`.
///
/// # Errors
/// [`Fault::Broken`] if it is not a whole archive, or a storage that the pickle names is missing or has another size;
/// [`Fault::Unknown`] if the pickle is compressed or too large to read.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    let archive = Archive::open(source)?;
    archive.check_small_records()?;
    archive.check_version()?;
    archive.check_byte_order()?;
    for (name, storages) in PICKLES {
        if let Some(record) = archive.records.get(name) {
            let pickle = archive.read_pickle(name, record)?;
            archive.check_storages(&pickle, name, storages)?;
        }
    }
    Ok(())
}

/// Reads the object in an archive, as data.
///
/// # Errors
/// As [`check`].
pub fn read_object(source: &dyn ReadAt) -> Result<Pickle, Fault> {
    let archive = Archive::open(source)?;
    let (name, _) = PICKLES[0];
    match archive.records.get(name) {
        Some(record) => archive.read_pickle(name, record),
        None => Err(no_pickle()),
    }
}

fn no_pickle() -> Fault {
    broken!("the archive has no data.pkl, which torch.save writes first, in the folder of its first record")
}

/// An archive with its records by name, inside its folder.
struct Archive<'a> {
    source: &'a dyn ReadAt,
    records: HashMap<String, Record>,
}

impl<'a> Archive<'a> {
    fn open(source: &'a dyn ReadAt) -> Result<Self, Fault> {
        let listed = zip::read(source)?;
        let folder = listed
            .first()
            .and_then(|record| record.name.split_once('/'))
            .map(|(folder, _)| format!("{folder}/"))
            .ok_or_else(no_pickle)?;
        let mut records = HashMap::new();
        for record in listed {
            // Records outside the folder come from a rewriting tool; torch does not see them.
            let Some(name) = record.name.strip_prefix(&folder).map(str::to_owned) else {
                continue;
            };
            if let Some(other) = records.insert(name, record) {
                let name = shown(&other.name);
                return Err(broken_at!(other.header_offset, "the archive holds {name} twice"));
            }
        }
        if !records.contains_key(PICKLES[0].0) {
            // An archive of torch.package holds Python modules, and pickles under names of their own.
            return if records.contains_key(".data/extern_modules") {
                Err(unknown!("the archive was written by torch.package, whose pickles are not checked"))
            } else {
                Err(no_pickle())
            };
        }
        Ok(Self { source, records })
    }

    /// Verifies the checksums of the records that describe the others.
    fn check_small_records(&self) -> Result<(), Fault> {
        for (name, record) in &self.records {
            let limit_bytes = if PICKLES.iter().any(|(pickle, _)| name == pickle) {
                MAX_CHECKSUMMED_PICKLE_BYTES
            } else if PICKLES.iter().any(|(_, storages)| name.starts_with(storages)) {
                continue;
            } else {
                MAX_SMALL_RECORD_BYTES
            };
            // torch writes 0 for every record when checksums are turned off.
            if record.is_stored() && record.crc32 != 0 && record.size_bytes <= limit_bytes {
                self.check_checksum(name, record)?;
            }
        }
        Ok(())
    }

    fn check_checksum(&self, name: &str, record: &Record) -> Result<(), Fault> {
        let mut checksum = rawzip::Crc32::new();
        let end = record.data_offset.saturating_add(record.size_bytes);
        let mut offset = record.data_offset;
        while offset < end {
            let length = (end - offset).min(CHECKSUM_PIECE_BYTES);
            checksum.update(&read_piece(self.source, offset, length, CHECKSUM_PIECE_BYTES, name)?);
            offset += length;
        }
        if checksum.checksum() != record.crc32 {
            return Err(broken_at!(record.data_offset, "{} does not match its checksum", shown(name)));
        }
        Ok(())
    }

    /// Checks that `version`, without which torch does not open an archive, is a number.
    fn check_version(&self) -> Result<(), Fault> {
        let record = self.records.get("version").or_else(|| self.records.get(".data/version"));
        let Some(record) = record else {
            return Err(broken!(
                "the archive has no version record, which torch requires: the save was cut off"
            ));
        };
        let Some(text) = self.small_text(record)? else {
            return Ok(());
        };
        let digits = text.trim_ascii();
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(broken_at!(record.data_offset, "the archive's version record is not a number"));
        }
        Ok(())
    }

    fn check_byte_order(&self) -> Result<(), Fault> {
        let Some(record) = self.records.get("byteorder") else {
            return Ok(());
        };
        match self.small_text(record)?.as_deref() {
            None | Some(b"little" | b"big") => Ok(()),
            Some(_) => Err(broken_at!(
                record.data_offset,
                "the archive's byteorder record is neither little nor big"
            )),
        }
    }

    /// Returns the bytes of a small record, or `None` when it is compressed.
    fn small_text(&self, record: &Record) -> Result<Option<Vec<u8>>, Fault> {
        if !record.is_stored() {
            return Ok(None);
        }
        let (offset, length) = (record.data_offset, record.size_bytes);
        read_piece(self.source, offset, length, MAX_SMALL_RECORD_BYTES, &record.name).map(Some)
    }

    fn read_pickle(&self, name: &str, record: &Record) -> Result<Pickle, Fault> {
        if !record.is_stored() {
            return Err(unknown!("{name} is compressed, which torch.save never does"));
        }
        let start = record.data_offset;
        let range = start..start.saturating_add(record.size_bytes);
        pickle::read_whole(self.source, range, Keep::Values).map_err(|fault| fault.prefixed(name))
    }

    /// Checks that every storage that a pickle names exists and has the stated length. Neither the zip's own list nor
    /// its checksums show this: torch closes the archive properly even when saving fails midway.
    fn check_storages(&self, pickle: &Pickle, pickle_name: &str, storages: &str) -> Result<(), Fault> {
        for reference in references(pickle, pickle_name) {
            let reference = reference?;
            let size_bytes = reference.size_bytes(pickle_name)?;
            let key = shown(reference.key);
            let named = match size_bytes {
                Some(size_bytes) => format!("{pickle_name} names storage {key} of {size_bytes} bytes"),
                None => format!("{pickle_name} names storage {key}"),
            };
            let Some(record) = self.records.get(&format!("{storages}{}", reference.key)) else {
                return Err(broken!("{named}, and the archive has no {storages}{key}: the save was cut off"));
            };
            if size_bytes.is_some_and(|size_bytes| size_bytes != record.size_bytes) {
                return Err(broken_at!(
                    record.data_offset,
                    "{named}, but {storages}{key} holds {}",
                    record.size_bytes
                ));
            }
        }
        Ok(())
    }
}

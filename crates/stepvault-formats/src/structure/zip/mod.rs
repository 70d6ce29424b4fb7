//! The list of records at the end of a zip archive, compared with the archive itself.
//!
//! The records are read with `rawzip`, which never allocates by what a header states but accepts errors that other
//! readers accept. This check requires a consistent archive: the list ends where the end records begin, each record's
//! own header agrees with the list, and no record overlaps another record or the list.
//!
//! Bytes between the records are not checked, and neither are times, versions, attributes and comments, because tools
//! that rewrite archives differ in them.

mod record;

use std::io;

use rawzip::{ErrorKind, ReaderAt, ZipArchive, ZipLocator};
pub use record::Record;

use super::cursor::number;
use crate::soundness::{Fault, broken_at, read_piece, unknown};
use crate::tree::ReadAt;

/// The longest list of records that is read, in bytes: about a million records.
pub const MAX_DIRECTORY_BYTES: u64 = 1 << 26;
/// The size of the end record with the longest possible comment, in bytes.
const MAX_END_BYTES: u64 = 22 + 65_535;
/// Bytes of a record in the list, without its name, extra and comment.
const LISTED_BYTES: u64 = 46;
/// The first bytes of an archive: of a record, or of the end record of an archive without records.
pub(super) const FIRST_BYTES: [[u8; 4]; 2] = [*b"PK\x03\x04", *b"PK\x05\x06"];

/// Reads the list of records of an archive that fills a file, and checks every record's offset and header, in the
/// order of the list.
///
/// # Errors
/// [`Fault::Broken`] if the archive contradicts itself, [`Fault::Unknown`] if its list is longer than
/// [`MAX_DIRECTORY_BYTES`].
pub fn read(source: &dyn ReadAt) -> Result<Vec<Record>, Fault> {
    let size_bytes = source.size_bytes();
    let mut first = [0; 4];
    if size_bytes >= 4 {
        source.read_exact_at(0, &mut first)?;
    }
    if !FIRST_BYTES.contains(&first) {
        return Err(broken_at!(0, "the file does not begin with a record of a ZIP archive"));
    }
    let adapter = Adapter { source, size_bytes };
    // Space for the end records; it grows only if there is a comment.
    let mut buffer = vec![0; 1024];
    let archive = ZipLocator::new()
        .max_search_space(MAX_END_BYTES)
        .locate_in_reader(adapter, &mut buffer, size_bytes)
        .map_err(|(_, error)| zip_fault(error, CUT_OFF))?;
    let directory = check(source, &archive)?;
    let list_bytes = directory.end.saturating_sub(directory.start);
    if list_bytes > MAX_DIRECTORY_BYTES {
        return Err(unknown!(
            "the archive's list of records is {list_bytes} bytes long, more than the limit of {MAX_DIRECTORY_BYTES}"
        ));
    }
    let longest = u64::try_from(rawzip::MAX_CENTRAL_DIRECTORY_RECORD_SIZE).unwrap_or(u64::MAX);
    // At most 192 KiB.
    buffer.resize(usize::try_from(list_bytes.clamp(LISTED_BYTES, longest)).unwrap_or_default(), 0);
    let mut records = Vec::new();
    let mut places = Vec::new();
    let mut entries = archive.entries(&mut buffer);
    let mut expected_offset = directory.start;
    loop {
        let damaged = format!("the archive's list of records is damaged at record {}", records.len());
        let Some(entry) = entries.next_entry().map_err(|error| zip_fault(error, &damaged))? else {
            break;
        };
        if entry.central_directory_offset() != expected_offset {
            return Err(Fault::at(expected_offset, damaged));
        }
        let variable_bytes = entry.file_path().as_ref().len()
            + entry.extra_fields().remaining_bytes().len()
            + entry.comment().as_bytes().len();
        expected_offset = expected_offset.saturating_add(LISTED_BYTES).saturating_add(variable_bytes as u64);
        places.push((records.len(), entry.wayfinder()));
        records.push(Record::listed(&entry)?);
    }
    if expected_offset != directory.end || records.len() as u64 != directory.records {
        return Err(broken_at!(
            expected_offset,
            "the archive's list holds {} records, but its end record states {}",
            records.len(),
            directory.records
        ));
    }
    // Sort by offset, so that comparing neighbors detects an overlap.
    places.sort_by_key(|(index, _)| records.get(*index).map(|record| record.header_offset));
    let mut limit = directory.start;
    for (index, wayfinder) in places.into_iter().rev() {
        let Some(record) = records.get_mut(index) else {
            continue;
        };
        record.check_place(source, &archive, wayfinder, limit)?;
        limit = record.header_offset;
    }
    Ok(records)
}

/// Lets `rawzip` read at offsets.
struct Adapter<'a> {
    source: &'a dyn ReadAt,
    size_bytes: u64,
}

impl ReaderAt for Adapter<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left_bytes = self.size_bytes.saturating_sub(offset);
        let length = usize::try_from(left_bytes).unwrap_or(usize::MAX).min(buffer.len());
        let Some(part) = buffer.get_mut(..length) else {
            return Ok(0);
        };
        self.source.read_exact_at(offset, part)?;
        Ok(length)
    }
}

/// Turns an error of the reader into a fault of the archive, except a failed read.
fn zip_fault(error: rawzip::Error, broken: &str) -> Fault {
    match error.into_kind() {
        ErrorKind::IO(error) if error.kind() != io::ErrorKind::UnexpectedEof => Fault::Read(error),
        _ => Fault::broken(broken),
    }
}

/// The reason why an archive without an end record is broken.
const CUT_OFF: &str = "the archive has no end record in its last bytes: the save was cut off";

const END_BYTES: u64 = 22;
const LOCATOR_BYTES: u64 = 20;
const LONG_END_BYTES: u64 = 56;
/// The part of the ZIP64 end record that its own length does not count.
const LONG_END_UNCOUNTED_BYTES: u64 = 12;

/// The location of the list of records.
struct Directory {
    start: u64,
    end: u64,
    records: u64,
}

/// Reads the end records that the reader has found, and compares them with the reader's result and with each other.
fn check(source: &dyn ReadAt, archive: &ZipArchive<Adapter<'_>>) -> Result<Directory, Fault> {
    let end_offset = archive.eocd_offset();
    let left_bytes = source.size_bytes().saturating_sub(archive.end_offset());
    if left_bytes > 0 {
        return Err(broken_at!(
            archive.end_offset(),
            "{left_bytes} unexpected bytes follow the end of the archive"
        ));
    }
    let record = read_piece(source, end_offset, END_BYTES, END_BYTES, "the archive's end record")?;
    let short = End {
        disks: [number(&record, 4, 2), number(&record, 6, 2)],
        records: [number(&record, 8, 2), number(&record, 10, 2)],
        length: number(&record, 12, 4),
        start: number(&record, 16, 4),
    };
    let (end, directory_end) = match long_end(source, end_offset)? {
        None => (short, end_offset),
        Some((long, offset)) => {
            let agrees = |short: u64, long: u64, most: u64| short == long || short == most;
            let both = agrees(short.start, long.start, 0xffff_ffff)
                && agrees(short.length, long.length, 0xffff_ffff)
                && agrees(short.records[0], long.records[0], 0xffff)
                && agrees(short.records[1], long.records[1], 0xffff)
                && short.disks.iter().all(|disk| [0, 0xffff].contains(disk));
            if !both {
                return Err(broken_at!(end_offset, "the archive's two end records contradict each other"));
            }
            (long, offset)
        }
    };
    if end.disks != [0, 0] || end.records[0] != end.records[1] {
        return Err(broken_at!(end_offset, "the archive's end record declares further volumes"));
    }
    let adds_up = end.start.checked_add(end.length) == Some(directory_end)
        && archive.directory_offset() == end.start
        && archive.entries_hint() == end.records[1];
    if !adds_up {
        return Err(broken_at!(
            end_offset,
            "the archive's end record places its list of records in the {} bytes from byte {}, but the list \
             should end at byte {directory_end}",
            end.length,
            end.start
        ));
    }
    Ok(Directory { start: end.start, end: directory_end, records: end.records[1] })
}

/// The contents of either end record.
struct End {
    disks: [u64; 2],
    records: [u64; 2],
    length: u64,
    start: u64,
}

/// Returns the ZIP64 end record and its offset, if the archive has one. torch always writes it; other tools only for
/// large archives.
fn long_end(source: &dyn ReadAt, end_offset: u64) -> Result<Option<(End, u64)>, Fault> {
    let Some(locator_offset) = end_offset.checked_sub(LOCATOR_BYTES) else {
        return Ok(None);
    };
    let what = "the archive's long end record";
    let locator = read_piece(source, locator_offset, LOCATOR_BYTES, LOCATOR_BYTES, what)?;
    if !locator.starts_with(b"PK\x06\x07") {
        return Ok(None);
    }
    let offset = number(&locator, 8, 8);
    let damaged = || broken_at!(locator_offset, "the archive's long end record is damaged");
    if number(&locator, 4, 4) != 0 || number(&locator, 16, 4) != 1 {
        return Err(damaged());
    }
    let record = read_piece(source, offset, LONG_END_BYTES, LONG_END_BYTES, what)?;
    let length = number(&record, 4, 8).checked_add(LONG_END_UNCOUNTED_BYTES);
    let ends_at_locator = length.and_then(|length| offset.checked_add(length)) == Some(locator_offset);
    if !record.starts_with(b"PK\x06\x06") || !ends_at_locator {
        return Err(damaged());
    }
    let end = End {
        disks: [number(&record, 16, 4), number(&record, 20, 4)],
        records: [number(&record, 24, 8), number(&record, 32, 8)],
        length: number(&record, 40, 8),
        start: number(&record, 48, 8),
    };
    Ok(Some((end, offset)))
}

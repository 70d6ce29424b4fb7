//! The list of records at the end of a zip archive, held against the archive itself.
//!
//! The records are read with `rawzip`, which allocates nothing by what a header says but is made to forgive what
//! other readers forgive. Here the archive must add up: the list ends where the end records begin, each record's own
//! header says what the list says of it, and no record reaches into another or into the list.
//!
//! Nothing between the records is looked at, and neither are times, versions, attributes and comments: tools that
//! rewrite archives differ in them.

mod end;
mod record;

use std::io;

use rawzip::{ErrorKind, ReaderAt, ZipLocator};

use crate::soundness::Fault;
use crate::source::ReadAt;

pub use record::Record;

/// The longest list of records that is read, in bytes: about a million records.
pub const MAX_DIRECTORY_BYTES: u64 = 1 << 26;
/// The end record with the longest comment there can be, in bytes.
const MAX_END_BYTES: u64 = 22 + 65_535;
/// Bytes of a record in the list, without its name, extra and comment.
const LISTED_BYTES: u64 = 46;
/// What an archive with a record in it begins with.
const FIRST_BYTES: [u8; 4] = *b"PK\x03\x04";

/// Reads the list of records of an archive that is the whole of a file and checks every record's place and header,
/// in the order of the list.
///
/// # Errors
/// [`Fault::Broken`] where the archive does not add up, [`Fault::Unknown`] where its list is longer than
/// [`MAX_DIRECTORY_BYTES`].
pub fn read(source: &dyn ReadAt) -> Result<Vec<Record>, Fault> {
    let size_bytes = source.size_bytes();
    let mut first = [0; 4];
    if size_bytes >= 4 {
        source.read_exact_at(0, &mut first)?;
    }
    if first != FIRST_BYTES {
        return Err(Fault::at(
            0,
            "the file does not begin like a zip archive with records in it",
        ));
    }
    let adapter = Adapter { source, size_bytes };
    // Room for the end records, and for a comment only where there is one.
    let mut buffer = vec![0; 1024];
    let archive = ZipLocator::new()
        .max_search_space(MAX_END_BYTES)
        .locate_in_reader(adapter, &mut buffer, size_bytes)
        .map_err(|(_, error)| zip_fault(error, end::CUT_OFF))?;
    let directory = end::check(source, &archive)?;
    let list_bytes = directory.end.saturating_sub(directory.start);
    if list_bytes > MAX_DIRECTORY_BYTES {
        return Err(Fault::Unknown(format!(
            "the archive's list of records is {list_bytes} bytes long, more than the {MAX_DIRECTORY_BYTES} that \
             are read"
        )));
    }
    let longest = u64::try_from(rawzip::MAX_CENTRAL_DIRECTORY_RECORD_SIZE).unwrap_or(u64::MAX);
    // At most 192 KiB.
    buffer.resize(
        usize::try_from(list_bytes.clamp(LISTED_BYTES, longest)).unwrap_or_default(),
        0,
    );
    let mut records = Vec::new();
    let mut places = Vec::new();
    let mut entries = archive.entries(&mut buffer);
    let mut expected_offset = directory.start;
    loop {
        let damaged = format!(
            "the archive's list of records is damaged at record {}",
            records.len()
        );
        let Some(entry) = entries.next_entry().map_err(|error| zip_fault(error, &damaged))? else {
            break;
        };
        if entry.central_directory_offset() != expected_offset {
            return Err(Fault::at(expected_offset, damaged));
        }
        let variable_bytes = entry.file_path().as_ref().len()
            + entry.extra_fields().remaining_bytes().len()
            + entry.comment().as_bytes().len();
        expected_offset = expected_offset
            .saturating_add(LISTED_BYTES)
            .saturating_add(variable_bytes as u64);
        places.push((records.len(), entry.wayfinder()));
        records.push(Record::listed(&entry, &damaged)?);
    }
    if expected_offset != directory.end || records.len() as u64 != directory.records {
        return Err(Fault::at(
            expected_offset,
            format!(
                "the archive's list of records holds {} of them, and its end record says {}",
                records.len(),
                directory.records
            ),
        ));
    }
    // In the order of the file, so that one look at the next tells whether two overlap.
    places.sort_by_key(|(index, _)| records.get(*index).map(Record::header_offset));
    let mut limit = directory.start;
    for (index, wayfinder) in places.into_iter().rev() {
        let Some(record) = records.get_mut(index) else {
            continue;
        };
        record.check_place(source, &archive, wayfinder, limit)?;
        limit = record.header_offset();
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
        let length = usize::try_from(left_bytes)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let Some(part) = buffer.get_mut(..length) else {
            return Ok(0);
        };
        self.source.read_exact_at(offset, part)?;
        Ok(length)
    }
}

/// What an error of the reader says of the archive: only a failed read says nothing of it.
fn zip_fault(error: rawzip::Error, broken: &str) -> Fault {
    match error.into_kind() {
        ErrorKind::IO(error) if error.kind() != io::ErrorKind::UnexpectedEof => Fault::Read(error),
        _ => Fault::broken(broken),
    }
}

/// An unsigned little-endian number of `length` bytes in a header, 0 where the header has none.
fn number(bytes: &[u8], start: usize, length: usize) -> u64 {
    let field = bytes.get(start..start.saturating_add(length)).unwrap_or_default();
    field
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

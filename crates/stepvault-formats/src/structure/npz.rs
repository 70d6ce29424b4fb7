//! `.npz`: a ZIP archive with an `.npy` file for every array.
//!
//! `rawzip` reads the archive's directory. In addition to its checks, every member must lie before the directory
//! without overlapping another member, must have the same name and the same sizes in its own header, and must hold a
//! sound `.npy` file if it is stored without compression.
//!
//! # Blind spots
//!
//! - The CRC-32 of a member is compared between its two headers but not with its bytes, because that would mean
//!   reading every tensor. No change in the elements is detected.
//! - Compressed members (`np.savez_compressed`) are not checked inside.
//! - Fields that readers do not use are not checked either: times, attributes, comments, versions.

use std::io;

use rawzip::{
    CompressionMethod, ErrorKind, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ReaderAt, ZipArchive,
    ZipFileHeaderRecord, ZipLocator,
};

use super::npy;
use super::text::{bytes, counted, shown};
use crate::soundness::Fault;
use crate::source::{ReadAt, Window};

/// The maximum number of members.
pub const MAX_MEMBERS: u64 = 100_000;
/// The maximum distance of an archive's end record from the end of the file: its own 22 bytes and the longest
/// comment.
const END_SEARCH_BYTES: u64 = 22 + 65_535;

/// Checks an `.npz` file, reading the archive's directory and the headers of its members.
///
/// # Errors
/// [`Fault::Broken`] if a rule is violated, [`Fault::Unknown`] if a limit, a pickle or an uncommon member prevents
/// the check.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
    let located = ZipLocator::new().max_search_space(END_SEARCH_BYTES);
    let archive = located
        .locate_in_reader(Archive(source), &mut buffer, source.size_bytes())
        .map_err(|(_, error)| fault_of(error, "the archive's end record"))?;
    if archive.end_offset() != source.size_bytes() {
        let more = bytes(source.size_bytes().saturating_sub(archive.end_offset()));
        return Err(Fault::at(
            archive.end_offset(),
            format!("the file continues for {more} after the archive's end: data was appended"),
        ));
    }
    end_record(source, archive.eocd_offset())?;
    let promised = archive.entries_hint();
    if promised > MAX_MEMBERS {
        return Err(Fault::Unknown(format!(
            "the archive has {promised} members, more than the limit of {MAX_MEMBERS}"
        )));
    }
    let mut local = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
    let mut places = Vec::new();
    let mut unknown = None;
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries
        .next_entry()
        .map_err(|error| fault_of(error, "the archive's directory"))?
    {
        if places.len() as u64 == promised {
            return Err(miscounted(promised, "more"));
        }
        match member(source, &archive, &entry, &mut local, &mut places) {
            // Another member may be broken, which takes precedence.
            Err(Fault::Unknown(why)) => unknown = unknown.or(Some(why)),
            done => done?,
        }
    }
    if places.len() as u64 != promised {
        return Err(miscounted(promised, "fewer"));
    }
    apart(&mut places)?;
    unknown.map_or(Ok(()), |why| Err(Fault::Unknown(why)))
}

/// Checks the end record's own description of the directory, whose errors `rawzip` corrects silently: one disk, and
/// the directory right before the record, or before the two records of ZIP64 (APPNOTE 4.3.14 to 4.3.16).
fn end_record(source: &dyn ReadAt, at: u64) -> Result<(), Fault> {
    const ZIP64_RECORDS_BYTES: u64 = 56 + 20;
    let mut record = [0; 22];
    source.read_exact_at(at, &mut record)?;
    let field = |start, length| {
        let bytes = record.iter().skip(start).take(length);
        bytes
            .rev()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let (size_bytes, offset) = (field(12, 4), field(16, 4));
    let one_disk = field(4, 2) == field(6, 2) && field(8, 2) == field(10, 2);
    let end = size_bytes + offset;
    // With all bits set, the number is in the ZIP64 record.
    let elsewhere = [size_bytes, offset].contains(&u64::from(u32::MAX));
    if one_disk && (elsewhere || end == at || end + ZIP64_RECORDS_BYTES == at) {
        return Ok(());
    }
    Err(Fault::at(
        at,
        "the archive's end record does not agree with where the archive's directory is: it is damaged",
    ))
}

/// The start of a member's header and the end of its bytes.
type Place = (u64, u64);

fn member(
    source: &dyn ReadAt,
    archive: &ZipArchive<Archive<'_>>,
    entry: &ZipFileHeaderRecord<'_>,
    local: &mut [u8],
    places: &mut Vec<Place>,
) -> Result<(), Fault> {
    let name = shown(&String::from_utf8_lossy(entry.file_path().as_bytes()));
    let start = entry.local_header_offset();
    let found = archive
        .get_entry(entry.wayfinder())
        .map_err(|error| fault_of(error, &format!("member {name}")))?;
    let (data_start, data_end) = found.compressed_data_range();
    places.push((start, data_end));
    if data_end > archive.directory_offset() {
        return Err(Fault::at(
            start,
            format!("member {name} overlaps the archive's directory: the archive is damaged"),
        ));
    }
    let own = found
        .local_header(local)
        .map_err(|error| fault_of(error, &format!("member {name}")))?;
    let same_sizes = own.flags().has_data_descriptor()
        || (
            own.crc32(),
            own.compressed_size_hint(),
            own.uncompressed_size_hint(),
        ) == (
            entry.crc32(),
            entry.compressed_size_hint(),
            entry.uncompressed_size_hint(),
        );
    let same = own.file_path().as_bytes() == entry.file_path().as_bytes()
        && own.compression_method() == entry.compression_method()
        && own.flags().has_data_descriptor() == entry.flags().has_data_descriptor();
    if !same || !same_sizes {
        return Err(Fault::at(
            start,
            format!(
                "member {name} is described differently by its own header and by the archive's directory"
            ),
        ));
    }
    if !entry.file_path().as_bytes().ends_with(b".npy") {
        return Err(Fault::Unknown(format!(
            "member {name} is not an array and is not checked"
        )));
    }
    if entry.flags().is_encrypted() {
        return Err(Fault::Unknown(format!("member {name} is encrypted")));
    }
    match entry.compression_method() {
        CompressionMethod::STORE => {
            let size_bytes = data_end - data_start;
            if size_bytes != entry.uncompressed_size_hint() {
                return Err(Fault::at(
                    start,
                    format!("member {name} is stored uncompressed, but has two different sizes"),
                ));
            }
            let window = Window::new(source, data_start, size_bytes)
                .ok_or_else(|| Fault::at(start, format!("member {name} does not lie inside the file")))?;
            npy::check(&window).map_err(|fault| within(fault, &name, data_start))
        }
        CompressionMethod::DEFLATE => Ok(()),
        other => Err(Fault::Unknown(format!(
            "member {name} is compressed by the unknown method {}",
            other.as_u16()
        ))),
    }
}

/// Turns a fault of a member into a fault of the archive.
fn within(fault: Fault, name: &str, start: u64) -> Fault {
    match fault {
        Fault::Broken { offset, why } => Fault::Broken {
            offset: offset.and_then(|offset| offset.checked_add(start)),
            why: format!("member {name}: {why}"),
        },
        Fault::Unknown(why) => Fault::Unknown(format!("member {name}: {why}")),
        Fault::Read(error) => Fault::Read(error),
    }
}

fn apart(places: &mut [Place]) -> Result<(), Fault> {
    places.sort_unstable();
    let overlap = places.array_windows().find(|[one, other]| other.0 < one.1);
    match overlap {
        Some([_, (start, _)]) => Err(Fault::at(
            *start,
            "two members of the archive overlap: it is damaged",
        )),
        None => Ok(()),
    }
}

fn miscounted(promised: u64, how: &str) -> Fault {
    let promised = counted(promised, "member");
    Fault::broken(format!(
        "the archive's end record counts {promised}, and its directory has {how}: the archive is damaged"
    ))
}

fn fault_of(error: rawzip::Error, what: &str) -> Fault {
    match error.into_kind() {
        ErrorKind::IO(error) if error.kind() != io::ErrorKind::UnexpectedEof => Fault::Read(error),
        ErrorKind::MissingEndOfCentralDirectory => {
            Fault::broken("the archive has no end record: it is not a ZIP file, or the save was cut off")
        }
        ErrorKind::BufferTooSmall { .. } => Fault::Unknown(format!("{what} is too large to be read")),
        kind => Fault::broken(format!("{what} is damaged: {kind}")),
    }
}

/// The archive that `rawzip` reads from.
struct Archive<'a>(&'a dyn ReadAt);

impl ReaderAt for Archive<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let there = self.0.size_bytes().saturating_sub(offset);
        let length = usize::try_from(there).unwrap_or(usize::MAX).min(buffer.len());
        if let Some(piece) = buffer.get_mut(..length)
            && length > 0
        {
            self.0.read_exact_at(offset, piece)?;
        }
        Ok(length)
    }
}

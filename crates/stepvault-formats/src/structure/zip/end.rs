//! The end records of an archive: where its list of records is, and whether all end records agree on it.

use rawzip::ZipArchive;

use super::Adapter;
use crate::soundness::{Fault, broken_at, read_piece};
use crate::source::ReadAt;
use crate::structure::cursor::number;

/// The reason why an archive without an end record is broken.
pub(super) const CUT_OFF: &str = "the archive has no end record in its last bytes: the save was cut off";

const END_BYTES: u64 = 22;
const LOCATOR_BYTES: u64 = 20;
const LONG_END_BYTES: u64 = 56;
/// The part of the ZIP64 end record that its own length does not count.
const LONG_END_UNCOUNTED_BYTES: u64 = 12;

/// The location of the list of records.
pub(super) struct Directory {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) records: u64,
}

/// Reads the end records that the reader has found, and compares them with the reader's result and with each other.
pub(super) fn check(source: &dyn ReadAt, archive: &ZipArchive<Adapter<'_>>) -> Result<Directory, Fault> {
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

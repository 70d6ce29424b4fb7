//! One record of an archive: its entry in the list, and the bytes at its offset.

use rawzip::{CompressionMethod, ZipArchive, ZipArchiveEntryWayfinder, ZipFileHeaderRecord};

use super::{Adapter, zip_fault};
use crate::soundness::{Fault, broken_at, read_piece};
use crate::structure::cursor::number;
use crate::structure::text::shown;
use crate::tree::ReadAt;

/// Bytes of a record's own header, without its name and extra.
const HEADER_BYTES: u64 = 30;
/// Flag bit 3: checksum and sizes follow the data.
const HAS_DESCRIPTOR: u16 = 1 << 3;
/// The signature that usually starts the descriptor after a record's data.
const DESCRIPTOR_MARK: &[u8] = b"PK\x07\x08";
/// The size of that signature.
const MARK_BYTES: u64 = 4;
/// The longest descriptor after a record's data, in bytes.
const MAX_DESCRIPTOR_BYTES: u64 = 24;

/// A record of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its path in the archive.
    pub name: String,
    /// The CRC-32 of its bytes from the list. torch writes 0 for all when checksums are turned off.
    pub crc32: u32,
    /// Its decompressed length in bytes.
    pub size_bytes: u64,
    /// The offset in the file of its own header.
    pub header_offset: u64,
    /// The offset in the file of its bytes.
    pub data_offset: u64,
    method: CompressionMethod,
    flags: u16,
    stored_bytes: u64,
}

impl Record {
    /// Returns whether its bytes are stored uncompressed.
    pub fn is_stored(&self) -> bool {
        self.method == CompressionMethod::STORE
    }

    /// Returns whether its bytes are compressed by the usual method.
    pub fn is_deflated(&self) -> bool {
        self.method == CompressionMethod::DEFLATE
    }

    /// Reads an entry of the list.
    pub(super) fn listed(entry: &ZipFileHeaderRecord<'_>) -> Result<Self, Fault> {
        let at = entry.central_directory_offset();
        let name = decoded(entry.file_path().as_ref());
        let record = Self {
            name: name.clone(),
            method: entry.compression_method(),
            flags: entry.flags().bits(),
            crc32: entry.crc32(),
            size_bytes: entry.uncompressed_size_hint(),
            stored_bytes: entry.compressed_size_hint(),
            header_offset: entry.local_header_offset(),
            data_offset: 0,
        };
        if entry.flags().is_encrypted() {
            return Err(broken_at!(at, "{} is encrypted", shown(&name)));
        }
        if record.is_stored() && record.size_bytes != record.stored_bytes {
            return Err(broken_at!(
                at,
                "{} is {} bytes long, but takes {} although it is not compressed",
                shown(&name),
                record.size_bytes,
                record.stored_bytes
            ));
        }
        Ok(record)
    }

    /// Compares the header and the descriptor at the record's offset with the list. All of it must end before
    /// `limit`, where the next record or the list begins.
    pub(super) fn check_place(
        &mut self,
        source: &dyn ReadAt,
        archive: &ZipArchive<Adapter<'_>>,
        wayfinder: ZipArchiveEntryWayfinder,
        limit: u64,
    ) -> Result<(), Fault> {
        let name = shown(&self.name);
        let damaged = || {
            broken_at!(
                self.header_offset,
                "the header of {name} is damaged: it differs from the archive's list"
            )
        };
        let overlaps = || broken_at!(self.header_offset, "{name} overlaps what follows it in the archive");
        if self.header_offset.checked_add(HEADER_BYTES).is_none_or(|end| end > limit) {
            return Err(overlaps());
        }
        let absent = format!(
            "the archive's list places {name} at byte {}, where no record begins",
            self.header_offset
        );
        let entry = archive.get_entry(wayfinder).map_err(|error| zip_fault(error, &absent))?;
        let (data_start, data_end) = entry.compressed_data_range();
        if data_end > limit {
            return Err(overlaps());
        }
        // At most the bytes that were just found to lie inside the file, and at most 128 KiB.
        let variable_bytes = data_start.saturating_sub(self.header_offset).saturating_sub(HEADER_BYTES);
        let mut buffer = vec![0; usize::try_from(variable_bytes).unwrap_or_default()];
        let header = entry.local_header(&mut buffer).map_err(|error| zip_fault(error, &absent))?;
        let same_sizes = header.crc32() == self.crc32
            && header.compressed_size_hint() == self.stored_bytes
            && header.uncompressed_size_hint() == self.size_bytes;
        let no_sizes = self.has_descriptor()
            && header.crc32() == 0
            && header.compressed_size_hint() == 0
            && header.uncompressed_size_hint() == 0;
        let says_the_same = decoded(header.file_path().as_ref()) == self.name
            && header.flags().bits() == self.flags
            && header.compression_method() == self.method
            && (same_sizes || no_sizes);
        if !says_the_same {
            return Err(damaged());
        }
        if self.has_descriptor() && !self.is_described(source, data_end, limit)? {
            return Err(broken_at!(
                data_end,
                "the checksum and length after {name} differ from those in the archive's list"
            ));
        }
        self.data_offset = data_start;
        Ok(())
    }

    fn has_descriptor(&self) -> bool {
        self.flags & HAS_DESCRIPTOR != 0
    }

    /// Returns whether the bytes after the data repeat checksum and lengths: with or without a signature, and with
    /// lengths of four or eight bytes, whatever the list uses. torch writes eight as soon as the record *begins*
    /// beyond 4 GiB, however short it is (`mz_zip_writer_add_mem_ex_v2` in its miniz).
    fn is_described(&self, source: &dyn ReadAt, data_end: u64, limit: u64) -> Result<bool, Fault> {
        // The header lies before the data, so there are always that many bytes to look back.
        let start = data_end.saturating_sub(MARK_BYTES);
        let length = limit.saturating_sub(start).min(MARK_BYTES + MAX_DESCRIPTOR_BYTES);
        let around = read_piece(source, start, length, length, "the checksum after a record")?;
        let Some((before, behind)) = around.split_at_checked(DESCRIPTOR_MARK.len()) else {
            return Ok(false);
        };
        let fields = match behind.strip_prefix(DESCRIPTOR_MARK) {
            Some(fields) => fields,
            // The signature is part of the stated data: the stated data ends too late.
            None if before == DESCRIPTOR_MARK => return Ok(false),
            None => behind,
        };
        Ok([4_usize, 8].into_iter().any(|width| {
            fields.len() >= 4 + 2 * width
                && number(fields, 0, 4) == u64::from(self.crc32)
                && number(fields, 4, width) == self.stored_bytes
                && number(fields, 4 + width, width) == self.size_bytes
        }))
    }
}

/// Returns a name as text. Tools that write other text than UTF-8 use one byte for a character.
fn decoded(name: &[u8]) -> String {
    str::from_utf8(name).map_or_else(|_| name.iter().copied().map(char::from).collect(), str::to_owned)
}

//! Reads a file once from front to back, and compares its pieces with their checksums.

use std::io::{self, Read};
use std::ops::Range;

use stepvault_core::digest::{Crc32c, Sha256Digest, Sha256Hasher};

use crate::structure::cursor::Forward;
use crate::tree::ReadAt;

/// The number of bytes that are read at a time.
const PIECE_BYTES: u64 = 256 << 10;

/// A checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// CRC-32, as in ZIP archives.
    Crc32(u32),
    /// CRC-32C.
    Crc32c(u32),
    /// SHA-256.
    Sha256(Sha256Digest),
}

/// A piece of a file with its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) checksum: Checksum,
    /// What it is, in messages.
    pub(crate) what: String,
}

impl Span {
    pub(crate) fn new(bytes: Range<u64>, checksum: Checksum, what: impl Into<String>) -> Self {
        Self { start: bytes.start, end: bytes.end, checksum, what: what.into() }
    }
}

/// The result of reading a file.
#[derive(Debug, Default)]
pub(super) struct FileRead {
    /// Bytes that match their checksums.
    pub(super) proved_bytes: u64,
    /// Bytes that no checksum covers.
    pub(super) other_bytes: u64,
    /// Offset and name of each piece that does not match.
    pub(super) damaged: Vec<(u64, String)>,
}

/// Reads a file to its end. Of pieces that overlap, the first counts; pieces beyond the end are left out.
pub(super) fn read(
    source: &dyn ReadAt,
    mut spans: Vec<Span>,
    on_bytes: &dyn Fn(u64),
) -> io::Result<FileRead> {
    spans.sort_by_key(|span| span.start);
    let size_bytes = source.size_bytes();
    let mut reader = Reader {
        forward: Forward::new(source, 0, size_bytes).in_pieces_of(PIECE_BYTES),
        buffer: vec![0; usize::try_from(PIECE_BYTES.min(size_bytes)).unwrap_or_default()],
        on_bytes,
    };
    let mut result = FileRead::default();
    for span in spans {
        let position = reader.forward.position();
        if span.start < position || span.end < span.start || span.end > size_bytes {
            continue;
        }
        reader.pass(span.start - position, &mut |_| {})?;
        result.other_bytes += span.start - position;
        let length = span.end - span.start;
        if reader.matches(length, span.checksum)? {
            result.proved_bytes += length;
        } else {
            result.damaged.push((span.start, span.what));
        }
    }
    let rest = reader.forward.remaining();
    reader.pass(rest, &mut |_| {})?;
    result.other_bytes += rest;
    Ok(result)
}

struct Reader<'a> {
    forward: Forward<'a>,
    buffer: Vec<u8>,
    on_bytes: &'a dyn Fn(u64),
}

impl Reader<'_> {
    /// Passes the next bytes to a callback.
    fn pass(&mut self, mut length: u64, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        while length > 0 {
            let wanted = usize::try_from(length).unwrap_or(usize::MAX).min(self.buffer.len());
            let piece = self.buffer.get_mut(..wanted).unwrap_or_default();
            let read = self.forward.read(piece)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            take(self.buffer.get(..read).unwrap_or_default());
            (self.on_bytes)(read as u64);
            length -= read as u64;
        }
        Ok(())
    }

    /// Returns whether the next bytes have this checksum.
    fn matches(&mut self, length: u64, checksum: Checksum) -> io::Result<bool> {
        match checksum {
            Checksum::Crc32(expected) => {
                let mut crc = rawzip::Crc32::new();
                self.pass(length, &mut |bytes| crc.update(bytes))?;
                Ok(crc.checksum() == expected)
            }
            Checksum::Crc32c(expected) => {
                let mut crc = Crc32c::of(&[]);
                self.pass(length, &mut |bytes| {
                    crc = crc.followed_by(Crc32c::of(bytes), bytes.len() as u64);
                })?;
                Ok(crc.0 == expected)
            }
            Checksum::Sha256(expected) => {
                let mut hasher = Sha256Hasher::default();
                self.pass(length, &mut |bytes| hasher.update(bytes))?;
                Ok(hasher.finish() == expected)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn every_byte_is_read_once_and_belongs_to_one_piece_or_to_none() {
        let bytes: Vec<u8> = (0..700_000_u32).map(|index| index.to_le_bytes()[1]).collect();
        let span =
            |start: u64, end: u64, checksum| Span { start, end, checksum, what: format!("piece {start}") };
        let of = |start: usize, end: usize| &bytes[start..end];
        let spans = vec![
            span(600_000, 700_000, Checksum::Sha256(Sha256Digest::of(of(600_000, 700_000)))),
            span(10, 500_000, Checksum::Crc32c(Crc32c::of(of(10, 500_000)).0)),
            // These two overlap with it, or leave the file.
            span(20, 30, Checksum::Crc32c(0)),
            span(690_000, 700_001, Checksum::Crc32c(0)),
            span(500_000, 500_010, Checksum::Crc32(7)),
        ];
        let count = Cell::new(0);
        let result = read(&bytes, spans, &|read| count.set(count.get() + read)).unwrap();
        assert_eq!(count.get(), 700_000);
        assert_eq!(result.proved_bytes, 499_990 + 100_000);
        assert_eq!(result.other_bytes, 10 + 99_990);
        assert_eq!(result.damaged, [(500_000, "piece 500000".to_owned())]);
    }
}

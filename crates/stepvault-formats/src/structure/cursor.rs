//! Reads fields from a piece of a file that is already in memory, and a file from front to back.

use std::fmt::Display;
use std::io::{self, Read};

use crate::soundness::{Fault, broken};
use crate::tree::ReadAt;

/// A reader of the fields of a byte slice, in order. `what` names the slice in messages: "the manifest".
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    what: &'a str,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], what: &'a str) -> Self {
        Self { rest: bytes, what }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn into_rest(self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn take(&mut self, length_bytes: u64, field: &str) -> Result<&'a [u8], Fault> {
        let split = usize::try_from(length_bytes).ok().and_then(|length| self.rest.split_at_checked(length));
        let (piece, rest) = split.ok_or_else(|| self.ended(field))?;
        self.rest = rest;
        Ok(piece)
    }

    pub(super) fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], Fault> {
        let (piece, rest) = self.rest.split_first_chunk().ok_or_else(|| self.ended(field))?;
        self.rest = rest;
        Ok(*piece)
    }

    pub(super) fn byte(&mut self, field: &str) -> Result<u8, Fault> {
        self.array(field).map(|[byte]| byte)
    }

    /// Reads an unsigned integer of seven bits per byte, the lowest first (LEB128).
    pub(super) fn varint(&mut self, field: &str) -> Result<u64, Fault> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(field)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.damaged(format_args!("its {field} is not a number")))
    }

    /// Reads columns of `count` numbers each, and returns them as rows.
    pub(super) fn rows<const N: usize>(
        &mut self,
        count: usize,
        fields: [&str; N],
    ) -> Result<Vec<[u64; N]>, Fault> {
        let mut rows = vec![[0; N]; count];
        for (column, field) in fields.into_iter().enumerate() {
            for row in &mut rows {
                row[column] = self.varint(field)?;
            }
        }
        Ok(rows)
    }

    /// Reads a column of numbers without that of the first row, which is 0.
    pub(super) fn column_after_first(&mut self, count: usize, field: &str) -> Result<Vec<u64>, Fault> {
        let mut column = vec![0; count];
        for number in column.iter_mut().skip(1) {
            *number = self.varint(field)?;
        }
        Ok(column)
    }

    /// Reads a count. Refuses it when the remaining bytes could not hold that many items of `least_bytes` each.
    pub(super) fn count(&mut self, field: &str, least_bytes: usize) -> Result<usize, Fault> {
        let stated = self.varint(field)?;
        let room = self.rest.len() / least_bytes.max(1);
        let count = usize::try_from(stated).ok().filter(|count| *count <= room);
        count.ok_or_else(|| {
            self.damaged(format_args!("its {field} is {stated}, but there is room for {room} only"))
        })
    }

    /// Returns the fault of a slice that breaks a rule.
    pub(super) fn damaged(&self, why: impl Display) -> Fault {
        broken!("{} is damaged: {why}", self.what)
    }

    fn ended(&self, field: &str) -> Fault {
        self.damaged(format_args!("it ends before its {field}"))
    }
}

/// Returns the length of a prefix that a key or path shares with the previous one; `None` if that one is shorter.
pub(super) fn shared_bytes(stated: u64, previous_bytes: usize) -> Option<usize> {
    usize::try_from(stated).ok().filter(|shared| *shared <= previous_bytes)
}

/// Returns an unsigned little-endian number of at most `length` bytes in a header; bytes beyond its end count as 0.
pub(super) fn number(bytes: &[u8], start: usize, length: usize) -> u64 {
    let rest = bytes.get(start..).unwrap_or_default();
    let field = rest.get(..length.min(rest.len())).unwrap_or_default();
    field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The bytes of the file that are held at any time.
const PIECE_BYTES: u64 = 64 * 1024;

/// Reads the bytes from a start to an end once, holding one piece of them. Skipped bytes are not read.
pub(crate) struct Forward<'a> {
    source: &'a dyn ReadAt,
    /// The largest piece that is read.
    piece_bytes: u64,
    /// The offset of the piece after the current one.
    next: u64,
    end: u64,
    piece: Vec<u8>,
    taken: usize,
}

impl<'a> Forward<'a> {
    /// Returns a reader of the bytes from `start` to `end`, as far as the file has them.
    pub(crate) fn new(source: &'a dyn ReadAt, start: u64, end: u64) -> Self {
        let end = end.min(source.size_bytes());
        Self { source, piece_bytes: PIECE_BYTES, next: start.min(end), end, piece: Vec::new(), taken: 0 }
    }

    /// Returns the same reader with larger pieces, for a range that is read to its end.
    pub(crate) fn in_pieces_of(self, piece_bytes: u64) -> Self {
        Self { piece_bytes, ..self }
    }

    /// Returns the offset in the file of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.next - self.rest().len() as u64
    }

    /// Returns how many bytes remain.
    pub(crate) fn remaining(&self) -> u64 {
        self.end - self.position()
    }

    /// Skips `count` bytes. Returns false, without moving, when fewer remain.
    pub(crate) fn skip(&mut self, count: u64) -> bool {
        if count > self.remaining() {
            return false;
        }
        let held = self.rest().len() as u64;
        if let Ok(step) = usize::try_from(count)
            && count <= held
        {
            self.taken += step;
        } else {
            self.next += count - held;
            self.piece.clear();
            self.taken = 0;
        }
        true
    }

    /// Reads the next `N` bytes; `None`, without moving, when fewer remain.
    pub(crate) fn array<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        if self.remaining() < N as u64 {
            return Ok(None);
        }
        let mut array = [0; N];
        self.read_exact(&mut array)?;
        Ok(Some(array))
    }

    fn rest(&self) -> &[u8] {
        self.piece.get(self.taken..).unwrap_or_default()
    }
}

impl Read for Forward<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest().is_empty() {
            let length = self.piece_bytes.min(self.end - self.next);
            // Bounded by the size of a piece, so it fits.
            self.piece.resize(usize::try_from(length).unwrap_or(0), 0);
            self.taken = 0;
            self.source.read_exact_at(self.next, &mut self.piece)?;
            self.next += length;
        }
        let read = self.rest().read(buffer)?;
        self.taken += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_they_say() {
        let read = |bytes: &[u8]| Cursor::new(bytes, "the node").varint("height");
        assert_eq!(read(&[0x7f]).unwrap(), 0x7f);
        assert_eq!(read(&[0x80, 0x01]).unwrap(), 0x80);
        let mut largest = [0xff; 10];
        largest[9] = 1;
        assert_eq!(read(&largest).unwrap(), u64::MAX);
        let text = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert_eq!(text(&[0x80]), "the node is damaged: it ends before its height");
        largest[9] = 2;
        assert_eq!(text(&largest), "the node is damaged: its height is not a number");
        assert_eq!(text(&[0xff; 12]), "the node is damaged: its height is not a number");
    }

    #[test]
    fn counts_are_held_against_what_is_left() {
        let count = |bytes: &[u8]| Cursor::new(bytes, "the node").count("number of keys", 2);
        assert_eq!(count(&[2, 0, 0, 0, 0]).unwrap(), 2);
        assert_eq!(
            count(&[3, 0, 0, 0, 0]).unwrap_err().to_string(),
            "the node is damaged: its number of keys is 3, but there is room for 2 only"
        );
    }

    #[test]
    fn skips_without_losing_its_place() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|index| index.to_le_bytes()[0]).collect();
        let mut forward = Forward::new(&bytes, 10, u64::MAX);
        let mut next = [0];
        forward.read_exact(&mut next).unwrap();
        assert_eq!((next, forward.position()), ([10], 11));
        assert!(forward.skip(5));
        forward.read_exact(&mut next).unwrap();
        assert_eq!((next, forward.position()), ([16], 17));
        assert!(forward.skip(150_000 - 17));
        forward.read_exact(&mut next).unwrap();
        assert_eq!((next[0], forward.position()), (bytes[150_000], 150_001));
        assert!(!forward.skip(50_000) && forward.position() == 150_001);
        assert!(forward.skip(49_999));
        assert_eq!(forward.remaining(), 0);
        assert_eq!(forward.read(&mut next).unwrap(), 0);
    }
}

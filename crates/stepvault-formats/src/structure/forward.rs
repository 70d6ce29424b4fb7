//! A range of a file, read from front to back in small pieces.

use std::io::{self, Read};

use crate::source::ReadAt;

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

    /// Returns the same reader with smaller pieces, for a range that may end long before its bound.
    pub(crate) fn in_pieces_of(self, piece_bytes: u64) -> Self {
        Self { piece_bytes: piece_bytes.min(PIECE_BYTES), ..self }
    }

    /// Returns the same reader with larger pieces, for a range that is read to its end.
    pub(crate) fn in_large_pieces(self, piece_bytes: u64) -> Self {
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

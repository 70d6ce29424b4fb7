//! A position in a range of a file, read forwards through a small buffer.

use std::ops::Range;

use crate::soundness::Fault;
use crate::source::ReadAt;

/// The number of bytes that are read at a time.
const BUFFER_BYTES: u64 = 16 * 1024;

/// Reads forwards, never beyond the end of its range, and skips without reading.
pub(super) struct Cursor<'a> {
    source: &'a dyn ReadAt,
    position: u64,
    end: u64,
    buffer: Vec<u8>,
    buffer_start: u64,
}

impl<'a> Cursor<'a> {
    /// Returns a cursor at the start of a range, which must be inside the file.
    pub(super) fn new(source: &'a dyn ReadAt, range: Range<u64>) -> Result<Self, Fault> {
        if range.start > range.end || range.end > source.size_bytes() {
            return Err(Fault::at(
                range.start,
                format!(
                    "a pickle up to byte {} does not fit in a file of {} bytes",
                    range.end,
                    source.size_bytes()
                ),
            ));
        }
        Ok(Self {
            source,
            position: range.start,
            end: range.end,
            buffer: Vec::new(),
            buffer_start: range.start,
        })
    }

    /// Returns the offset in the file of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns how many bytes are left in the range.
    pub(super) fn left_bytes(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }

    /// Returns the next byte.
    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    /// Returns the next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        for byte in &mut array {
            *byte = self.next_byte()?;
        }
        Ok(array)
    }

    /// Returns the next `length` bytes. The caller has compared `length` with its own limit.
    pub(super) fn bytes(&mut self, length: u64) -> Result<Vec<u8>, Fault> {
        self.must_hold(length)?;
        let mut bytes = Vec::new();
        for _ in 0..length {
            bytes.push(self.next_byte()?);
        }
        Ok(bytes)
    }

    /// Skips `length` bytes without reading them.
    pub(super) fn skip(&mut self, length: u64) -> Result<(), Fault> {
        self.must_hold(length)?;
        self.position = self.position.saturating_add(length);
        Ok(())
    }

    /// Returns the bytes up to the next line feed, which is consumed but not returned. Returns `None` for a line
    /// longer than `kept_bytes`.
    pub(super) fn line(&mut self, kept_bytes: u64) -> Result<Option<Vec<u8>>, Fault> {
        let mut line = Some(Vec::new());
        loop {
            let byte = self.next_byte()?;
            if byte == b'\n' {
                return Ok(line);
            }
            if let Some(bytes) = &mut line {
                bytes.push(byte);
                if bytes.len() as u64 > kept_bytes {
                    line = None;
                }
            }
        }
    }

    fn must_hold(&self, length: u64) -> Result<(), Fault> {
        let left_bytes = self.left_bytes();
        if length > left_bytes {
            return Err(Fault::at(
                self.position,
                format!("the pickle is cut off: {length} bytes should follow, and {left_bytes} do"),
            ));
        }
        Ok(())
    }

    fn next_byte(&mut self) -> Result<u8, Fault> {
        if self.position >= self.end {
            return Err(Fault::at(
                self.position,
                "the pickle is cut off: it ends before its STOP",
            ));
        }
        let buffered = self.position.checked_sub(self.buffer_start);
        let byte = match buffered.and_then(|index| self.buffer.get(usize::try_from(index).ok()?)) {
            Some(byte) => *byte,
            None => self.refill()?,
        };
        self.position = self.position.saturating_add(1);
        Ok(byte)
    }

    /// Fills the buffer from the current position and returns the byte there.
    fn refill(&mut self) -> Result<u8, Fault> {
        let length = self.left_bytes().min(BUFFER_BYTES);
        // At most `BUFFER_BYTES`.
        self.buffer.resize(usize::try_from(length).unwrap_or_default(), 0);
        self.source.read_exact_at(self.position, &mut self.buffer)?;
        self.buffer_start = self.position;
        self.buffer
            .first()
            .copied()
            .ok_or_else(|| Fault::at(self.position, "the pickle is cut off: it ends before its STOP"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_over_the_buffer_and_skips_unread() {
        let bytes: Vec<u8> = (0..BUFFER_BYTES * 3).map(|index| (index % 251) as u8).collect();
        let mut cursor = Cursor::new(&bytes, 1..BUFFER_BYTES * 3).unwrap();
        assert_eq!(cursor.bytes(BUFFER_BYTES).unwrap(), bytes[1..=16 * 1024]);
        cursor.skip(BUFFER_BYTES).unwrap();
        let at = usize::try_from(cursor.position()).unwrap();
        assert_eq!(cursor.array::<3>().unwrap(), bytes[at..at + 3]);
        cursor.skip(cursor.left_bytes()).unwrap();
        assert!(cursor.byte().is_err());
    }

    #[test]
    fn a_length_is_held_against_what_is_left() {
        let bytes = vec![0_u8; 10];
        let mut cursor = Cursor::new(&bytes, 0..10).unwrap();
        cursor.skip(4).unwrap();
        for outcome in [cursor.bytes(u64::MAX).map(drop), cursor.skip(7)] {
            let why = outcome.unwrap_err().to_string();
            assert!(why.starts_with("the pickle is cut off: "), "{why}");
            assert!(why.ends_with(" bytes should follow, and 6 do"), "{why}");
        }
        assert!(Cursor::new(&bytes, 0..11).is_err());
    }
}

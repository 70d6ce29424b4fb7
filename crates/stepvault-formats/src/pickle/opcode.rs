//! The instructions of a pickle, from Python's own `Lib/pickle.py`, and how they are read from a file.

use std::io::Read as _;
use std::ops::Range;

use crate::soundness::{Fault, broken_at};
use crate::structure::cursor::Forward;
use crate::tree::ReadAt;

/// Declares each instruction as a constant and lists its name for messages.
macro_rules! opcodes {
    ($($name:ident = $byte:literal),+ $(,)?) => {
        $(pub(super) const $name: u8 = $byte;)+

        /// Returns Python's name of an instruction, or `None` when the byte is not an instruction.
        pub(super) fn name_of(opcode: u8) -> Option<&'static str> {
            match opcode {
                $($name => Some(stringify!($name)),)+
                _ => None,
            }
        }
    };
}

opcodes! {
    MARK = b'(',
    STOP = b'.',
    POP = b'0',
    POP_MARK = b'1',
    DUP = b'2',
    FLOAT = b'F',
    INT = b'I',
    BININT = b'J',
    BININT1 = b'K',
    LONG = b'L',
    BININT2 = b'M',
    NONE = b'N',
    PERSID = b'P',
    BINPERSID = b'Q',
    REDUCE = b'R',
    STRING = b'S',
    BINSTRING = b'T',
    SHORT_BINSTRING = b'U',
    UNICODE = b'V',
    BINUNICODE = b'X',
    APPEND = b'a',
    BUILD = b'b',
    GLOBAL = b'c',
    DICT = b'd',
    EMPTY_DICT = b'}',
    APPENDS = b'e',
    GET = b'g',
    BINGET = b'h',
    INST = b'i',
    LONG_BINGET = b'j',
    LIST = b'l',
    EMPTY_LIST = b']',
    OBJ = b'o',
    PUT = b'p',
    BINPUT = b'q',
    LONG_BINPUT = b'r',
    SETITEM = b's',
    TUPLE = b't',
    EMPTY_TUPLE = b')',
    SETITEMS = b'u',
    BINFLOAT = b'G',
    PROTO = 0x80,
    NEWOBJ = 0x81,
    EXT1 = 0x82,
    EXT2 = 0x83,
    EXT4 = 0x84,
    TUPLE1 = 0x85,
    TUPLE2 = 0x86,
    TUPLE3 = 0x87,
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    LONG1 = 0x8a,
    LONG4 = 0x8b,
    BINBYTES = b'B',
    SHORT_BINBYTES = b'C',
    SHORT_BINUNICODE = 0x8c,
    BINUNICODE8 = 0x8d,
    BINBYTES8 = 0x8e,
    EMPTY_SET = 0x8f,
    ADDITEMS = 0x90,
    FROZENSET = 0x91,
    NEWOBJ_EX = 0x92,
    STACK_GLOBAL = 0x93,
    MEMOIZE = 0x94,
    FRAME = 0x95,
    BYTEARRAY8 = 0x96,
    NEXT_BUFFER = 0x97,
    READONLY_BUFFER = 0x98,
}

/// The number of bytes that are read at a time. A file may hold several pickles, and only its end bounds each.
const PIECE_BYTES: u64 = 16 * 1024;

/// Reads forwards, never beyond the end of its range, and skips without reading.
pub(super) struct Cursor<'a> {
    forward: Forward<'a>,
}

impl<'a> Cursor<'a> {
    /// Returns a cursor at the start of a range, which must be inside the file.
    pub(super) fn new(source: &'a dyn ReadAt, range: Range<u64>) -> Result<Self, Fault> {
        if range.start > range.end || range.end > source.size_bytes() {
            return Err(broken_at!(
                range.start,
                "a pickle up to byte {} does not fit in a file of {} bytes",
                range.end,
                source.size_bytes()
            ));
        }
        Ok(Self { forward: Forward::new(source, range.start, range.end).in_pieces_of(PIECE_BYTES) })
    }

    /// Returns the offset in the file of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.forward.position()
    }

    /// Returns how many bytes are left in the range.
    pub(super) fn left_bytes(&self) -> u64 {
        self.forward.remaining()
    }

    /// Returns the next byte.
    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    /// Returns the next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let end = self.position().saturating_add(self.left_bytes());
        let cut_off = || broken_at!(end, "the pickle is cut off: it ends before its STOP");
        self.forward.array()?.ok_or_else(cut_off)
    }

    /// Returns the next `length` bytes. The caller has compared `length` with its own limit.
    pub(super) fn bytes(&mut self, length: u64) -> Result<Vec<u8>, Fault> {
        self.must_hold(length)?;
        let mut bytes = Vec::new();
        self.forward.by_ref().take(length).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Skips `length` bytes without reading them.
    pub(super) fn skip(&mut self, length: u64) -> Result<(), Fault> {
        self.must_hold(length)?;
        self.forward.skip(length);
        Ok(())
    }

    /// Returns the bytes up to the next line feed, which is consumed but not returned. Returns `None` for a line
    /// longer than `kept_bytes`.
    pub(super) fn line(&mut self, kept_bytes: u64) -> Result<Option<Vec<u8>>, Fault> {
        let mut line = Some(Vec::new());
        loop {
            let byte = self.byte()?;
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
            return Err(broken_at!(
                self.position(),
                "the pickle is cut off: {length} bytes should follow, and {left_bytes} do"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than is read at a time.
    const LENGTH: usize = 100_000;

    #[test]
    fn it_reads_over_the_buffer_and_skips_unread() {
        let bytes: Vec<u8> = (0..=250).cycle().take(LENGTH * 3).collect();
        let mut cursor = Cursor::new(&bytes, 1..bytes.len() as u64).unwrap();
        assert_eq!(cursor.bytes(LENGTH as u64).unwrap(), bytes[1..=LENGTH]);
        cursor.skip(LENGTH as u64).unwrap();
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

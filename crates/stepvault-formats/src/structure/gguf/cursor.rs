//! Reads the numbers and strings of a GGUF header in order.

use std::io::{self, Read};

use crate::soundness::Fault;
use crate::source::ReadAt;
use crate::structure::forward::Forward;

/// The longest header that is read. A vocabulary has tens of megabytes at most.
pub const LONGEST_HEADER_BYTES: u64 = 256 * 1024 * 1024;
/// The longest key or name (docs/gguf.md in ggml).
const LONGEST_NAME_BYTES: u64 = 65_535;

/// Reads a header from front to back.
pub(super) struct Cursor<'a> {
    forward: Forward<'a>,
    big_endian: bool,
    /// Whether the file continues after the limit of the header.
    limited: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(source: &'a dyn ReadAt, start: u64, big_endian: bool) -> Self {
        Self {
            forward: Forward::new(source, start, LONGEST_HEADER_BYTES),
            big_endian,
            limited: source.size_bytes() > LONGEST_HEADER_BYTES,
        }
    }

    /// Returns the offset in the file of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.forward.position()
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Fault> {
        let bytes = self.take(what)?;
        Ok(if self.big_endian {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        let bytes = self.take(what)?;
        Ok(if self.big_endian {
            u64::from_be_bytes(bytes)
        } else {
            u64::from_le_bytes(bytes)
        })
    }

    pub(super) fn byte(&mut self, what: &str) -> Result<u8, Fault> {
        self.take::<1>(what).map(|[byte]| byte)
    }

    /// Reads a count of items of at least `smallest_bytes` each. Refuses a count for which there is no room.
    pub(super) fn count(&mut self, smallest_bytes: u64, what: &str) -> Result<u64, Fault> {
        let at = self.position();
        let count = self.u64(what)?;
        self.fits(at, count, smallest_bytes, what)?;
        Ok(count)
    }

    /// As [`Self::count`], for a number that was read at `at`.
    pub(super) fn fits(&self, at: u64, count: u64, smallest_bytes: u64, what: &str) -> Result<(), Fault> {
        let remaining = self.forward.remaining();
        let needed = count.checked_mul(smallest_bytes);
        if needed.is_some_and(|needed| needed <= remaining) {
            return Ok(());
        }
        if self.limited {
            return Err(too_long());
        }
        Err(Fault::at(
            at,
            format!(
                "{what} is {count}, more than the {remaining} bytes that follow can hold: the header is damaged, or the file was cut off"
            ),
        ))
    }

    /// Reads a key or a name.
    pub(super) fn name(&mut self, what: &str) -> Result<String, Fault> {
        let at = self.position();
        let length = self.count(1, &format!("the length of {what}"))?;
        if length > LONGEST_NAME_BYTES {
            return Err(Fault::at(
                at,
                format!("{what} would be {length} bytes long: the header is damaged"),
            ));
        }
        let mut text = vec![0; usize::try_from(length).unwrap_or_default()];
        self.fill(&mut text, what)?;
        String::from_utf8(text)
            .map_err(|_| Fault::at(at, format!("{what} is not UTF-8 text: the header is damaged")))
    }

    pub(super) fn skip(&mut self, count: u64, what: &str) -> Result<(), Fault> {
        if self.forward.skip(count) {
            Ok(())
        } else {
            Err(self.cut_off(what))
        }
    }

    fn take<const LENGTH: usize>(&mut self, what: &str) -> Result<[u8; LENGTH], Fault> {
        let mut bytes = [0; LENGTH];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    fn fill(&mut self, buffer: &mut [u8], what: &str) -> Result<(), Fault> {
        let at = self.position();
        self.forward
            .read_exact(buffer)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => self.cut_off_at(at, what),
                _ => Fault::Read(error),
            })
    }

    fn cut_off(&self, what: &str) -> Fault {
        self.cut_off_at(self.position(), what)
    }

    fn cut_off_at(&self, at: u64, what: &str) -> Fault {
        if self.limited {
            return too_long();
        }
        Fault::at(at, format!("the file ends within {what}: it was cut off"))
    }
}

fn too_long() -> Fault {
    Fault::Unknown(format!(
        "the header is longer than the limit of {LONGEST_HEADER_BYTES} bytes"
    ))
}

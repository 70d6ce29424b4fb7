//! Reads the numbers and strings of a GGUF header in order.

use std::io::Read as _;

use crate::soundness::{Fault, broken_at, unknown};
use crate::source::ReadAt;
use crate::structure::forward::Forward;

/// The longest header that is read. A vocabulary has tens of megabytes at most.
pub const LONGEST_HEADER_BYTES: u64 = 256 * 1024 * 1024;
/// The longest key or name (docs/gguf.md in ggml).
const LONGEST_NAME_BYTES: u64 = 65_535;

/// The maximum number of bytes of names of one kind.
const MAX_NAME_BYTES: usize = 32 * 1024 * 1024;

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
        Ok(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        let bytes = self.take(what)?;
        Ok(if self.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
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
        Err(broken_at!(
            at,
            "{what} is {count}, more than the {remaining} bytes that follow can hold: the header is damaged, or the file was cut off"
        ))
    }

    /// Reads a key or a name.
    pub(super) fn name(&mut self, what: &str) -> Result<String, Fault> {
        let at = self.position();
        let length = self.count(1, &format!("the length of {what}"))?;
        if length > LONGEST_NAME_BYTES {
            return Err(broken_at!(at, "{what} would be {length} bytes long: the header is damaged"));
        }
        // The count was compared with what follows.
        let mut text = vec![0; usize::try_from(length).unwrap_or_default()];
        self.forward.read_exact(&mut text)?;
        String::from_utf8(text).map_err(|_| broken_at!(at, "{what} is not UTF-8 text: the header is damaged"))
    }

    pub(super) fn skip(&mut self, count: u64, what: &str) -> Result<(), Fault> {
        self.forward.skip(count).then_some(()).ok_or_else(|| self.cut_off(what))
    }

    fn take<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Fault> {
        self.forward.array()?.ok_or_else(|| self.cut_off(what))
    }

    fn cut_off(&self, what: &str) -> Fault {
        if self.limited {
            return too_long();
        }
        broken_at!(self.position(), "the file ends within {what}: it was cut off")
    }
}

fn too_long() -> Fault {
    unknown!("the header is longer than the limit of {LONGEST_HEADER_BYTES} bytes")
}

/// Names seen so far, each of which may occur only once.
#[derive(Default)]
pub(super) struct Names {
    names: Vec<String>,
    name_bytes: usize,
}

impl Names {
    pub(super) fn add(&mut self, name: String) -> Result<(), Fault> {
        self.name_bytes = self.name_bytes.saturating_add(name.len());
        if self.name_bytes > MAX_NAME_BYTES {
            return Err(unknown!("the header has more than {MAX_NAME_BYTES} bytes of names, the limit"));
        }
        self.names.push(name);
        Ok(())
    }

    /// Returns a name that was added twice.
    pub(super) fn twice(&mut self) -> Option<&str> {
        self.names.sort_unstable();
        let pair = self.names.array_windows().find(|[one, other]| one == other);
        pair.map(|[name, _]| name.as_str())
    }
}

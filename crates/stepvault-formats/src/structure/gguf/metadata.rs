//! The key-value pairs of a GGUF header, read to find the one that the layout of the tensors depends on.

use std::io::Read as _;

use crate::soundness::{Fault, broken, broken_at, unknown};
use crate::structure::cursor::Forward;
use crate::structure::text::shown;
use crate::tree::ReadAt;

/// The alignment of tensors if the header does not set it (docs/gguf.md in ggml).
const DEFAULT_ALIGNMENT_BYTES: u64 = 32;
/// The maximum number of pairs; models have some dozens.
const MAX_PAIRS: u64 = 65_536;
/// The maximum nesting of arrays; readers have no limit.
const DEEPEST_ARRAY: u32 = 4;

const UINT32: u32 = 4;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Reads the pairs and returns the alignment of tensors in bytes.
pub(super) fn alignment_bytes(cursor: &mut Cursor<'_>, pairs: u64) -> Result<u64, Fault> {
    if pairs > MAX_PAIRS {
        return Err(unknown!("the header has {pairs} key-value pairs, more than the limit of {MAX_PAIRS}"));
    }
    let mut alignment = DEFAULT_ALIGNMENT_BYTES;
    let mut keys = Names::default();
    for _ in 0..pairs {
        let key = cursor.name("a key")?;
        let at = cursor.position();
        let kind = cursor.u32("the kind of a value")?;
        if key == "general.alignment" {
            if kind != UINT32 {
                return Err(broken_at!(
                    at,
                    "general.alignment is not a 32-bit number: the header is damaged"
                ));
            }
            alignment = u64::from(cursor.u32("general.alignment")?);
            if !alignment.is_power_of_two() {
                return Err(broken_at!(
                    at,
                    "general.alignment is {alignment}, which is not a power of two: the header is damaged"
                ));
            }
        } else {
            value(cursor, kind, at, &key)?;
        }
        keys.add(key)?;
    }
    keys.twice().map_or(Ok(alignment), |key| Err(broken!("the header has key {} twice", shown(key))))
}

fn value(cursor: &mut Cursor<'_>, kind: u32, at: u64, key: &str) -> Result<(), Fault> {
    match kind {
        BOOL => {
            let flag = cursor.byte("a value")?;
            if flag > 1 {
                let key = shown(key);
                return Err(broken_at!(at, "key {key} is {flag}, neither true nor false"));
            }
            Ok(())
        }
        ARRAY => array(cursor, key, 1),
        _ => elements(cursor, kind, 1, at, key),
    }
}

fn array(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<(), Fault> {
    let at = cursor.position();
    let kind = cursor.u32("the kind of a list")?;
    if kind != ARRAY {
        let smallest_bytes = if kind == STRING { 8 } else { 1 };
        let count = cursor.count(smallest_bytes, "the length of a list")?;
        return elements(cursor, kind, count, at, key);
    }
    if depth == DEEPEST_ARRAY {
        let key = shown(key);
        return Err(unknown!("key {key} has lists that are nested too deep"));
    }
    // A list takes at least its kind and its length.
    for _ in 0..cursor.count(12, "the length of a list")? {
        array(cursor, key, depth + 1)?;
    }
    Ok(())
}

fn elements(cursor: &mut Cursor<'_>, kind: u32, count: u64, at: u64, key: &str) -> Result<(), Fault> {
    let each_bytes = match kind {
        0 | 1 | BOOL => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        STRING => {
            for _ in 0..count {
                let length = cursor.count(1, "the length of a string")?;
                cursor.skip(length, "a string")?;
            }
            return Ok(());
        }
        _ => {
            let key = shown(key);
            return Err(broken_at!(
                at,
                "key {key} has a value of the unknown kind {kind}: the header is damaged"
            ));
        }
    };
    // No overflow: the count was compared with what the file holds.
    cursor.skip(count.saturating_mul(each_bytes), "a value")
}

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

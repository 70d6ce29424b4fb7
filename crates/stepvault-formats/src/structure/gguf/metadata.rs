//! The key-value pairs of a GGUF header, read to find the one that the layout of the tensors depends on.

use super::cursor::{Cursor, Names};
use crate::soundness::{Fault, broken, broken_at, unknown};
use crate::structure::text::shown;

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
    match keys.twice() {
        Some(key) => Err(broken!("the header has key {} twice", shown(key))),
        None => Ok(alignment),
    }
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

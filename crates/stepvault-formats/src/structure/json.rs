//! JSON files beside the tensors: configurations, trainer states, and records of single ranks.
//!
//! The check accepts Python's dialect: `NaN` and `Infinity` are numbers, as `json.dump` writes them for every run
//! whose loss has diverged. A duplicate key is accepted and its last value counts, as in Python.
//!
//! # Blind spots
//!
//! A change that leaves valid JSON of the same kind is not detected: another digit, another letter in a string.

use serde::de::DeserializeSeed;

use super::json_stream::{parse, parse_values};
use crate::soundness::{Fault, broken, broken_at, read_piece, unknown};
use crate::source::ReadAt;

/// The largest file that is read. A tokenizer has tens of megabytes, and so has the log of a long run.
pub const LARGEST_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// The name of the file in messages.
const WHAT: &str = "the JSON file";

/// Checks that a file is whole JSON: one value, or several in a row, since some JSON Lines files have a JSON name, such
/// as Detectron2's `metrics.json`.
///
/// # Errors
/// [`Fault::Broken`] if it is not, [`Fault::Unknown`] if it is too large, nested too deep, or has a string that is
/// too long.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    readable(source)?;
    parse_values(source, 0, source.size_bytes(), WHAT)
}

/// Reads a file that is one JSON value.
pub(super) fn read<'de, S: DeserializeSeed<'de>>(source: &dyn ReadAt, seed: S) -> Result<S::Value, Fault> {
    readable(source)?;
    parse(source, 0, source.size_bytes(), WHAT, seed)
}

/// Refuses files that are recognizably broken without parsing.
fn readable(source: &dyn ReadAt) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes == 0 {
        return Err(broken!("the JSON file is empty: the write was cut off"));
    }
    if size_bytes > LARGEST_FILE_BYTES {
        return Err(unknown!(
            "the JSON file is {size_bytes} bytes long, more than the limit of {LARGEST_FILE_BYTES}"
        ));
    }
    if read_piece(source, 0, 1, 1, "the first byte")? == [0] {
        return Err(broken_at!(
            0,
            "the JSON file begins with a zero byte: its contents were lost, as after a power failure"
        ));
    }
    Ok(())
}

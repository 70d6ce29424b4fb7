//! JSON files beside the tensors: configurations, trainer states, and records of single ranks.
//!
//! The check accepts Python's dialect: `NaN` and `Infinity` are numbers, as `json.dump` writes them for every run
//! whose loss has diverged. A duplicate key is accepted and its last value counts, as in Python.
//!
//! # Blind spots
//!
//! A change that leaves valid JSON of the same kind is not detected: another digit, another letter in a string.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};

use super::json_stream::{Kind, parse, parse_values};
use super::text::shown;
use crate::soundness::{Fault, read_piece};
use crate::source::ReadAt;

/// The largest file that is read. A tokenizer has tens of megabytes, and so has the log of a long run.
pub const LARGEST_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// The name of the file in messages.
const WHAT: &str = "the JSON file";

/// The value that a JSON file must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// Any value, or several in a row: some JSON Lines files have a JSON name, such as Detectron2's `metrics.json`.
    Any,
    /// An object.
    Object,
    /// An array.
    Array,
}

/// Checks that a file is one whole JSON text of the expected kind.
///
/// # Errors
/// [`Fault::Broken`] if it is not, [`Fault::Unknown`] if it is too large, nested too deep, or has a string that is
/// too long.
pub fn check(source: &dyn ReadAt, root: Root) -> Result<(), Fault> {
    if root == Root::Any {
        readable(source)?;
        return parse_values(source, 0, source.size_bytes(), WHAT);
    }
    let kind = read(source, PhantomData::<Kind>)?;
    match (root, kind) {
        (Root::Any, _) | (Root::Object, Kind::Object) | (Root::Array, Kind::Array) => Ok(()),
        (Root::Object, _) => Err(Fault::at(0, "the JSON file must hold an object")),
        (Root::Array, _) => Err(Fault::at(0, "the JSON file must hold a list")),
    }
}

/// Reads whole numbers from the object in a JSON file and keeps nothing else: for each name the number, or `None` if
/// the object has no such field or `null` for it. Checks the file as [`check`] does.
///
/// # Errors
/// As [`check`], and [`Fault::Broken`] if a field is not a non-negative integer.
pub fn whole_numbers<const COUNT: usize>(
    source: &dyn ReadAt,
    names: [&str; COUNT],
) -> Result<[Option<u64>; COUNT], Fault> {
    let fields = Fields { names };
    let kinds = read(source, fields)?;
    let mut numbers = [None; COUNT];
    for ((number, kind), name) in numbers.iter_mut().zip(kinds).zip(names) {
        *number = match kind {
            Kind::Whole(value) => Some(value),
            Kind::Null => None,
            Kind::Object | Kind::Array | Kind::Other => {
                let name = shown(name);
                return Err(Fault::broken(format!("{name} is not a non-negative integer")));
            }
        };
    }
    Ok(numbers)
}

pub(super) fn read<'de, S: DeserializeSeed<'de>>(source: &dyn ReadAt, seed: S) -> Result<S::Value, Fault> {
    readable(source)?;
    parse(source, 0, source.size_bytes(), WHAT, seed)
}

/// Refuses files that are recognizably broken without parsing.
fn readable(source: &dyn ReadAt) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes == 0 {
        return Err(Fault::broken("the JSON file is empty: the write was cut off"));
    }
    if size_bytes > LARGEST_FILE_BYTES {
        return Err(Fault::Unknown(format!(
            "the JSON file is {size_bytes} bytes long, more than the limit of {LARGEST_FILE_BYTES}"
        )));
    }
    if read_piece(source, 0, 1, 1, "the first byte")? == [0] {
        return Err(Fault::at(
            0,
            "the JSON file begins with a zero byte: its contents were lost, as after a power failure",
        ));
    }
    Ok(())
}

/// Some fields of an object.
struct Fields<'a, const COUNT: usize> {
    names: [&'a str; COUNT],
}

impl<'de, const COUNT: usize> DeserializeSeed<'de> for Fields<'_, COUNT> {
    type Value = [Kind; COUNT];

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, const COUNT: usize> Visitor<'de> for Fields<'_, COUNT> {
    type Value = [Kind; COUNT];

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut found = [Kind::Null; COUNT];
        while let Some((key, kind)) = entries.next_entry::<String, Kind>()? {
            for (name, found) in self.names.iter().zip(&mut found) {
                if *name == key {
                    *found = kind;
                }
            }
        }
        Ok(found)
    }
}

//! GGUF: key-value pairs, a table of tensors, and the tensors in order, each aligned.
//!
//! The rules are those of docs/gguf.md in ggml and of its readers (gguf-py 0.19.0, `gguf_reader.py`; ggml,
//! `gguf.cpp`), versions 2 and 3, little and big endian.
//!
//! # Blind spots
//!
//! - The bytes of tensors and of padding carry no checksum, so no change in them is detected.
//! - Nor is a change in a value, in a key or a name, in the version from 2 to 3 (both have the same layout), or in
//!   the shape or kind of a tensor if the padding after it absorbs the difference.
//! - A version or a kind of tensor that gguf 0.19.0 does not know is `Unknown`, not broken, because a later release
//!   may have added it. So is a file that continues after its last tensor, which readers accept.

mod metadata;

pub use self::metadata::LONGEST_HEADER_BYTES;
use self::metadata::{Cursor, Names};
use super::elements::{Block, ELEMENTS};
use super::text::{bytes, shown};
use crate::soundness::{Fault, broken, broken_at, read_array, unknown};
use crate::tree::ReadAt;

/// The maximum number of tensors.
pub const MAX_TENSORS: u64 = 500_000;

/// The magic and the version.
const PREFIX_BYTES: u64 = 8;
/// The length of an empty name, no dimension, the kind and the offset.
const SMALLEST_TENSOR_BYTES: u64 = 24;
/// The length of an empty key, the kind of the value and its one byte.
const SMALLEST_PAIR_BYTES: u64 = 13;

/// Checks a GGUF file, reading only its header.
///
/// # Errors
/// [`Fault::Broken`] if a rule is violated, [`Fault::Unknown`] if a limit or a blind spot of the module prevents the
/// check.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    let mut cursor = Cursor::new(source, PREFIX_BYTES, is_big_endian(source)?);
    let tensors = cursor.count(SMALLEST_TENSOR_BYTES, "the number of tensors")?;
    let pairs = cursor.count(SMALLEST_PAIR_BYTES, "the number of key-value pairs")?;
    let alignment = metadata::alignment_bytes(&mut cursor, pairs)?;
    let table = table(&mut cursor, tensors)?;
    let data_start = aligned(cursor.position(), alignment)?;
    let end = end_of_data(&table, alignment)?;
    let there = source.size_bytes().saturating_sub(data_start);
    if end > there {
        let (end, missing) = (bytes(end), bytes(end - there));
        return Err(broken_at!(
            source.size_bytes(),
            "the tensors take {end}, and the file ends {missing} too early: the save was cut off"
        ));
    }
    if let Some(Placed { name, kind, .. }) = table.iter().find(|tensor| tensor.size_bytes.is_none()) {
        let name = shown(name);
        return Err(unknown!("tensor {name} is of kind {kind}, which gguf 0.19.0 does not know"));
    }
    // Some writers pad after the last tensor, some do not.
    let padded = aligned(end, alignment)?;
    if there > padded {
        let more = bytes(there - padded);
        return Err(unknown!("the file continues for {more} after the last tensor, which readers accept"));
    }
    Ok(())
}

/// Checks magic and version, and returns whether the file is big endian.
fn is_big_endian(source: &dyn ReadAt) -> Result<bool, Fault> {
    let [magic @ .., v0, v1, v2, v3]: [u8; 8] = read_array(source, 0, "the beginning of a GGUF file")?;
    if magic != *b"GGUF" {
        return Err(broken_at!(
            0,
            "the file does not begin with GGUF: it is another format, or its beginning is lost"
        ));
    }
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    // Versions are small, so one whose low half is empty was written in the other byte order.
    let big_endian = version != 0 && version.trailing_zeros() >= 16;
    match if big_endian { version.swap_bytes() } else { version } {
        0 => Err(broken_at!(
            4,
            "the GGUF version is 0, which does not exist: the file was reserved and never written"
        )),
        2 | 3 => Ok(big_endian),
        other => Err(unknown!("the GGUF version is {other}; only 2 and 3 are known")),
    }
}

/// A tensor of the table.
struct Placed {
    name: String,
    kind: u32,
    /// The first byte, counted from the start of the data.
    start: u64,
    /// `None` for an unknown kind.
    size_bytes: Option<u64>,
}

fn table(cursor: &mut Cursor<'_>, tensors: u64) -> Result<Vec<Placed>, Fault> {
    if tensors > MAX_TENSORS {
        return Err(unknown!("the header has {tensors} tensors, more than the limit of {MAX_TENSORS}"));
    }
    let mut names = Names::default();
    let mut table = Vec::new();
    for _ in 0..tensors {
        let tensor = tensor(cursor)?;
        names.add(tensor.name.clone())?;
        table.push(tensor);
    }
    names.twice().map_or(Ok(table), |name| Err(broken!("the header names tensor {} twice", shown(name))))
}

fn tensor(cursor: &mut Cursor<'_>) -> Result<Placed, Fault> {
    let at = cursor.position();
    let name = cursor.name("the name of a tensor")?;
    let dimensions = u64::from(cursor.u32("the number of dimensions")?);
    cursor.fits(at, dimensions, 8, "the number of dimensions")?;
    let (mut row, mut elements) = (1, Some(1_u64));
    for index in 0..dimensions {
        let dimension = cursor.u64("a dimension")?;
        elements = elements.and_then(|elements| elements.checked_mul(dimension));
        if index == 0 {
            row = dimension;
        }
    }
    let kind = cursor.u32("the kind of a tensor")?;
    let start = cursor.u64("the offset of a tensor")?;
    // `None` for a number that is unused or unknown.
    let block = ELEMENTS.ggml_blocks.get(&kind.to_string());
    let size_bytes = block
        .map(|block| size_of(elements, row, block))
        .transpose()
        .map_err(|why| broken_at!(at, "tensor {} {why}: the header is damaged", shown(&name)))?;
    Ok(Placed { name, kind, start, size_bytes })
}

fn size_of(elements: Option<u64>, row: u64, block: &Block) -> Result<u64, String> {
    if !row.is_multiple_of(block.elements) {
        return Err(format!(
            "has rows of {row}, but {} is stored in blocks of {}",
            block.name, block.elements
        ));
    }
    elements
        .and_then(|elements| (elements / block.elements).checked_mul(block.bytes))
        .ok_or_else(|| "has a shape with more elements than any file can hold".to_owned())
}

/// Checks that tensors follow each other at the alignment, as ggml's own reader requires, and returns the end of the
/// last.
fn end_of_data(table: &[Placed], alignment: u64) -> Result<u64, Fault> {
    let mut places: Vec<_> = table.iter().collect();
    places.sort_unstable_by_key(|tensor| (tensor.start, tensor.size_bytes));
    // `None` after a tensor of unknown size.
    let mut reached = Some(0);
    let mut end = 0;
    for Placed { name, start, size_bytes, .. } in places {
        let name = shown(name);
        let expected = reached.map_or(Ok(*start), |reached| aligned(reached, alignment))?;
        if *start != expected || !start.is_multiple_of(alignment) {
            return Err(broken!(
                "tensor {name} begins at byte {start} of the data instead of {expected}, which follows the previous \
                 one aligned to {alignment}: the header is damaged"
            ));
        }
        reached =
            size_bytes.map(|size_bytes| start.checked_add(size_bytes).ok_or_else(too_far)).transpose()?;
        end = reached.unwrap_or(*start);
    }
    Ok(end)
}

fn aligned(offset: u64, alignment: u64) -> Result<u64, Fault> {
    offset.checked_next_multiple_of(alignment).ok_or_else(too_far)
}

fn too_far() -> Fault {
    broken!("a tensor lies beyond the end of any file: the header is damaged")
}

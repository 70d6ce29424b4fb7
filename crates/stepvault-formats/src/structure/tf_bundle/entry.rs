//! An index entry of a tensor: the few fields of its protocol buffers that locate the tensor.

use crate::soundness::{Fault, broken};
use crate::structure::cursor::Cursor;

/// Returns the number of data files from the first value of an index.
pub(super) fn shards(bytes: &[u8]) -> Result<u64, Fault> {
    let mut shards = 0;
    each_field(bytes, "the header of the index", &mut |number, field| {
        if let (1, Field::Number(value)) = (number, field) {
            shards = value;
        }
        Ok(())
    })?;
    if shards == 0 || shards > 99_999 {
        return Err(broken!("the header of the index is damaged: it states {shards} data files"));
    }
    Ok(shards)
}

/// A tensor.
#[derive(Default)]
pub(super) struct Entry {
    element: u64,
    /// `None` when its shape has no known number of elements.
    elements: Option<u64>,
    shard: u64,
    offset: u64,
    length_bytes: u64,
    /// The CRC-32C of its bytes.
    checksum: Option<u32>,
    is_sliced: bool,
}

impl Entry {
    pub(super) fn parse(bytes: &[u8], name: &str) -> Result<Self, Fault> {
        let what = format!("the entry of tensor {name}");
        let mut entry = Self { elements: Some(1), ..Self::default() };
        each_field(bytes, &what, &mut |number, field| {
            match (number, field) {
                (1, Field::Number(value)) => entry.element = value,
                (2, Field::Bytes(shape)) => entry.elements = elements(shape, &what)?,
                (3, Field::Number(value)) => entry.shard = value,
                (4, Field::Number(value)) => entry.offset = value,
                (5, Field::Number(value)) => entry.length_bytes = value,
                (6, Field::Fixed(masked)) => entry.checksum = Some(unmasked(masked)),
                // The pieces of a partitioned tensor have separate entries.
                (7, Field::Bytes(_)) => entry.is_sliced = true,
                _ => {}
            }
            Ok(())
        })?;
        Ok(entry)
    }

    /// Checks that the tensor is as long as its type and shape require.
    pub(super) fn check_length(&self, name: &str) -> Result<(), Fault> {
        let (false, Some(elements), Some(element_bytes)) =
            (self.is_sliced, self.elements, element_bytes(self.element))
        else {
            return Ok(());
        };
        match elements.checked_mul(element_bytes) {
            Some(expected) if expected == self.length_bytes => Ok(()),
            _ => Err(broken!(
                "tensor {name} is {} bytes long, but should have {elements} elements of {element_bytes} bytes",
                self.length_bytes
            )),
        }
    }

    /// Returns its length and its checksum, if the checksum is that of its bytes alone: a tensor of strings has another.
    pub(super) fn checksum(&self) -> Option<(u64, u32)> {
        element_bytes(self.element)?;
        Some((self.length_bytes, self.checksum?))
    }

    /// Returns its data file and its end in it; `None` for one that is in pieces.
    pub(super) fn place(&self, shards: u64, name: &str) -> Result<Option<(u64, u64)>, Fault> {
        if self.is_sliced {
            return Ok(None);
        }
        let end = self.offset.checked_add(self.length_bytes);
        match end {
            Some(end) if self.shard < shards => Ok(Some((self.shard, end))),
            _ => Err(broken!(
                "the entry of tensor {name} is damaged: it names data file {} of {shards}",
                self.shard
            )),
        }
    }
}

/// Returns the checksum that `LevelDB` and `TensorFlow` store masked.
pub(super) fn unmasked(masked: u32) -> u32 {
    masked.wrapping_sub(0xa282_ead8).rotate_left(15)
}

enum Field<'a> {
    Number(u64),
    Fixed(u32),
    Bytes(&'a [u8]),
    Other,
}

/// Passes the fields of a protocol buffer to a callback.
fn each_field(
    bytes: &[u8],
    what: &str,
    visit: &mut dyn FnMut(u64, Field<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut cursor = Cursor::new(bytes, what);
    while !cursor.is_empty() {
        let tag = cursor.varint("tag")?;
        let field = match tag & 7 {
            0 => Field::Number(cursor.varint("number")?),
            1 => cursor.array::<8>("fixed number").map(|_| Field::Other)?,
            2 => {
                let length_bytes = cursor.varint("length")?;
                Field::Bytes(cursor.take(length_bytes, "bytes")?)
            }
            5 => Field::Fixed(u32::from_le_bytes(cursor.array::<4>("fixed number")?)),
            _ => {
                return Err(broken!("{what} is damaged: a field is of an unknown kind"));
            }
        };
        visit(tag >> 3, field)?;
    }
    Ok(())
}

/// Returns the number of elements of a shape (`tensor_shape.proto`).
fn elements(shape: &[u8], what: &str) -> Result<Option<u64>, Fault> {
    let mut product = Some(1_u64);
    each_field(shape, what, &mut |number, field| {
        match (number, field) {
            (2, Field::Bytes(dimension)) => {
                let mut length = 0;
                each_field(dimension, what, &mut |number, field| {
                    if let (1, Field::Number(value)) = (number, field) {
                        length = value;
                    }
                    Ok(())
                })?;
                product = product.and_then(|product| product.checked_mul(length));
            }
            // The rank is unknown.
            (3, Field::Number(1)) => product = None,
            _ => {}
        }
        Ok(())
    })?;
    Ok(product)
}

/// Returns the bytes of an element, for types (`types.proto`) of a fixed length.
fn element_bytes(element: u64) -> Option<u64> {
    match element {
        4 | 6 | 10 | 11 | 12 => Some(1),
        5 | 14 | 15 | 16 | 17 | 19 => Some(2),
        1 | 3 | 13 | 22 => Some(4),
        2 | 8 | 9 | 23 => Some(8),
        18 => Some(16),
        _ => None,
    }
}

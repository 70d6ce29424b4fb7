//! The table of `LevelDB`: sorted keys and values in blocks, an index of the blocks, a footer. The values describe tensors.

use stepvault_core::digest::Crc32c;

use crate::soundness::{Fault, broken, broken_at, read_piece, unknown};
use crate::structure::cursor::{Cursor, shared_bytes};
use crate::tree::ReadAt;

/// Two handles of at most twenty bytes, padded, and the magic number.
const FOOTER_BYTES: u64 = 48;
/// The handles with their padding.
const HANDLES_BYTES: usize = 40;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// The trailer of each block: its compression, and a checksum.
const TRAILER_BYTES: u64 = 5;
/// The largest block; TensorFlow starts a new one after 256 KiB.
const MAX_BLOCK_BYTES: u64 = 64 << 20;
/// The longest key.
const MAX_KEY_BYTES: usize = 64 << 10;

/// A callback for each key and its value.
type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> Result<(), Fault> + 'v;

/// The location of a block.
#[derive(Clone, Copy)]
struct Handle {
    offset: u64,
    length_bytes: u64,
}

/// Reads a table block by block, checks it, and passes every key to `visit`.
pub(super) fn read(source: &dyn ReadAt, visit: &mut Visit<'_>) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    let Some(footer_start) = size_bytes.checked_sub(FOOTER_BYTES) else {
        return Err(broken!(
            "it is {size_bytes} bytes long, less than the minimum of an index: it was cut off"
        ));
    };
    let footer = read_piece(source, footer_start, FOOTER_BYTES, FOOTER_BYTES, "the footer")?;
    let Some((handles, magic)) = footer.split_last_chunk::<8>() else {
        return Err(broken!("it has no footer"));
    };
    if u64::from_le_bytes(*magic) != MAGIC {
        return Err(broken_at!(
            footer_start,
            "it does not end with the magic number of an index: it was cut off or overwritten"
        ));
    }
    let mut handles = Cursor::new(handles, "the footer");
    let meta = handle(&mut handles)?;
    let index = handle(&mut handles)?;
    let padding = handles.into_rest();
    // A last number that extends into the padding still decodes to its value, but no writer writes it so.
    let numbers = [meta, index].map(|at| shortest_bytes(at.offset) + shortest_bytes(at.length_bytes));
    let padding_bytes = HANDLES_BYTES.checked_sub(numbers.iter().sum());
    if padding_bytes != Some(padding.len()) || padding.iter().any(|byte| *byte != 0) {
        return Err(broken_at!(footer_start, "the footer is damaged: its padding is not empty"));
    }
    each_entry(&block(source, meta, footer_start)?, &mut |_, _| Ok(()))?;
    let index = block(source, index, footer_start)?;
    let mut end = 0;
    let mut last_key: Option<Vec<u8>> = None;
    each_entry(&index, &mut |_, value| {
        let mut value = Cursor::new(value, "the index of blocks");
        let at = handle(&mut value)?;
        // Blocks follow one another, so none is read twice.
        if at.offset < end {
            return Err(broken_at!(at.offset, "the index of blocks is damaged: two blocks overlap"));
        }
        let data = block(source, at, footer_start)?;
        end = at.offset.saturating_add(at.length_bytes).saturating_add(TRAILER_BYTES);
        each_entry(&data, &mut |key, value| {
            if last_key.as_deref().is_some_and(|last| last >= key) {
                return Err(broken_at!(at.offset, "a block is damaged: its names are out of order"));
            }
            let last = last_key.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
            visit(key, value)
        })
    })
}

/// Returns the number of bytes that a number takes at seven bits each.
fn shortest_bytes(value: u64) -> usize {
    (value.checked_ilog2().unwrap_or(0) / 7 + 1) as usize
}

fn handle(cursor: &mut Cursor<'_>) -> Result<Handle, Fault> {
    Ok(Handle {
        offset: cursor.varint("offset of a block")?,
        length_bytes: cursor.varint("length of a block")?,
    })
}

/// Reads a block and verifies its checksum, which `LevelDB` rotates and shifts before it writes it.
fn block(source: &dyn ReadAt, at: Handle, footer_start: u64) -> Result<Vec<u8>, Fault> {
    let whole_bytes = at.length_bytes.saturating_add(TRAILER_BYTES);
    if at.offset.checked_add(whole_bytes).is_none_or(|end| end > footer_start) {
        return Err(broken_at!(
            at.offset,
            "a block of {} bytes does not fit before the footer: the file was cut off",
            at.length_bytes
        ));
    }
    let limit_bytes = MAX_BLOCK_BYTES + TRAILER_BYTES;
    let mut bytes = read_piece(source, at.offset, whole_bytes, limit_bytes, "a block")?;
    let Some((covered, masked)) = bytes.split_last_chunk::<4>() else {
        return Err(broken_at!(at.offset, "a block has no checksum"));
    };
    if Crc32c::of(covered).0 != unmasked(u32::from_le_bytes(*masked)) {
        return Err(broken_at!(
            at.offset,
            "a block does not match its checksum: its bytes have changed since they were written"
        ));
    }
    let compression = covered.last().copied().unwrap_or_default();
    if compression != 0 {
        return Err(unknown!("its blocks are compressed, which TensorFlow does not do"));
    }
    bytes.truncate(covered.len().saturating_sub(1));
    Ok(bytes)
}

/// Passes a block's entries to `visit`. Each key shares a prefix with the previous key. The block ends with a list of
/// the keys that do not, which is not needed to read the block from its start.
fn each_entry(block: &[u8], visit: &mut Visit<'_>) -> Result<(), Fault> {
    let damaged = |why: &str| broken!("a block is damaged: {why}");
    let Some((rest, restarts)) = block.split_last_chunk::<4>() else {
        return Err(damaged("it is too short"));
    };
    let entries_bytes = usize::try_from(u32::from_le_bytes(*restarts))
        .ok()
        .and_then(|count| count.checked_mul(4))
        .and_then(|bytes| rest.len().checked_sub(bytes))
        .ok_or_else(|| damaged("its list of restarts is longer than the block"))?;
    let mut cursor = Cursor::new(rest.get(..entries_bytes).unwrap_or_default(), "a block");
    let mut key: Vec<u8> = Vec::new();
    while !cursor.is_empty() {
        let shared = cursor.varint("shared length of a name")?;
        let unshared_bytes = cursor.varint("length of a name")?;
        let value_bytes = cursor.varint("length of a value")?;
        let kept = shared_bytes(shared, key.len())
            .ok_or_else(|| damaged("a name shares more bytes with the previous name than that name has"))?;
        key.truncate(kept);
        key.extend_from_slice(cursor.take(unshared_bytes, "name")?);
        if key.len() > MAX_KEY_BYTES {
            return Err(unknown!("a name is longer than the limit of {MAX_KEY_BYTES} bytes"));
        }
        visit(&key, cursor.take(value_bytes, "value")?)?;
    }
    Ok(())
}

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
fn unmasked(masked: u32) -> u32 {
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

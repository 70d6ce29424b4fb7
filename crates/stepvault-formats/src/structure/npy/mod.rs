//! `.npy`: a magic number, a Python literal that describes the array, and its elements.
//!
//! The rules are those of numpy/lib/format.py (2.4), versions 1.0, 2.0 and 3.0. `np.save` to an open file may write
//! several arrays one after the other; each is checked.
//!
//! # Blind spots
//!
//! - The elements carry no checksum, so no change in them is detected. Nor is a change in the header that leaves an
//!   array of the same size: another byte order, another dtype of that size, `fortran_order`, field names, white
//!   space, or a version with the same layout.
//! - Arrays of Python objects are pickles: `Unknown`.

mod dtype;
mod literal;

use self::dtype::{NoSize, element_bytes, elements, too_large};
use self::literal::Literal;
use super::cursor::number;
use super::text::bytes;
use crate::soundness::{Fault, broken_at, read_piece, unknown};
use crate::source::ReadAt;

/// The longest header that is read. `np.load` itself reads no more than 10,000 bytes by default.
pub const LONGEST_HEADER_BYTES: u64 = 256 * 1024;
/// The maximum number of arrays in one file.
pub const MAX_ARRAYS: u32 = 10_000;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Checks an `.npy` file, reading only headers.
///
/// # Errors
/// [`Fault::Broken`] if a rule is violated, [`Fault::Unknown`] if a limit or a pickle prevents the check.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    let mut end = array(source, 0)?;
    for _ in 1..MAX_ARRAYS {
        if end == size_bytes {
            return Ok(());
        }
        let mut next = [0; MAGIC.len()];
        let another = size_bytes.saturating_sub(end) >= next.len() as u64;
        if another {
            source.read_exact_at(end, &mut next)?;
        }
        if !another || next != *MAGIC {
            let more = bytes(size_bytes.saturating_sub(end));
            return Err(broken_at!(
                end,
                "the file continues for {more} after the array: the header is damaged, or data was appended"
            ));
        }
        end = array(source, end)?;
    }
    Err(unknown!("the file holds more than {MAX_ARRAYS} arrays, the limit"))
}

/// Checks the array that begins at `start`, and returns its end.
fn array(source: &dyn ReadAt, start: u64) -> Result<u64, Fault> {
    let size_bytes = source.size_bytes();
    let (header_start, header_bytes) = header_place(source, start)?;
    let header_end = header_start.saturating_add(header_bytes);
    if header_end > size_bytes {
        return Err(broken_at!(
            start,
            "the header takes {}, and the file ends after {size_bytes}: the save was cut off",
            bytes(header_bytes)
        ));
    }
    let header = read_piece(source, header_start, header_bytes, LONGEST_HEADER_BYTES, "the header")?;
    let literal = literal::parse(&header).map_err(|flaw| {
        let at = header_start.saturating_add(flaw.at as u64);
        broken_at!(at, "the header is damaged at byte {at}: {}", flaw.why)
    })?;
    let data_bytes = data_bytes(&literal).map_err(|no_size| match no_size {
        NoSize::Wrong(why) => Fault::at(header_start, why),
        NoSize::Unknown(why) => Fault::Unknown(why),
    })?;
    let there = size_bytes - header_end;
    if data_bytes > there {
        let (array, missing) = (bytes(data_bytes), bytes(data_bytes - there));
        return Err(broken_at!(
            size_bytes,
            "the array takes {array}, and the file ends {missing} too early: the save was cut off"
        ));
    }
    Ok(header_end + data_bytes)
}

/// Returns the offset and the length of the description.
fn header_place(source: &dyn ReadAt, start: u64) -> Result<(u64, u64), Fault> {
    let piece = |offset: u64, length: u64| {
        let size_bytes = source.size_bytes();
        if start.saturating_add(offset + length) > size_bytes {
            let size = bytes(size_bytes);
            return Err(broken_at!(
                start,
                "the file ends after {size}, in the beginning of a header: the save was cut off"
            ));
        }
        read_piece(source, start + offset, length, length, "the beginning of the header")
    };
    let prefix = piece(0, 8)?;
    let Some(version) = prefix.strip_prefix(MAGIC) else {
        return Err(broken_at!(
            start,
            "the file does not begin with the magic bytes of NumPy: it has another format, or its beginning is lost"
        ));
    };
    let length_bytes = match version {
        [1, 0] => 2,
        [2 | 3, 0] => 4,
        _ => {
            return Err(unknown!("the array is of format version {version:?}; 1.0, 2.0 and 3.0 are known"));
        }
    };
    let length = number(&piece(8, length_bytes)?, 0, 8);
    Ok((start + 8 + length_bytes, length))
}

/// Returns the size of the elements.
fn data_bytes(header: &Literal) -> Result<u64, NoSize> {
    let wrong = |why: &str| NoSize::Wrong(why.to_owned());
    let Literal::Dictionary(entries) = header else {
        return Err(wrong("the header is not a dictionary"));
    };
    // As in Python, the last value of a duplicate key counts.
    let field = |name: &str| {
        let entry = entries.iter().rev().find(|(key, _)| matches!(key, Literal::Text(key) if key == name));
        entry.map(|(_, value)| value).ok_or_else(|| NoSize::Wrong(format!("the header lacks {name}")))
    };
    let (description, order, shape) = (field("descr")?, field("fortran_order")?, field("shape")?);
    let own = |key: &Literal| matches!(key, Literal::Text(key) if ["descr", "fortran_order", "shape"].contains(&key.as_str()));
    if !entries.iter().all(|(key, _)| own(key)) {
        return Err(wrong("the header has keys other than descr, fortran_order and shape"));
    }
    if !matches!(order, Literal::Truth(_)) {
        return Err(wrong("fortran_order in the header is neither True nor False"));
    }
    elements(shape)?.checked_mul(element_bytes(description)?).ok_or_else(too_large)
}

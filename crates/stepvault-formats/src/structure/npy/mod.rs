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

mod literal;

use self::literal::Literal;
use super::cursor::number;
use super::text::{bytes, shown};
use crate::soundness::{Fault, broken_at, read_piece, unknown};
use crate::tree::ReadAt;

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

/// Why the size of an element is unknown.
#[derive(Debug, PartialEq, Eq)]
enum NoSize {
    /// The dtype does not exist.
    Wrong(String),
    /// Only Python can interpret the bytes of this dtype.
    Unknown(String),
}

/// Returns the size of an element in bytes. The description has the forms that `numpy.lib.format.descr_to_dtype`
/// accepts: a string, a tuple of a dtype and a shape, or a list of fields.
fn element_bytes(description: &Literal) -> Result<u64, NoSize> {
    match description {
        Literal::Text(text) => of_text(text),
        Literal::Tuple(pair) => match pair.as_slice() {
            [element, shape] => times(element_bytes(element)?, shape),
            _ => Err(wrong("a tuple other than a dtype and a shape")),
        },
        Literal::List(fields) => fields
            .iter()
            .try_fold(0_u64, |total, field| total.checked_add(of_field(field)?).ok_or_else(too_large)),
        Literal::Number(_) | Literal::Truth(_) | Literal::Dictionary(_) => {
            Err(wrong("neither a string nor a list of fields"))
        }
    }
}

fn of_field(field: &Literal) -> Result<u64, NoSize> {
    let Literal::Tuple(parts) = field else {
        return Err(wrong("a field that is not a tuple"));
    };
    match parts.as_slice() {
        [_, description] => element_bytes(description),
        [_, description, shape] => times(element_bytes(description)?, shape),
        _ => Err(wrong("a field that is not a name, a dtype and a shape")),
    }
}

fn times(element_bytes: u64, shape: &Literal) -> Result<u64, NoSize> {
    let elements = match shape {
        Literal::Number(length) => *length,
        _ => elements(shape)?,
    };
    elements.checked_mul(element_bytes).ok_or_else(too_large)
}

/// Returns the product of a tuple of dimensions.
fn elements(shape: &Literal) -> Result<u64, NoSize> {
    let no_shape = || NoSize::Wrong("the header has a shape that is not a tuple of numbers".to_owned());
    let Literal::Tuple(dimensions) = shape else {
        return Err(no_shape());
    };
    dimensions.iter().try_fold(1_u64, |product, dimension| match dimension {
        Literal::Number(length) => product.checked_mul(*length).ok_or_else(too_large),
        _ => Err(no_shape()),
    })
}

/// Parses `<f4`, `|S5`, `<M8[ns]`: byte order, kind, size.
fn of_text(text: &str) -> Result<u64, NoSize> {
    let no_dtype = || wrong(&format!("the dtype {}, which NumPy does not have", shown(text)));
    let rest = text.strip_prefix(['<', '>', '|', '=']).unwrap_or(text);
    let mut characters = rest.chars();
    let kind = characters.next().ok_or_else(no_dtype)?;
    let rest = characters.as_str();
    let (digits, unit) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
    if kind == 'O' {
        return Err(NoSize::Unknown(
            "the array holds Python objects, stored as a pickle, which is not checked".to_owned(),
        ));
    }
    if kind == 'T' {
        return Err(NoSize::Unknown(
            "the array holds variable-length strings, whose layout is unknown".to_owned(),
        ));
    }
    let has_unit = matches!(kind, 'M' | 'm') && unit.ends_with(']');
    if !unit.is_empty() && !has_unit {
        return Err(no_dtype());
    }
    if digits.is_empty() && kind == '?' {
        return Ok(1);
    }
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let size = digits.parse::<u64>().ok().filter(|_| is_number).ok_or_else(no_dtype)?;
    let sizes: &[u64] = match kind {
        'b' => &[1],
        'i' | 'u' => &[1, 2, 4, 8],
        'f' => &[2, 4, 8, 12, 16],
        'c' => &[8, 16, 24, 32],
        'M' | 'm' => &[8],
        'S' | 'a' | 'V' => return Ok(size),
        'U' => return size.checked_mul(4).ok_or_else(too_large),
        _ => return Err(no_dtype()),
    };
    if sizes.contains(&size) { Ok(size) } else { Err(no_dtype()) }
}

fn wrong(what: &str) -> NoSize {
    NoSize::Wrong(format!("the header describes the elements by {what}"))
}

fn too_large() -> NoSize {
    NoSize::Wrong("the header describes an array larger than any file".to_owned())
}

#[cfg(test)]
mod tests {
    use super::literal::parse;
    use super::*;

    fn size(description: &str) -> Result<u64, NoSize> {
        element_bytes(&parse(description.as_bytes()).unwrap())
    }

    #[test]
    fn elements_have_the_size_that_numpy_gives_them() {
        for (description, bytes) in [
            ("'<f4'", 4),
            ("'>f2'", 2),
            ("'|b1'", 1),
            ("'?'", 1),
            ("'<u8'", 8),
            ("'<c16'", 16),
            ("'<f16'", 16),
            ("'<M8[ns]'", 8),
            ("'<m8'", 8),
            ("'<U5'", 20),
            ("'|S5'", 5),
            ("'|V2'", 2),
            ("('<f4', (2, 3))", 24),
            ("('<f4', 3)", 12),
            ("[('a', '<f4'), ('', '|V4'), (('title', 'b'), '|u1', (2, 3))]", 14),
            ("[('a', [('b', '<i2')])]", 2),
            ("[]", 0),
        ] {
            assert_eq!(size(description), Ok(bytes), "{description}");
        }
    }

    #[test]
    fn what_is_no_dtype_is_refused() {
        for description in [
            "'<f3'",
            "'<f'",
            "''",
            "'<'",
            "'<q8'",
            "'<f4[ns]'",
            "'<f+4'",
            "'<M8[ns'",
            "'float32'",
            "7",
            "('<f4',)",
            "['<f4']",
            "[('a',)]",
            "('<f4', ('x',))",
        ] {
            assert!(matches!(size(description), Err(NoSize::Wrong(_))), "{description}");
        }
        assert_eq!(
            size("'<f3'"),
            Err(NoSize::Wrong(
                "the header describes the elements by the dtype <f3, which NumPy does not have".to_owned()
            ))
        );
        assert_eq!(
            size("[('a', '|V18446744073709551615'), ('b', '|u1')]"),
            Err(NoSize::Wrong("the header describes an array larger than any file".to_owned()))
        );
        for description in ["'|O'", "[('a', '|O8')]", "'|T16'"] {
            assert!(matches!(size(description), Err(NoSize::Unknown(_))), "{description}");
        }
    }
}

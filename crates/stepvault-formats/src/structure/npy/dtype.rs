//! The size in bytes of an element of an `.npy` array.

use super::literal::Literal;
use crate::structure::text::shown;

/// Why the size of an element is unknown.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoSize {
    /// The dtype does not exist.
    Wrong(String),
    /// Only Python can interpret the bytes of this dtype.
    Unknown(String),
}

/// Returns the size of an element in bytes. The description has the forms that `numpy.lib.format.descr_to_dtype`
/// accepts: a string, a tuple of a dtype and a shape, or a list of fields.
pub(super) fn element_bytes(description: &Literal) -> Result<u64, NoSize> {
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
pub(super) fn elements(shape: &Literal) -> Result<u64, NoSize> {
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

pub(super) fn too_large() -> NoSize {
    NoSize::Wrong("the header describes an array larger than any file".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::literal::parse;
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

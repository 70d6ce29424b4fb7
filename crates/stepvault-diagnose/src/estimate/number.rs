//! Large counts as users write them: `30e9`, `7B`, `1.5T`, `350M`, `8_030_261_248`.

use stepvault_core::error::{Error, ErrorKind, Result};

/// The suffix letters of a number, with their powers of ten.
const LETTERS: [(char, i32); 5] = [('k', 3), ('m', 6), ('b', 9), ('g', 9), ('t', 12)];
/// More digits than any count has; a longer text is a mistake.
const MAX_DIGITS: usize = 30;

/// Reads a whole number without rounding: `7B` is 7,000,000,000, and `1.5` is an error.
///
/// # Errors
/// [`ErrorKind::Usage`], with the correct notation as the hint.
pub fn parse_count(text: &str) -> Result<u64> {
    count(text.trim()).map_err(|why| {
        Error::new(ErrorKind::Usage, "not a count")
            .on(format!("{text:?}"))
            .because(why)
            .hint("write 250000, 30e9, 7B, 1.5T or 350M")
    })
}

fn count(text: &str) -> std::result::Result<u64, &'static str> {
    const NO_NUMBER: &str = "it is not a number";
    const TOO_LARGE: &str = "it is out of range";
    let letter = text.chars().last().map(|letter| letter.to_ascii_lowercase());
    let known = LETTERS.iter().find(|(name, _)| Some(*name) == letter);
    let (text, mut exponent) = match known {
        // The letter is ASCII: one byte.
        Some((_, power)) => (text.get(..text.len() - 1).unwrap_or_default(), *power),
        None => (text, 0),
    };
    let (number, power) = match text.split_once(['e', 'E']) {
        Some((number, power)) => (number, power.parse::<i32>().map_err(|_| NO_NUMBER)?),
        None => (text, 0),
    };
    exponent = exponent.checked_add(power).ok_or(TOO_LARGE)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = whole.replace('_', "") + fraction;
    let are_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits || !whole.starts_with(|letter: char| letter.is_ascii_digit()) {
        return Err(NO_NUMBER);
    }
    if digits.len() > MAX_DIGITS {
        return Err(TOO_LARGE);
    }
    let mantissa: u128 = digits.parse().map_err(|_| NO_NUMBER)?;
    let fraction_digits = i32::try_from(fraction.len()).map_err(|_| TOO_LARGE)?;
    let scale = exponent.checked_sub(fraction_digits).ok_or(TOO_LARGE)?;
    let value = match 10_u128.checked_pow(scale.unsigned_abs()) {
        _ if mantissa == 0 => Some(0),
        Some(factor) if scale >= 0 => mantissa.checked_mul(factor),
        Some(divisor) if mantissa.is_multiple_of(divisor) => Some(mantissa / divisor),
        _ if scale < 0 => return Err("it is not a whole number"),
        _ => None,
    };
    value.and_then(|value| u64::try_from(value).ok()).ok_or(TOO_LARGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_exactly() {
        for (text, expected) in [
            ("0", 0),
            ("250000", 250_000),
            ("250_000", 250_000),
            ("30e9", 30_000_000_000),
            ("30E+9", 30_000_000_000),
            ("7B", 7_000_000_000),
            ("7b", 7_000_000_000),
            ("6.7G", 6_700_000_000),
            ("1.5T", 1_500_000_000_000),
            ("350M", 350_000_000),
            ("22.5k", 22_500),
            (" 8_030_261_248 ", 8_030_261_248),
            ("8.030261248e9", 8_030_261_248),
            ("100e-2", 1),
            ("0e99999", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_count(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_count_says_what_to_write() {
        for (text, why) in [
            ("", "it is not a number"),
            ("B", "it is not a number"),
            ("seven", "it is not a number"),
            ("-1", "it is not a number"),
            ("1e", "it is not a number"),
            ("1e9e9", "it is not a number"),
            (".5B", "it is not a number"),
            ("1,5B", "it is not a number"),
            ("7µ", "it is not a number"),
            ("1.5", "it is not a whole number"),
            ("1e-1", "it is not a whole number"),
            ("1e20", "it is out of range"),
            ("1e99999999999", "it is not a number"),
            ("1e2147483647T", "it is out of range"),
            ("1e-2147483648", "it is not a whole number"),
            ("18446744073709551616", "it is out of range"),
            ("1000000000000000000000000000000000000000", "it is out of range"),
        ] {
            let error = parse_count(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert_eq!(error.to_string(), format!("not a count: {text:?}: {why}"));
            assert_eq!(error.hint_text(), Some("write 250000, 30e9, 7B, 1.5T or 350M"));
        }
    }
}

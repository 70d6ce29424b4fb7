//! Sizes and durations as users write them. A bare number is rejected, because its unit is unknown.

use std::time::Duration;

use super::finding::Fault;
use crate::error::{Error, ErrorKind, Result};

/// Reads a size in bytes: `8 MiB`, `100GB`, `512 B`.
///
/// # Errors
/// [`ErrorKind::Usage`], with the correct notation as the hint.
pub fn parse_size(text: &str) -> Result<u64> {
    size(text).map_err(|fault| {
        Error::new(ErrorKind::Usage, "not a size").on(format!("{text:?}")).because(fault.why).hint(fault.hint)
    })
}

/// Reads a duration: `30s`, `10m`, `2d`, `1h 30m`.
///
/// # Errors
/// [`ErrorKind::Usage`], with the correct notation as the hint.
pub fn parse_duration(text: &str) -> Result<Duration> {
    duration(text).map_err(|fault| {
        Error::new(ErrorKind::Usage, "not a duration")
            .on(format!("{text:?}"))
            .because(fault.why)
            .hint(fault.hint)
    })
}

pub(super) fn size(text: &str) -> std::result::Result<u64, Fault> {
    const EXAMPLE: &str = "write a number and a unit: \"8 MiB\", \"500 GB\"";
    let text = text.trim();
    if let Ok(number) = text.parse::<u64>() {
        let hint = format!("write \"{number} B\", \"{number} MiB\" or \"{number} GiB\"");
        return Err(Fault::new("it has no unit", hint));
    }
    let number_end =
        text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let amount = number.parse::<f64>().map_err(|_| Fault::new("it is not a size", EXAMPLE))?;
    let size = text.parse::<bytesize::ByteSize>().map_err(|_| {
        let why = format!("'{}' is not a unit of size", unit.trim());
        Fault::new(why, "units are B, KiB, MiB, GiB, TiB, and kB, MB, GB, TB for powers of ten")
    })?;
    // The parser returns the largest number instead of an overflow error.
    if size.as_u64() == u64::MAX || (amount > 0.0 && size.as_u64() == 0) {
        return Err(Fault::new("it is out of range", EXAMPLE));
    }
    Ok(size.as_u64())
}

pub(super) fn duration(text: &str) -> std::result::Result<Duration, Fault> {
    let text = text.trim();
    if let Ok(number) = text.parse::<u64>() {
        let hint = format!("write \"{number}s\", \"{number}m\" or \"{number}h\"");
        return Err(Fault::new("it has no unit", hint));
    }
    humantime::parse_duration(text).map_err(|error| match error {
        humantime::DurationError::UnknownUnit { unit, .. } if !unit.is_empty() => {
            Fault::new(format!("'{unit}' is not a unit of time"), "units are ms, s, m, h, d and w")
        }
        _ => Fault::new("it is not a duration", "write a number and a unit: \"30s\", \"10m\", \"2d\""),
    })
}

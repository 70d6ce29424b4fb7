//! Formats numbers for findings.

use std::time::Duration;

pub(super) use stepvault_core::words::{bytes, count};

/// Formats bytes per second in powers of 1000, as `dd` and disk manufacturers do: `82 MB/s`.
pub(super) fn rate(bytes_per_second: u64) -> String {
    match bytes_per_second {
        10_000_000.. => format!("{} MB/s", bytes_per_second / 1_000_000),
        1_000_000.. => format!(
            "{}.{} MB/s",
            bytes_per_second / 1_000_000,
            bytes_per_second % 1_000_000 / 100_000
        ),
        1_000.. => format!("{} kB/s", bytes_per_second / 1_000),
        _ => format!("{bytes_per_second} B/s"),
    }
}

/// Formats a duration: `8.4 ms`, `1.3 s`, `2m 5s`.
pub(super) fn time(seconds: f64) -> String {
    // A century is enough for every duration here, and a rate of 0 must not overflow.
    let seconds = seconds.clamp(0.0, 3_000_000_000.0);
    let length = Duration::from_secs_f64(seconds);
    if length.is_zero() {
        "0 s".to_owned()
    } else if seconds < 0.01 {
        format!("{:.1} ms", seconds * 1000.0)
    } else if seconds < 1.0 {
        format!("{} ms", length.as_millis())
    } else if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        // The two or three largest units are precise enough.
        let whole = length.as_secs();
        let unit = match whole {
            0..HOUR => 1,
            HOUR..DAY => 60,
            _ => HOUR,
        };
        humantime::format_duration(Duration::from_secs(whole - whole % unit)).to_string()
    }
}

/// Formats a duration in whole seconds: `47 s`, `2m 5s`.
pub(super) fn whole_seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        _ => time(Duration::from_secs(seconds).as_secs_f64()),
    }
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// Returns the seconds that `bytes` take at this rate; a rate of 0 counts as 1.
#[expect(clippy::cast_precision_loss, reason = "a forecast, not an account")]
pub(super) fn seconds_for(bytes: u64, bytes_per_second: u64) -> f64 {
    bytes as f64 / bytes_per_second.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(rate(82_900_000), "82 MB/s");
        assert_eq!(rate(4_250_000), "4.2 MB/s");
        assert_eq!(rate(9_000), "9 kB/s");
        assert_eq!(rate(12), "12 B/s");
        assert_eq!(time(0.0), "0 s");
        assert_eq!(time(0.0084), "8.4 ms");
        assert_eq!(time(0.084), "84 ms");
        assert_eq!(time(1.34), "1.3 s");
        assert_eq!(time(125.9), "2m 5s");
        assert_eq!(time(90_061.0), "1day 1h");
        assert_eq!(time(3_725.0), "1h 2m");
        assert_eq!(time(f64::INFINITY), time(3_000_000_000.0));
        assert_eq!(whole_seconds(47), "47 s");
        assert_eq!(whole_seconds(3_725), "1h 2m");
        assert_eq!(whole_seconds(u64::MAX), time(3_000_000_000.0));
        assert_eq!(count(2, "entry"), "2 entries");
        assert!((seconds_for(300, 100) - 3.0).abs() < 1e-9);
        assert!((seconds_for(300, 0) - 300.0).abs() < 1e-9);
    }
}

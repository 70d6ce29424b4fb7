//! Formats numbers for people, the same in every message: sizes and rates in powers of 1024, durations with one unit
//! or two.

use std::time::Duration;

use bytesize::ByteSize;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// A century: longer than every duration here. An estimate at a rate of 0 must not overflow.
const MAX_SECONDS: f64 = 3_000_000_000.0;

/// Formats a number of bytes: `1.5 GiB`.
pub fn bytes(count: u64) -> String {
    ByteSize::b(count).display().iec().to_string()
}

/// Formats bytes per second: `79.1 MiB/s`.
pub fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", bytes(bytes_per_second))
}

/// Formats a duration: `8.4ms`, `85ms`, `1.3s`, `47s`, `2m 5s`, `1day 1h`.
pub fn duration(length: Duration) -> String {
    let seconds = length.as_secs();
    // The two or three largest units are precise enough.
    let precision = match seconds {
        0..HOUR => 1,
        HOUR..DAY => MINUTE,
        DAY.. => HOUR,
    };
    match (seconds, length.subsec_nanos()) {
        (0, 1..10_000_000) => format!("{:.1}ms", length.as_secs_f64() * 1000.0),
        (0, 10_000_000..) => format!("{}ms", length.as_millis()),
        (1..MINUTE, 1..) => format!("{:.1}s", length.as_secs_f64()),
        _ => humantime::format_duration(Duration::from_secs(seconds - seconds % precision)).to_string(),
    }
}

/// Formats a duration in seconds as [`duration`] does.
pub fn seconds(length: f64) -> String {
    duration(Duration::try_from_secs_f64(length.clamp(0.0, MAX_SECONDS)).unwrap_or_default())
}

/// Quotes a text as one word of a POSIX shell.
pub fn shell_word(text: &str) -> String {
    // No argument holds a NUL; a text that does is quoted all the same.
    match shlex::Quoter::new().allow_nul(true).quote(text) {
        Ok(word) => word.into_owned(),
        Err(_) => text.to_owned(),
    }
}

/// Formats a count with its noun: `1 file`, `3 files`, `0 entries`.
pub fn count(number: u64, word: &str) -> String {
    match (number, word.strip_suffix('y')) {
        (1, _) => format!("1 {word}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {word}s"),
    }
}

/// Formats the first `most` names, and the number of the others; `unnamed` more may not be among the names.
pub fn first_of(names: impl IntoIterator<Item: ToString>, most: usize, unnamed: u64) -> String {
    let mut names = names.into_iter();
    let first: Vec<String> = names.by_ref().take(most).map(|name| name.to_string()).collect();
    match unnamed.saturating_add(names.count() as u64) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(rate(82_900_000), "79.1 MiB/s");
        assert_eq!(rate(9 << 10), "9.0 KiB/s");
        assert_eq!(rate(12), "12 B/s");
        assert_eq!(count(1, "file"), "1 file");
        assert_eq!(count(0, "file"), "0 files");
        assert_eq!(count(2, "entry"), "2 entries");
    }

    #[test]
    fn durations_are_short() {
        for (length, text) in [
            (0.0, "0s"),
            (0.0084, "8.4ms"),
            (0.084, "84ms"),
            (1.34, "1.3s"),
            (47.0, "47s"),
            (125.9, "2m 5s"),
            (3_725.0, "1h 2m"),
            (90_061.0, "1day 1h"),
        ] {
            assert_eq!(seconds(length), text);
        }
        assert_eq!(seconds(f64::INFINITY), seconds(MAX_SECONDS));
        assert_eq!(seconds(f64::NAN), "0s");
    }

    #[test]
    fn a_word_of_a_shell_is_one_word() {
        for text in ["/out/step_1", "/my out/it's", "", "/a$(x)", "a=b c\"d", "-n"] {
            assert_eq!(shlex::split(&format!("rm {}", shell_word(text))).unwrap(), ["rm", text]);
        }
        assert_eq!(shell_word("/out/step_1"), "/out/step_1");
    }
}

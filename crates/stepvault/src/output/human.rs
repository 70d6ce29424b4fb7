//! Formats numbers, times and errors for people.

use std::borrow::Cow;
use std::time::Duration;

use itertools::Itertools as _;
use stepvault_core::Error;
pub(crate) use stepvault_core::words::{bytes, count, duration, rate as per_second, seconds};

/// Formats an error as `error: what: subject: why`, with the hint on the next line.
pub(crate) fn error(error: &Error) -> String {
    match error.hint_text() {
        Some(hint) => format!("error: {error}\n  hint: {hint}"),
        None => format!("error: {error}"),
    }
}

/// Escapes control characters, so that text from foreign records or responses cannot control the terminal.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    // The second kind changes the writing direction, so that a name could be displayed as another one.
    let takes_effect = |letter: char| {
        letter.is_control() && !matches!(letter, '\n' | '\t')
            || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(takes_effect) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        if takes_effect(letter) {
            plain.extend(letter.escape_default());
        } else {
            plain.push(letter);
        }
    }
    Cow::Owned(plain)
}

/// Formats the part of a transfer that the store copied, as a suffix: `, 1.0 GiB of it copied in the store`. Empty for
/// 0 bytes.
pub(crate) fn copied(count: u64) -> String {
    match count {
        0 => String::new(),
        count => format!(", {} of it copied in the store", bytes(count)),
    }
}

/// Formats the rate of a transfer: `310.0 MiB/s`. Returns `None` if `length` is zero.
pub(crate) fn rate(count: u64, length: Duration) -> Option<String> {
    let nanoseconds = length.as_nanos();
    let rate = u128::from(count).saturating_mul(1_000_000_000).checked_div(nanoseconds)?;
    Some(per_second(u64::try_from(rate).unwrap_or(u64::MAX)))
}

/// Formats metrics on one line: `accuracy=0.9 loss=0.25`.
pub(crate) fn metrics<'a>(metrics: impl IntoIterator<Item = (&'a String, &'a f64)>) -> String {
    let metrics = metrics.into_iter();
    metrics.map(|(name, value)| format!("{name}={value}")).join(" ")
}

#[cfg(test)]
mod tests {
    use stepvault_core::ErrorKind;

    use super::*;

    #[test]
    fn errors_end_with_what_to_do() {
        let fault = Error::new(ErrorKind::Usage, "no run selected").hint("give --run NAME");
        assert_eq!(error(&fault), "error: no run selected\n  hint: give --run NAME");
        assert_eq!(error(&Error::new(ErrorKind::Failed, "cannot")), "error: cannot");
    }

    #[test]
    fn what_would_take_effect_in_a_terminal_is_shown() {
        assert_eq!(printable("a\tb\nü"), "a\tb\nü");
        assert_eq!(printable("\u{1b}[2Jgone\u{7}\r\u{9b}1m"), "\\u{1b}[2Jgone\\u{7}\\r\\u{9b}1m");
        assert_eq!(printable("a\u{202e}gpj.exe"), "a\\u{202e}gpj.exe");
    }

    #[test]
    fn a_rate_needs_time() {
        assert_eq!(rate(2 << 20, Duration::from_secs(2)).as_deref(), Some("1.0 MiB/s"));
        assert_eq!(rate(1, Duration::ZERO), None);
    }
}

//! Formats names from files for use in messages.

use stepvault_core::words;

/// The maximum length of a name in a message.
const SHOWN_CHARACTERS: usize = 120;

/// Formats a name from a file on one line, shortened and with everything escaped that is not printable, so that a
/// hostile file cannot write on the reader's terminal.
pub(crate) fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(SHOWN_CHARACTERS).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN_CHARACTERS).is_some() {
        shown.push('…');
    }
    shown
}

/// `1 byte`, `2 bytes`.
pub(crate) fn bytes(count: u64) -> String {
    words::count(count, "byte")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_stays_on_its_line() {
        assert_eq!(shown("layers.0.weight"), "layers.0.weight");
        assert_eq!(shown("a\n\u{1b}[2J重"), "a\\n\\u{1b}[2J重");
        let long = shown(&"x".repeat(10_000));
        assert_eq!(long.chars().count(), SHOWN_CHARACTERS + 1);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn counts_read_as_words() {
        assert_eq!(bytes(1), "1 byte");
        assert_eq!(words::count(0, "tensor"), "0 tensors");
    }
}

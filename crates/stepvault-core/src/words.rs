//! Numbers as people read them, the same in every message.

use bytesize::ByteSize;

/// A number of bytes: `1.5 GiB`.
pub fn bytes(count: u64) -> String {
    ByteSize::b(count).display().iec().to_string()
}

/// A count with its word: `1 file`, `3 files`, `0 entries`.
pub fn count(number: u64, word: &str) -> String {
    match (number, word.strip_suffix('y')) {
        (1, _) => format!("1 {word}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {word}s"),
    }
}

//! Numbers in words, the same in every message.

use bytesize::ByteSize;

/// Formats a number of bytes: `1.5 GiB`.
pub fn bytes(count: u64) -> String {
    ByteSize::b(count).display().iec().to_string()
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

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn a_word_of_a_shell_is_one_word() {
        for text in ["/out/step_1", "/my out/it's", "", "/a$(x)", "a=b c\"d", "-n"] {
            assert_eq!(
                shlex::split(&format!("rm {}", shell_word(text))).unwrap(),
                ["rm", text]
            );
        }
        assert_eq!(shell_word("/out/step_1"), "/out/step_1");
    }
}

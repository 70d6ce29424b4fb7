//! Documents and sections that are generated from the program's output.

use std::path::Path;

use crate::place::{read, repository};

const END: &str = "<!-- end of what is generated -->";

fn is_blessed() -> bool {
    std::env::var_os("STEPVAULT_BLESS").is_some_and(|value| !value.is_empty())
}

/// Compares a document with what it should be, or writes it when `STEPVAULT_BLESS` is set.
pub(crate) fn check(path: &str, expected: &str) {
    let place = repository().join(path);
    if is_blessed() {
        std::fs::create_dir_all(place.parent().unwrap_or(Path::new("/"))).unwrap();
        std::fs::write(&place, expected).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&place).unwrap_or_default();
    if found == expected {
        return;
    }
    let line = found
        .lines()
        .zip(expected.lines())
        .take_while(|(found, expected)| found == expected)
        .count();
    panic!(
        "{path} is out of date from line {} on:\n  it says      {:?}\n  it should be {:?}\n\
         `STEPVAULT_BLESS=1 cargo test -p stepvault --bin stepvault --test docs` writes it anew",
        line + 1,
        found.lines().nth(line).unwrap_or_default(),
        expected.lines().nth(line).unwrap_or_default()
    );
}

/// The same for the section that begins with the line `begin`.
pub(crate) fn check_section(path: &str, begin: &str, expected: &str) {
    let document = read(path);
    let start = document
        .find(begin)
        .unwrap_or_else(|| panic!("{path} has no line {begin:?}"))
        + begin.len();
    let length = document[start..]
        .find(END)
        .unwrap_or_else(|| panic!("{path} has no end of what is generated"));
    let whole = format!(
        "{}\n{}\n{}",
        &document[..start],
        expected.trim_end(),
        &document[start + length..]
    );
    check(path, &whole);
}

/// The first lines of a generated document.
pub(crate) fn heading(title: &str, source: &str) -> String {
    format!(
        "# {title}\n\n<!-- Generated from {source}; do not edit. \
         `STEPVAULT_BLESS=1 cargo test -p stepvault --bin stepvault --test docs` writes it anew. -->\n\n"
    )
}

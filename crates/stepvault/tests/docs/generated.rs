//! Documents and sections that are generated from the program's output.

use std::path::Path;

use crate::place::{read, repository};

const BEGIN: &str = "<!-- Generated from ";
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
    let line = found.lines().zip(expected.lines()).take_while(|(found, expected)| found == expected).count();
    panic!(
        "{path} is out of date from line {} on:\n  it says      {:?}\n  it should be {:?}\n\
         `STEPVAULT_BLESS=1 cargo test -p stepvault --bin stepvault --test docs` writes it anew",
        line + 1,
        found.lines().nth(line).unwrap_or_default(),
        expected.lines().nth(line).unwrap_or_default()
    );
}

/// The same for what stands behind the line that says what it is generated from, up to the line that ends it, if any.
pub(crate) fn check_generated(path: &str, expected: &str) {
    let document = read(path);
    let (before, rest) =
        document.split_once(BEGIN).unwrap_or_else(|| panic!("{path} does not say what is generated"));
    let source = rest.lines().next().unwrap_or_default();
    let after = rest.split_once(END).map_or(String::new(), |(_, after)| format!("{END}{after}"));
    let whole = format!("{before}{BEGIN}{source}\n\n{}\n{after}", expected.trim());
    check(path, &whole);
}

//! Checks that every defence in docs/security.md has a test.

use std::collections::BTreeSet;
use std::path::Path;

use crate::place::{read, repository};

#[test]
fn every_defence_names_a_test_that_exists() {
    let text = read("docs/security.md");
    let (_, table) = text.split_once("| Attack | What happens | Test |").unwrap();
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 15, "{} rows", rows.len());
    let tests = tests_of(&repository().join("crates"));
    let mut faults = Vec::new();
    for row in rows {
        let cell = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let named: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            faults.push(format!("no test: {row}"));
        }
        let missing = named.iter().filter(|name| !tests.contains(**name));
        faults.extend(missing.map(|name| format!("there is no test {name}: {row}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The names of all functions that are marked as tests.
fn tests_of(directory: &Path) -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            tests.append(&mut tests_of(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let mut is_marked = false;
            for line in text.lines().map(str::trim_start) {
                is_marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                let Some((_, rest)) = line.split_once("fn ").filter(|_| is_marked && !line.starts_with("//"))
                else {
                    continue;
                };
                tests.extend(rest.split_once('(').map(|(name, _)| name.to_owned()));
                is_marked = false;
            }
        }
    }
    tests
}

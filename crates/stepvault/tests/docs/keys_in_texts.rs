//! Checks that configuration keys in messages and hints exist and are spelled as in the file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::place::{read, repository};

/// Comments, which say what they like, the kinds of strings there are, and characters, of which one may be a quote.
const LITERALS: &str = r###"(?s)//[^\n]*|r##"(?<two>.*?)"##|r#"(?<one>.*?)"#|r"(?<none>[^"]*)"|"(?<plain>(?:[^"\\]|\\.)*)"|'(?:[^'\\]|\\.[^']*)'"###;
/// What looks like a key, and is one wherever it stands so.
const NAMED: [&str; 2] =
    [r"\b([a-z]+(?:-[a-z]+)+) = ", r"\b(?:set|raise|lower|correct|with) ([a-z]+(?:-[a-z]+)+)\b"];
/// A key with its table.
const QUALIFIED: &str = r"(?:^|[^\w.-])(local|upload|agent|restart|doctor)\.([a-z]+(?:-[a-z]+)*)\b";
/// Files that are called after a table.
const FILES: [&str; 2] = ["json", "sock"];

#[test]
fn every_key_in_a_message_is_one_of_the_configurations() {
    let tables = tables();
    let keys: BTreeSet<&str> = tables.values().flatten().map(String::as_str).collect();
    let underscored: BTreeMap<String, &str> =
        keys.iter().filter(|key| key.contains('-')).map(|key| (key.replace('-', "_"), *key)).collect();
    let [literals, word, placeholder, qualified] =
        [LITERALS, r"[a-z]+(?:_[a-z]+)+", r"\{[^}]*\}", QUALIFIED].map(|text| Regex::new(text).unwrap());
    let named = NAMED.map(|text| Regex::new(text).unwrap());
    let (mut faults, mut found) = (Vec::new(), 0);
    for path in sources() {
        for text in texts(&literals, &read(&path)) {
            let text = placeholder.replace_all(&text, "{}");
            let mut fault = |why: String| faults.push(format!("{}: {why}: {text:?}", path.display()));
            for one in word.find_iter(&text) {
                if let Some(key) = underscored.get(one.as_str()) {
                    fault(format!("it is written '{key}'"));
                }
            }
            for one in named.iter().flat_map(|named| named.captures_iter(&text)) {
                found += 1;
                if !keys.contains(&one[1]) {
                    fault(format!("there is no key '{}'", &one[1]));
                }
            }
            for one in qualified.captures_iter(&text) {
                found += 1;
                if !tables[&one[1]].contains(&one[2]) && !FILES.contains(&&one[2]) {
                    fault(format!("there is no key '{}.{}'", &one[1], &one[2]));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(found >= 30, "only {found} keys were found in messages");
}

/// The keys by the first word of their table, as the configuration file has them.
pub(crate) fn tables() -> BTreeMap<String, BTreeSet<String>> {
    let header = Regex::new(r"^#?\[([a-z]+)").unwrap();
    let key = Regex::new(r"^#?([a-z][a-z-]*) = ").unwrap();
    let mut tables: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut table = String::new();
    for line in read("config/stepvault.toml").lines() {
        if let Some(name) = header.captures(line) {
            name[1].clone_into(&mut table);
        } else if let Some(name) = key.captures(line) {
            tables.entry(table.clone()).or_default().insert(name[1].to_owned());
        }
    }
    tables
}

/// The sources of the program: neither its tests nor what only tests use.
fn sources() -> Vec<PathBuf> {
    let mut sources = Vec::new();
    let mut pending = vec![PathBuf::from("crates")];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(repository().join(&directory)).unwrap() {
            let path = directory.join(entry.unwrap().file_name());
            let name = path.file_name().unwrap().to_str().unwrap();
            let tests = ["tests", "fuzz", "benches", "stepvault-bench", "stepvault-testkit"].contains(&name);
            if repository().join(&path).is_dir() {
                if !tests {
                    pending.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !name.ends_with("tests.rs")
            {
                sources.push(path);
            }
        }
    }
    assert!(sources.contains(&Path::new("crates/stepvault-remote/src/http/endpoint.rs").to_path_buf()));
    sources
}

/// The strings of a source before its own tests, as they come out.
fn texts(literals: &Regex, source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let continued = Regex::new(r"\\\n\s*").unwrap();
    let found = literals.captures_iter(source).filter_map(|found| {
        let text = ["two", "one", "none", "plain"].iter().find_map(|name| found.name(name))?;
        Some(continued.replace_all(text.as_str(), "").into_owned())
    });
    found.collect()
}

#[test]
fn strings_are_told_from_what_is_around_them() {
    let source = "// \"no\" it's\nlet a = 'x'; f::<'a>('\"', \"one \\\"two\\\" \\\n    three\"); r\"four\" r#\"fi\"ve\"#\n\
                  #[cfg(test)]\nmod tests { \"six\" }";
    let found = texts(&Regex::new(LITERALS).unwrap(), source);
    assert_eq!(found, ["one \\\"two\\\" three", "four", "fi\"ve"]);
    assert!(tables()["agent"].contains("drain-file"));
    assert!(tables()["remote"].contains("allow-http"));
}

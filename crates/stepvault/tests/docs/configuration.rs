//! docs/reference/configuration.md: config/stepvault.toml, table by table.

use crate::generated::{check, heading};
use crate::place::{Place, read};

/// What stands under one heading.
#[derive(Debug, Default)]
struct Table {
    title: String,
    about: String,
    keys: Vec<Key>,
}

/// One key, or several that share their description.
#[derive(Debug)]
struct Key {
    lines: Vec<(String, bool)>,
    about: String,
}

#[test]
fn the_reference_of_keys_is_the_configuration_file() {
    let mut text = heading("Configuration", "config/stepvault.toml");
    let (preface, tables) = parse(&read("config/stepvault.toml"));
    text.push_str(&preface);
    for table in &tables {
        text.push_str(&render(table));
    }
    check("docs/reference/configuration.md", &text);
}

#[test]
fn every_example_is_a_right_configuration() {
    let place = Place::new();
    for entry in std::fs::read_dir(place.path().join("config/examples")).unwrap() {
        let path = entry.unwrap().path();
        place.output(&format!("stepvault config check --config '{}'", path.display()));
    }
}

/// A comment that says nothing but a key or table that may be switched on.
fn switched_off(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('#')?;
    rest.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '[').then_some(rest)
}

fn parse(file: &str) -> (String, Vec<Table>) {
    let mut preface = None;
    let mut tables = vec![Table { title: "Top level".to_owned(), ..Table::default() }];
    let mut about = Vec::new();
    let mut after_key = false;
    for line in file.lines() {
        let (code, is_set) = match switched_off(line) {
            Some(code) => (code, false),
            None => (line, true),
        };
        let table = tables.last_mut().unwrap();
        if let Some(words) = line.strip_prefix("# ").or((line == "#").then_some("")) {
            about.push(words.to_owned());
        } else if line.is_empty() {
            if preface.is_none() {
                preface = Some(std::mem::take(&mut about));
            }
            after_key = false;
            continue;
        } else if let Some(title) = code.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let title = format!("`[{title}]`");
            tables.push(Table { title, about: std::mem::take(&mut about).join("\n"), keys: Vec::new() });
        } else {
            match table.keys.last_mut().filter(|_| after_key && about.is_empty()) {
                Some(key) => key.lines.push((code.to_owned(), is_set)),
                None => table.keys.push(Key {
                    lines: vec![(code.to_owned(), is_set)],
                    about: std::mem::take(&mut about).join("\n"),
                }),
            }
            after_key = true;
            continue;
        }
        after_key = false;
    }
    assert!(about.is_empty(), "a comment at the end belongs to nothing: {about:?}");
    (paragraphs(&preface.unwrap_or_default()), tables)
}

fn paragraphs(lines: &[String]) -> String {
    format!("{}\n", lines.join("\n"))
}

fn render(table: &Table) -> String {
    let mut text = format!("\n## {}\n", table.title);
    if !table.about.is_empty() {
        text.push_str(&format!("\n{}\n", table.about));
    }
    for key in &table.keys {
        let lines: Vec<&str> = key.lines.iter().map(|(line, _)| line.as_str()).collect();
        text.push_str(&format!("\n```toml\n{}\n```\n\n", lines.join("\n")));
        if !key.about.is_empty() {
            text.push_str(&format!("{} ", key.about));
        }
        let is_default = key.lines.iter().all(|(_, is_set)| *is_set);
        text.push_str(if is_default { "This is the default.\n" } else { "The value is an example.\n" });
    }
    text
}

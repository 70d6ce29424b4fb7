//! docs/reference/configuration.md, generated from config/stepvault.toml table by table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::generated::{check, heading};
use crate::place::{Place, read};

/// Just enough for every key of every table to be in force, with its default where it has one.
const BARE: &str = "[remote.s3-main]\nurl = \"s3://my-bucket/checkpoints\"\n[run.\"my-run/checkpoints\"]\n";

/// What stands under one heading.
#[derive(Debug, Default)]
struct Table {
    path: String,
    about: String,
    keys: Vec<Key>,
}

/// One key, or several that share their description.
#[derive(Debug)]
struct Key {
    lines: Vec<String>,
    about: String,
}

#[test]
fn the_reference_of_keys_is_the_configuration_file() {
    let mut text = heading("Configuration", "config/stepvault.toml");
    let (preface, tables) = parse(&read("config/stepvault.toml"));
    text.push_str(&preface);
    let defaults = defaults();
    for table in &tables {
        text.push_str(&render(table, &defaults));
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

/// The keys that have a default, as `config show` tells them.
fn defaults() -> BTreeMap<String, String> {
    let place = Place::new();
    std::fs::write(place.path().join("bare.toml"), BARE).unwrap();
    let shown: serde_json::Value =
        serde_json::from_str(&place.output("stepvault config show --config bare.toml --json")).unwrap();
    let values = shown["values"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|value| value["source"]["from"] == "default");
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    values
        .map(|value| (text(&value["key"]), text(&value["value"])))
        .collect()
}

/// A comment that says nothing but a key or table that may be switched on.
fn switched_off(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('#')?;
    rest.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '[')
        .then_some(rest)
}

fn parse(file: &str) -> (String, Vec<Table>) {
    let mut preface = None;
    let mut tables = vec![Table::default()];
    let mut about = Vec::new();
    let mut after_key = false;
    for line in file.lines() {
        let code = switched_off(line).unwrap_or(line);
        let table = tables.last_mut().unwrap();
        if let Some(words) = line.strip_prefix("# ").or((line == "#").then_some("")) {
            about.push(words.to_owned());
        } else if line.is_empty() {
            if preface.is_none() {
                preface = Some(std::mem::take(&mut about));
            }
            after_key = false;
            continue;
        } else if let Some(path) = code.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            tables.push(Table {
                path: path.to_owned(),
                about: std::mem::take(&mut about).join("\n"),
                keys: Vec::new(),
            });
        } else {
            match table.keys.last_mut().filter(|_| after_key && about.is_empty()) {
                Some(key) => key.lines.push(code.to_owned()),
                None => table.keys.push(Key {
                    lines: vec![code.to_owned()],
                    about: std::mem::take(&mut about).join("\n"),
                }),
            }
            after_key = true;
            continue;
        }
        after_key = false;
    }
    assert!(
        about.is_empty(),
        "a comment at the end belongs to nothing: {about:?}"
    );
    (paragraphs(&preface.unwrap_or_default()), tables)
}

fn paragraphs(lines: &[String]) -> String {
    format!("{}\n", lines.join("\n"))
}

fn render(table: &Table, defaults: &BTreeMap<String, String>) -> String {
    let mut text = match table.path.as_str() {
        "" => "\n## Top level\n".to_owned(),
        path => format!("\n## `[{path}]`\n"),
    };
    if !table.about.is_empty() {
        writeln!(text, "\n{}", table.about).unwrap();
    }
    for key in &table.keys {
        write!(text, "\n```toml\n{}\n```\n\n", key.lines.join("\n")).unwrap();
        if !key.about.is_empty() {
            write!(text, "{}\n\n", key.about).unwrap();
        }
        let default_of = |line: &String| {
            let (name, value) = line.split_once(" = ").expect("a key and a value");
            let path = if table.path.is_empty() {
                name.to_owned()
            } else {
                format!("{}.{name}", table.path)
            };
            let default = defaults.get(&path);
            if let Some(default) = default {
                assert_eq!(
                    default, value,
                    "config/stepvault.toml shows {path} with something else than its default"
                );
            }
            default.map(|_| ())
        };
        let with_default = key.lines.iter().filter_map(default_of).count();
        assert!(
            with_default == 0 || with_default == key.lines.len(),
            "keys with and without default: {key:?}"
        );
        let note = if with_default > 0 {
            "This is the default."
        } else {
            "An example; without the key there is none."
        };
        writeln!(text, "{note}").unwrap();
    }
    text
}

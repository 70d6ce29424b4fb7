//! docs/reference/configuration.md, generated from config/stepvault.toml table by table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::generated::check_generated;
use crate::place::{Place, read};

/// Just enough for every key of every table to be in force, with its default where it has one.
const BARE: &str = "[remote.s3-main]\nurl = \"s3://my-bucket/checkpoints\"\n[run.\"my-run/checkpoints\"]\n";

#[test]
fn the_reference_of_keys_is_the_configuration_file() {
    let page = page(&read("config/stepvault.toml"), &defaults());
    check_generated("docs/reference/configuration.md", &page);
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
    let values =
        shown["values"].as_array().unwrap().iter().filter(|value| value["source"]["from"] == "default");
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    values.map(|value| (text(&value["key"]), text(&value["value"]))).collect()
}

/// Returns the page of a file, whose paragraphs are one key each, or several that share their description; the first
/// is the preface. What directly follows a `#` is a key or table that may be switched on.
fn page(file: &str, defaults: &BTreeMap<String, String>) -> String {
    let (preface, paragraphs) = file.split_once("\n\n").unwrap();
    let preface: Vec<&str> = preface.lines().map(|line| line.trim_start_matches(['#', ' '])).collect();
    let mut text = format!("{}\n\n## Top level\n", preface.join("\n"));
    let mut table = String::new();
    for paragraph in paragraphs.trim_end().split("\n\n") {
        let (mut about, mut keys) = (String::new(), Vec::new());
        for line in paragraph.lines() {
            let code = line.strip_prefix('#').unwrap_or(line);
            if let Some(path) = code.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                write!(text, "\n## `[{path}]`\n{}", std::mem::take(&mut about)).unwrap();
                table = format!("{path}.");
            } else if let Some(words) = code.strip_prefix(' ') {
                let gap = if about.is_empty() { "\n" } else { "" };
                writeln!(about, "{gap}{words}").unwrap();
            } else {
                keys.push(code);
            }
        }
        let with_default = keys.iter().filter(|key| {
            let (name, value) = key.split_once(" = ").expect("a key and a value");
            let default = defaults.get(&format!("{table}{name}"));
            assert!(
                default.is_none_or(|default| default == value),
                "config/stepvault.toml shows {table}{name} with something else than its default"
            );
            default.is_some()
        });
        let note = match with_default.count() {
            0 => "An example; without the key there is none.",
            count if count == keys.len() => "This is the default.",
            _ => panic!("keys with and without default: {keys:?}"),
        };
        write!(text, "\n```toml\n{}\n```\n{about}\n{note}\n", keys.join("\n")).unwrap();
    }
    text
}

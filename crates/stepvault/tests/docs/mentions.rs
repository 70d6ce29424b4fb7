//! Documented commands that cannot run here, because they need a bucket or a service manager: their subcommands and
//! flags exist.

use std::collections::BTreeMap;
use std::path::Path;

use crate::markdown::{blocks, code_spans, prose};
use crate::place::{documents, read, repository, stepvault};

/// Fenced blocks that hold commands without prompt.
const LANGUAGES: [&str; 4] = ["sh", "ini", "crontab", "python"];

/// The page that names the scripts of other projects.
const FRAMEWORKS: &str = "docs/reference/profiles.md";

#[test]
fn every_mentioned_command_and_flag_exists() {
    let mut helps = Helps::default();
    let mut faults = Vec::new();
    let mut mentions = 0;
    for document in documents() {
        let text = read(&document);
        let mut lines: Vec<(usize, String)> = Vec::new();
        for block in blocks(&text).into_iter().filter(|block| LANGUAGES.contains(&block.language.as_str())) {
            let mut joined = String::new();
            for (offset, line) in block.lines.iter().enumerate() {
                joined.push_str(line.trim_end_matches('\\'));
                if !line.ends_with('\\') {
                    lines.push((block.line + offset + 1, std::mem::take(&mut joined)));
                }
            }
        }
        for (number, line) in prose(&text) {
            lines.extend(code_spans(line).into_iter().map(|span| (number, span.to_owned())));
        }
        for (number, line) in lines {
            let found = invocations(&line);
            mentions += found.len();
            let wrong = found.iter().filter_map(|words| helps.fault_of(words));
            faults.extend(wrong.map(|fault| format!("{}:{number}: {fault}: {line}", document.display())));
            if document.as_path() != Path::new(FRAMEWORKS)
                && let Some(script) = line.split_whitespace().find(|word| word.starts_with("scripts/"))
                && !repository().join(script).exists()
            {
                faults.push(format!("{}:{number}: there is no {script}", document.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(mentions >= 30, "only {mentions} mentions were found");
}

/// The words behind each `stepvault` in a line of shell.
pub(crate) fn invocations(line: &str) -> Vec<Vec<String>> {
    let line = line.split(" # ").next().unwrap_or_default();
    let line = line.replace("cargo run --bin stepvault --", "stepvault");
    let mut found = Vec::new();
    for part in line.split(['|', ';', '&', '(', ')']) {
        let words: Vec<&str> = part.split_whitespace().collect();
        let position = words.iter().position(|word| {
            let word = word.rsplit_once('=').map_or(*word, |(_, value)| value);
            word == "stepvault" || word.ends_with("/stepvault")
        });
        // `cargo test -p stepvault` is another program's.
        if let Some(position) = position
            && position + 1 < words.len()
            && !words[..position].contains(&"cargo")
        {
            found.push(words[position + 1..].iter().map(|word| (*word).to_owned()).collect());
        }
    }
    found
}

/// The help of each command, fetched once.
#[derive(Default)]
struct Helps {
    by_command: BTreeMap<String, Option<String>>,
}

impl Helps {
    fn of(&mut self, command: &[&str]) -> Option<String> {
        let key = command.join(" ");
        if let Some(known) = self.by_command.get(&key) {
            return known.clone();
        }
        let parent = stepvault(&[&command[..command.len() - 1], &["--help"]].concat());
        let is_there = crate::commands::subcommands(&parent)
            .iter()
            .any(|name| Some(name.as_str()) == command.last().copied());
        // A command takes its own options and those of every command.
        let own = || stepvault(&[command, &["--help"]].concat());
        let help = is_there.then(|| own() + &stepvault(&["help", "options"]));
        self.by_command.insert(key, help.clone());
        help
    }

    fn fault_of(&mut self, words: &[String]) -> Option<String> {
        let first = words.first()?;
        if ["COMMAND", "…", "--help", "--version"].contains(&first.as_str()) {
            return None;
        }
        let Some(mut help) = self.of(&[first]) else {
            return Some(format!("there is no command {first:?}"));
        };
        let second = words.get(1).filter(|word| !word.starts_with('-'));
        if let Some(second) = second.filter(|_| help.contains("<COMMAND>")) {
            match self.of(&[first, second]) {
                Some(inner) => help = inner,
                None => return Some(format!("there is no command \"{first} {second}\"")),
            }
        }
        // Behind `--` is the line of another program.
        let own = words.iter().take_while(|word| *word != "--");
        let flags = own.filter(|word| word.starts_with('-') && word.len() > 1);
        flags
            .map(|word| word.split_once('=').map_or(word.as_str(), |(flag, _)| flag))
            .map(|flag| flag.trim_matches(|letter: char| "[]'\",.".contains(letter)))
            .find(|flag| !has_flag(&help, flag))
            .map(|flag| format!("'{first}' has no flag {flag}"))
    }
}

fn has_flag(help: &str, flag: &str) -> bool {
    help.split([' ', '\n', ',', '[', ']', '|', '<', '>']).any(|word| word.trim_end_matches("...") == flag)
}

#[test]
fn invocations_are_found() {
    let words = |line: &str| invocations(line).concat().join(" ");
    assert_eq!(words("ExecStart=/usr/local/bin/stepvault agent --config /etc/x"), "agent --config /etc/x");
    assert_eq!(words("17 * * * * stepvault verify --deep && stepvault prune"), "verify --deep prune");
    assert_eq!(words("cargo run --bin stepvault -- demo"), "demo");
    assert_eq!(words("stepvault"), "");
}

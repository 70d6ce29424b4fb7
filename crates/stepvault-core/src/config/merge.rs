//! The layers laid over each other: for each key the strongest value, and where it came from.

use std::collections::BTreeMap;

use toml::Value;

use super::finding::{Finding, Source};
use super::key::KeyPath;
use super::model::RunSettings;
use super::schema;
use super::value::{Fault, check, from_text};

/// A value and its origin.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) value: Value,
    pub(super) source: Source,
}

/// What has been merged so far. Every value in it fits its key.
#[derive(Debug, Default)]
pub(super) struct Merged {
    entries: BTreeMap<KeyPath, Entry>,
    /// Users' names under `remote` and `run`, in order.
    names: BTreeMap<&'static str, Vec<String>>,
    /// Where the tables of those names stand.
    tables: BTreeMap<KeyPath, Source>,
    /// Whether the file holds profiles.
    pub(super) has_profiles: bool,
    pub(super) faults: Vec<Finding>,
    pub(super) warnings: Vec<Finding>,
}

impl Merged {
    /// Takes a value for a key that the schema has; a value that does not fit becomes a fault.
    pub(super) fn set(&mut self, path: KeyPath, value: Value, source: Source) {
        let Some(schema::Member {
            shape: schema::Shape::Value(kind, _),
            ..
        }) = schema::find(&path)
        else {
            self.fault(
                &path,
                source,
                &Fault::new("there is no such key", "see the reference file for all keys"),
            );
            return;
        };
        if let Err(fault) = check(*kind, &value) {
            return self.fault(&path, source, &fault);
        }
        self.note_name(&path);
        self.entries.insert(path, Entry { value, source });
    }

    /// The same for text whose type the key decides.
    pub(super) fn set_text(&mut self, path: KeyPath, text: &str, source: Source) {
        let Some(schema::Member {
            shape: schema::Shape::Value(kind, _),
            ..
        }) = schema::find(&path)
        else {
            self.fault(
                &path,
                source,
                &Fault::new("there is no such key", "see the reference file for all keys"),
            );
            return;
        };
        match from_text(*kind, text) {
            Ok(value) => self.set(path, value, source),
            Err(fault) => self.fault(&path, source, &fault),
        }
    }

    pub(super) fn fault(&mut self, path: &KeyPath, source: Source, fault: &Fault) {
        self.faults
            .push(Finding::new(path, source, fault.why.as_str()).hint(fault.hint.as_str()));
    }

    pub(super) fn note_name(&mut self, path: &KeyPath) {
        if let [table, name, ..] = path.segments() {
            self.add_name(table, name);
        }
    }

    /// Makes a remote or run known, also when nothing is set below it, and its table's place.
    pub(super) fn add_table(&mut self, path: &KeyPath, source: Source) {
        self.note_name(path);
        self.tables.entry(path.clone()).or_insert(source);
    }

    /// Makes a remote or run known.
    fn add_name(&mut self, table: &str, name: &str) {
        for known in ["remote", "run"] {
            let names = self.names.entry(known).or_default();
            if known == table && !names.iter().any(|other| other == name) {
                names.push(name.to_owned());
            }
        }
    }

    pub(super) fn names(&self, table: &str) -> Vec<String> {
        self.names.get(table).cloned().unwrap_or_default()
    }

    pub(super) fn get(&self, path: &KeyPath) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// Where a key's value came from; the default where it has none.
    pub(super) fn source(&self, path: &KeyPath) -> Source {
        self.get(path)
            .map_or(Source::Default, |entry| entry.source.clone())
    }

    /// Where to look for a key: at its value, or at the table that lacks it.
    pub(super) fn place(&self, path: &KeyPath) -> Source {
        let table = || {
            path.segments()
                .get(..2)
                .and_then(|segments| self.tables.get(&KeyPath::from(segments)))
        };
        match self.source(path) {
            Source::Default => table().cloned().unwrap_or(Source::Default),
            given => given,
        }
    }

    /// Whether somebody gave the key a value.
    pub(super) fn is_given(&self, path: &KeyPath) -> bool {
        self.source(path) != Source::Default
    }

    /// Every key of the schema under the names that are known, in order.
    pub(super) fn keys(&self) -> Vec<(KeyPath, schema::Kind, Option<&'static str>)> {
        schema::keys(&|table| self.names(table))
    }

    /// Gives each key that has none its default.
    pub(super) fn fill_defaults(&mut self) {
        for (path, _, default) in self.keys() {
            if let Some(text) = default
                && self.get(&path).is_none()
            {
                self.set_text(path, text, Source::Default);
            }
        }
    }

    /// The defaults that depend on other keys of a run: a pattern by itself means silence, as it did before there were
    /// profiles, and without a profile there must be a pattern.
    pub(super) fn settle_rules(&mut self) {
        for run in self.names("run") {
            let key = |key| KeyPath::of(&["run", &run, key]);
            let given = |name| self.is_given(&key(name));
            let pattern_alone = given("pattern") && !["complete", "profile", "series"].into_iter().any(given);
            if pattern_alone {
                self.set_text(key("complete"), "quiet", Source::Default);
            }
            let asks_profile = self
                .get(&key("complete"))
                .is_some_and(|entry| entry.value.as_str() == Some("auto"));
            if !asks_profile && !self.is_given(&key("pattern")) {
                self.set_text(key("pattern"), RunSettings::DEFAULT_PATTERN, Source::Default);
            }
        }
    }
}

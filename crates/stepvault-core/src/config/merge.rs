//! Merges the layers: for each key the value with the highest precedence, and its source.

use std::collections::BTreeMap;

use toml::Value;

use super::finding::{Fault, Finding, Source};
use super::key::KeyPath;
use super::model::RunSettings;
use super::schema;
use super::value::{check, from_text};

/// A value and its source.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) value: Value,
    pub(super) source: Source,
}

/// The merged values. Every value fits its key.
#[derive(Debug, Default)]
pub(super) struct Merged {
    entries: BTreeMap<KeyPath, Entry>,
    /// The users' names under `remote` and `run`, in order.
    names: BTreeMap<&'static str, Vec<String>>,
    /// The positions of the tables of those names.
    tables: BTreeMap<KeyPath, Source>,
    /// Whether the file contains profiles.
    pub(super) has_profiles: bool,
    pub(super) faults: Vec<Finding>,
    pub(super) warnings: Vec<Finding>,
}

impl Merged {
    /// Sets the value of a key; an unknown key or an unsuitable value becomes a fault.
    pub(super) fn set(&mut self, path: KeyPath, value: Value, source: Source) {
        let checked = kind_of(&path).and_then(|kind| check(kind, &value));
        if let Err(fault) = checked {
            return self.fault(&path, source, &fault);
        }
        self.note_name(&path);
        self.entries.insert(path, Entry { value, source });
    }

    /// Sets a value from text, converted to the type of the key.
    pub(super) fn set_text(&mut self, path: KeyPath, text: &str, source: Source) {
        match kind_of(&path).and_then(|kind| from_text(kind, text)) {
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

    /// Registers a remote or run, even if nothing is set below it, and the position of its table.
    pub(super) fn add_table(&mut self, path: &KeyPath, source: Source) {
        self.note_name(path);
        self.tables.entry(path.clone()).or_insert(source);
    }

    /// Gives a run another name, or forgets it.
    pub(super) fn rename_run(&mut self, from: &str, to: Option<&str>) {
        move_run(&mut self.entries, from, to);
        move_run(&mut self.tables, from, to);
        let names = self.names.entry("run").or_default();
        match (names.iter().position(|name| name == from), to) {
            (Some(index), Some(to)) => to.clone_into(&mut names[index]),
            (Some(index), None) => drop(names.remove(index)),
            (None, _) => {}
        }
    }

    /// Registers a remote or run.
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

    /// Returns the source of a key's value; the default if it has none.
    pub(super) fn source(&self, path: &KeyPath) -> Source {
        self.get(path)
            .map_or(Source::Default, |entry| entry.source.clone())
    }

    /// Returns the position to report for a key: that of its value, or that of the table that lacks it.
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

    /// Returns whether any source gave the key a value.
    pub(super) fn is_given(&self, path: &KeyPath) -> bool {
        self.source(path) != Source::Default
    }

    /// Returns every key of the schema for the known names, in order.
    pub(super) fn keys(&self) -> Vec<(KeyPath, schema::Kind, Option<&'static str>)> {
        schema::keys(&|table| self.names(table))
    }

    /// Sets each key without a value to its default.
    pub(super) fn fill_defaults(&mut self) {
        for (path, _, default) in self.keys() {
            if let Some(text) = default
                && self.get(&path).is_none()
            {
                self.set_text(path, text, Source::Default);
            }
        }
    }

    /// Sets the defaults that depend on other keys of a run: a pattern without other rules means `quiet`, as before
    /// profiles existed, and without a profile there must be a pattern.
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

/// Moves what stands below a run to another name, or removes it.
fn move_run<T>(values: &mut BTreeMap<KeyPath, T>, from: &str, to: Option<&str>) {
    let is_its = |path: &KeyPath, _: &mut T| matches!(path.segments(), [table, name, ..] if table == "run" && name == from);
    let its: Vec<(KeyPath, T)> = values.extract_if(.., is_its).collect();
    let Some(to) = to else { return };
    values.extend(its.into_iter().map(|(path, value)| {
        let mut segments = path.segments().to_vec();
        to.clone_into(&mut segments[1]);
        (KeyPath::from(segments.as_slice()), value)
    }));
}

/// Returns the type of a key's value.
fn kind_of(path: &KeyPath) -> Result<schema::Kind, Fault> {
    match schema::find(path) {
        Some(schema::Member {
            shape: schema::Shape::Value(kind, _),
            ..
        }) => Ok(*kind),
        _ => Err(Fault::new(
            "there is no such key",
            "see the configuration reference for all keys",
        )),
    }
}

/// Records a fault of a key.
pub(super) fn fault(merged: &mut Merged, key: &[&str], why: impl Into<String>, hint: &str) {
    let path = KeyPath::of(key);
    let source = merged.place(&path);
    merged.faults.push(Finding::new(path, source, why).hint(hint));
}

/// Records a warning about a key.
pub(super) fn warn(merged: &mut Merged, key: &[&str], why: impl Into<String>, hint: &str) {
    let path = KeyPath::of(key);
    let source = merged.source(&path);
    merged.warnings.push(Finding::new(path, source, why).hint(hint));
}

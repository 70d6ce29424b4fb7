//! Merges the layers: for each key of the schema the value with the highest precedence, and its source.

use std::collections::BTreeMap;

use toml::Value;

use super::finding::{Fault, Finding, Source};
use super::key::KeyPath;
use super::value::{Kind, check, from_text};

/// A value and its source.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) value: Value,
    pub(super) source: Source,
}

/// The merged values. Every value fits its key.
#[derive(Debug, Default)]
pub(super) struct Merged {
    /// The keys that may be set.
    schema: Option<&'static Schema>,
    entries: BTreeMap<KeyPath, Entry>,
    /// The users' names of remotes and runs, in order.
    names: BTreeMap<String, Vec<String>>,
    /// The positions of the tables of those names.
    tables: BTreeMap<KeyPath, Source>,
    /// The keys that were read, in order.
    pub(super) read: Vec<Key>,
    /// Whether the file contains profiles.
    pub(super) has_profiles: bool,
    pub(super) faults: Vec<Finding>,
    pub(super) warnings: Vec<Finding>,
}

impl Merged {
    /// Returns a set without values, to which values of this schema may be added.
    pub(super) fn new(schema: &'static Schema) -> Self {
        Self { schema: Some(schema), ..Self::default() }
    }

    /// Sets the value of a key; an unknown key or an unsuitable value becomes a fault.
    pub(super) fn set(&mut self, path: KeyPath, value: Value, source: Source) {
        self.set_checked(path, source, |kind| check(kind, &value).map(|()| value));
    }

    /// Sets a value from text, converted to the type of the key.
    pub(super) fn set_text(&mut self, path: KeyPath, text: &str, source: Source) {
        self.set_checked(path, source, |kind| from_text(kind, text));
    }

    fn set_checked(
        &mut self,
        path: KeyPath,
        source: Source,
        value: impl FnOnce(&Kind) -> Result<Value, Fault>,
    ) {
        let key = self.schema.and_then(|schema| schema.find(&path));
        let unknown = || Fault::new("there is no such key", "see the configuration reference for all keys");
        match key.ok_or_else(unknown).and_then(|key| value(&key.kind)) {
            Ok(value) => self.insert(path, value, source),
            Err(fault) => self.fault_at(&path, source, fault),
        }
    }

    /// Sets a value that fits its key.
    pub(super) fn insert(&mut self, path: KeyPath, value: Value, source: Source) {
        self.add_name(&path);
        self.entries.insert(path, Entry { value, source });
    }

    /// Records a fault of what this source gives for a key.
    pub(super) fn fault_at(&mut self, path: &KeyPath, source: Source, fault: Fault) {
        self.faults.push(Finding::new(path, source, fault.why).hint(fault.hint));
    }

    /// Records a fault of a key, at its value or at the table that lacks it.
    pub(super) fn fault(&mut self, path: &KeyPath, why: impl Into<String>, hint: impl Into<String>) {
        let table = || {
            let table = |(table, _): &(&KeyPath, _)| path.0.starts_with(&table.0);
            self.tables.iter().find(table).map(|(_, source)| source.clone())
        };
        let source = match self.source(path) {
            Source::Default => table().unwrap_or(Source::Default),
            given => given,
        };
        self.fault_at(path, source, Fault::new(why, hint));
    }

    /// Records a warning about the value of a key.
    pub(super) fn warn(&mut self, path: &KeyPath, why: impl Into<String>, hint: impl Into<String>) {
        let finding = Finding::new(path, self.source(path), why).hint(hint);
        self.warnings.push(finding);
    }

    /// Registers a remote or run, even if nothing is set below it, and the position of its table.
    pub(super) fn add_table(&mut self, path: &KeyPath, source: Source) {
        self.add_name(path);
        self.tables.entry(path.clone()).or_insert(source);
    }

    /// Registers the remote or run to which a key belongs.
    pub(super) fn add_name(&mut self, path: &KeyPath) {
        if let Some((table, name)) = path.user_name() {
            let names = self.names.entry(table.to_owned()).or_default();
            if !names.iter().any(|other| other == name) {
                names.push(name.to_owned());
            }
        }
    }

    /// Gives a run another name, or forgets it.
    pub(super) fn rename_run(&mut self, from: &str, to: Option<&str>) {
        move_run(&mut self.entries, from, to);
        move_run(&mut self.tables, from, to);
        let names = self.names.entry("run".to_owned()).or_default();
        match (names.iter().position(|name| name == from), to) {
            (Some(index), Some(to)) => to.clone_into(&mut names[index]),
            (Some(index), None) => drop(names.remove(index)),
            (None, _) => {}
        }
    }

    pub(super) fn names(&self, table: &str) -> &[String] {
        self.names.get(table).map_or(&[], Vec::as_slice)
    }

    pub(super) fn get(&self, path: &KeyPath) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// Returns the value of a key; its default, which is then in force, if no source gave one.
    pub(super) fn read(&mut self, key: Key) -> Option<&Value> {
        let given = self.entries.contains_key(&key.path);
        if !given
            && let Some(default) = key.default
            && let Ok(value) = from_text(&key.kind, default)
        {
            self.insert(key.path.clone(), value, Source::Default);
        }
        self.read.push(key);
        Some(&self.entries.get(&self.read.last()?.path)?.value)
    }

    /// Returns the source of a key's value; the default if it has none.
    pub(super) fn source(&self, path: &KeyPath) -> Source {
        self.get(path).map_or(Source::Default, |entry| entry.source.clone())
    }

    /// Returns whether any source gave the key a value.
    pub(super) fn is_given(&self, path: &KeyPath) -> bool {
        self.source(path) != Source::Default
    }
}

/// Moves what stands below a run to another name, or removes it.
fn move_run<T>(values: &mut BTreeMap<KeyPath, T>, from: &str, to: Option<&str>) {
    let is_its = |path: &KeyPath, _: &mut T| path.user_name() == Some(("run", from));
    let its: Vec<(KeyPath, T)> = values.extract_if(.., is_its).collect();
    let Some(to) = to else { return };
    values.extend(its.into_iter().map(|(path, value)| (path.with_user_name(to), value)));
}

/// Stands for the users' names of remotes and runs.
pub(super) const ANY_NAME: &str = "NAME";
/// The tables of the users' own profiles, which another crate reads.
pub(super) const PROFILE: &str = "profile";

/// A key.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) path: KeyPath,
    pub(super) kind: Kind,
    /// The text of its default, if it has one.
    pub(super) default: Option<&'static str>,
}

/// Every key, in the order of the reference, with [`ANY_NAME`] in place of the users' names.
#[derive(Debug, Default)]
pub(super) struct Schema(pub(super) Vec<Key>);

impl Schema {
    /// Returns the key of this path.
    pub(super) fn find(&self, path: &KeyPath) -> Option<&Key> {
        let path = path.with_user_name(ANY_NAME);
        self.0.iter().find(|key| key.path == path)
    }

    /// Returns the names that may stand in a table, in order.
    pub(super) fn members(&self, table: &KeyPath) -> Vec<&str> {
        let table = table.with_user_name(ANY_NAME);
        let mut names: Vec<&str> = Vec::new();
        for key in &self.0 {
            let below = key.path.0.strip_prefix(&*table.0);
            if let Some([name, ..]) = below
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        }
        if table.0.is_empty() {
            names.push(PROFILE);
        }
        names
    }

    /// Returns every key for these names of remotes and runs.
    pub(super) fn keys<'a>(&self, names: impl Fn(&str) -> &'a [String]) -> Vec<Key> {
        let expand = |key: &Key| match key.path.user_name() {
            None => vec![key.clone()],
            Some((table, _)) => {
                let paths = names(table).iter().map(|name| key.path.with_user_name(name));
                paths.map(|path| Key { path, ..key.clone() }).collect()
            }
        };
        self.0.iter().flat_map(expand).collect()
    }
}

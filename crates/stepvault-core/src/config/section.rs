//! Reads the merged values of one table in the types of their settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Value;

use super::finding::{Finding, Source};
use super::key::KeyPath;
use super::merge::Merged;
use super::units;
use crate::error::{Error, Result};
use crate::nodes::NodeSet;
use crate::path::RelativePath;

/// Reads the keys of one table with their types. The values already fit their keys; the conversions that can still
/// fail become faults.
pub(super) struct Section<'a> {
    pub(super) merged: &'a mut Merged,
    pub(super) above: KeyPath,
}

impl<'a> Section<'a> {
    pub(super) fn new(merged: &'a mut Merged, above: &[&str]) -> Self {
        Self {
            merged,
            above: KeyPath::of(above),
        }
    }

    /// Returns the full key; an empty one denotes the section itself.
    fn key(&self, key: &str) -> KeyPath {
        if key.is_empty() {
            self.above.clone()
        } else {
            self.above.join(key)
        }
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        Some(&self.merged.get(&self.above.join(key))?.value)
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.value(key)?.as_str().map(str::to_owned)
    }

    pub(super) fn boolean(&self, key: &str) -> Option<bool> {
        self.value(key)?.as_bool()
    }

    pub(super) fn size(&self, key: &str) -> Option<u64> {
        units::size(self.value(key)?.as_str()?).ok()
    }

    pub(super) fn duration(&self, key: &str) -> Option<Duration> {
        units::duration(self.value(key)?.as_str()?).ok()
    }

    /// Reads a number in the type of its setting; a number that is too large becomes a fault.
    pub(super) fn number<N: TryFrom<i64>>(&mut self, key: &str) -> Option<N> {
        let number = self.value(key)?.as_integer()?;
        let converted = N::try_from(number).ok();
        if converted.is_none() {
            self.fault(key, format!("{number} is too large"), "write a smaller number");
        }
        converted
    }

    pub(super) fn text_map(&self, key: &str) -> BTreeMap<String, String> {
        let table = self.value(key).and_then(Value::as_table);
        let pairs = table.into_iter().flatten();
        pairs
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect()
    }

    /// Reads a number of nodes, or their names in a string or a list.
    pub(super) fn nodes(&mut self, key: &str) -> Option<NodeSet> {
        let text = match self.value(key)? {
            Value::Array(items) => items
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>()
                .join(","),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.take(key, text.parse())
    }

    pub(super) fn texts(&self, key: &str) -> Option<Vec<String>> {
        let items = self.value(key)?.as_array()?;
        Some(
            items
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        )
    }

    pub(super) fn inner_path(&self, key: &str) -> Option<RelativePath> {
        RelativePath::new(self.text(key)?).ok()
    }

    /// Reads a local path. A relative path in the file starts at the file's directory, any other at the working
    /// directory.
    pub(super) fn path(&self, key: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.text(key)?);
        match self.merged.source(&self.above.join(key)) {
            Source::File { path: file, .. } => {
                let directory = file.parent().unwrap_or(Path::new(""));
                Some(directory.join(path))
            }
            _ => Some(path),
        }
    }

    pub(super) fn fault(&mut self, key: &str, why: impl Into<String>, hint: impl Into<String>) {
        let path = self.key(key);
        let source = self.merged.place(&path);
        self.merged
            .faults
            .push(Finding::new(path, source, why).hint(hint));
    }

    /// Returns the value, or records the error as a fault.
    pub(super) fn take<T>(&mut self, key: &str, result: Result<T>) -> Option<T> {
        result
            .map_err(|error: Error| {
                let hint = error.hint_text().unwrap_or_default().to_owned();
                self.fault(key, error.to_string(), hint);
            })
            .ok()
    }
}

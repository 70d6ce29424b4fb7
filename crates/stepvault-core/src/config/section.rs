//! Names the keys of one table, and reads their values in the types of their settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Value;

use super::finding::Source;
use super::http_url::ServiceUrl;
use super::key::KeyPath;
use super::merge::{Key, Merged};
use super::notify::{self, NotifyTarget};
use super::value::{Kind, bandwidth, best, duration, nodes_text, size};
use crate::bandwidth::BandwidthLimit;
use crate::retention::BestRule;
use crate::{Error, ErrorKind, NodeSet, RelativePath, Result};

/// One table. Each method that reads a key adds it to the [schema](super::merge::Schema) with its kind and its default.
/// A value fits its key already; what a conversion can still refuse becomes a fault, and the type's own default stands
/// in for it.
pub(super) struct Section<'a> {
    pub(super) merged: &'a mut Merged,
    above: KeyPath,
}

impl<'a> Section<'a> {
    pub(super) fn new(merged: &'a mut Merged, above: &[&str]) -> Self {
        Self { merged, above: KeyPath::of(above) }
    }

    /// Returns a table in this one.
    pub(super) fn table(&mut self, name: &str) -> Section<'_> {
        Section { above: self.above.join(name), merged: self.merged }
    }

    fn read<T>(
        &mut self,
        key: &str,
        kind: Kind,
        default: Option<&'static str>,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let path = self.above.join(key);
        convert(self.merged.read(Key { path, kind, default })?)
    }

    pub(super) fn text(&mut self, key: &str, default: Option<&'static str>) -> Option<String> {
        self.read(key, Kind::Text, default, |value| value.as_str().map(str::to_owned))
    }

    pub(super) fn boolean(&mut self, key: &str, default: bool) -> bool {
        let text = if default { "true" } else { "false" };
        self.read(key, Kind::Boolean, Some(text), Value::as_bool).unwrap_or(default)
    }

    pub(super) fn optional_boolean(&mut self, key: &str) -> Option<bool> {
        self.read(key, Kind::Boolean, None, Value::as_bool)
    }

    pub(super) fn size(&mut self, key: &str, default: Option<&'static str>) -> Option<u64> {
        self.read(key, Kind::Size, default, |value| size(value.as_str()?).ok())
    }

    pub(super) fn duration(&mut self, key: &str, default: &'static str) -> Duration {
        self.duration_or(key, Some(default)).unwrap_or_default()
    }

    pub(super) fn duration_or(&mut self, key: &str, default: Option<&'static str>) -> Option<Duration> {
        let convert = |value: &Value| duration(value.as_str()?).ok();
        self.read(key, Kind::Duration, default, convert)
    }

    /// Reads a duration in seconds, rounded up, so that a fraction of a second does not become a rule about no time at all.
    pub(super) fn whole_seconds(&mut self, key: &str, default: Option<&'static str>) -> Option<u64> {
        let length = self.duration_or(key, default)?;
        Some(length.as_secs() + u64::from(length.subsec_nanos() > 0))
    }

    /// Reads a number that has a default.
    pub(super) fn number<N: TryFrom<i64> + Default>(
        &mut self,
        key: &str,
        minimum: i64,
        default: &'static str,
    ) -> N {
        self.number_or(key, minimum, Some(default)).unwrap_or_default()
    }

    /// Reads a number in the type of its setting; a number that is too large for it becomes a fault.
    pub(super) fn number_or<N: TryFrom<i64>>(
        &mut self,
        key: &str,
        minimum: i64,
        default: Option<&'static str>,
    ) -> Option<N> {
        let number = self.read(key, Kind::Integer(minimum), default, Value::as_integer)?;
        let converted = N::try_from(number).ok();
        if converted.is_none() {
            self.fault(key, format!("{number} is too large"), "write a smaller number");
        }
        converted
    }

    /// Reads one of some words, each with its meaning.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &str,
        default: Option<&'static str>,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let kind = Kind::Choice(words.iter().map(|(word, _)| *word).collect());
        let chosen = |value: &Value| words.iter().find(|(word, _)| value.as_str() == Some(*word));
        self.read(key, kind, default, |value| chosen(value).map(|(_, meaning)| *meaning))
    }

    pub(super) fn text_map(&mut self, key: &str) -> BTreeMap<String, String> {
        let convert = |value: &Value| value.clone().try_into().ok();
        self.read(key, Kind::TextMap, None, convert).unwrap_or_default()
    }

    pub(super) fn nodes(&mut self, key: &str) -> Option<NodeSet> {
        let convert = |value: &Value| nodes_text(value)?.parse().ok();
        self.read(key, Kind::Nodes, None, convert)
    }

    pub(super) fn texts(&mut self, key: &str, default: Option<&'static str>) -> Option<Vec<String>> {
        self.read(key, Kind::Texts, default, |value| value.clone().try_into().ok())
    }

    pub(super) fn inner_path(&mut self, key: &str) -> Option<RelativePath> {
        let convert = |value: &Value| RelativePath::new(value.as_str()?).ok();
        self.read(key, Kind::InnerPath, None, convert)
    }

    pub(super) fn best(&mut self, key: &str) -> Option<Vec<BestRule>> {
        self.read(key, Kind::Best, None, |value| best(value).ok())
    }

    pub(super) fn bandwidth(&mut self, key: &str) -> BandwidthLimit {
        self.read(key, Kind::Bandwidth, None, |value| bandwidth(value).ok()).unwrap_or_default()
    }

    pub(super) fn service_url(&mut self, key: &str) -> Option<ServiceUrl> {
        self.read(key, Kind::ServiceUrl, None, |value| value.as_str()?.parse().ok())
    }

    pub(super) fn targets(&mut self, key: &str) -> Vec<NotifyTarget> {
        self.read(key, Kind::Notify, None, |value| notify::targets(value).ok()).unwrap_or_default()
    }

    /// Reads a local path. A relative path in the file starts at the file's directory, any other at the working
    /// directory.
    pub(super) fn path(&mut self, key: &str) -> Option<PathBuf> {
        let path = self.read(key, Kind::Path, None, |value| value.as_str().map(PathBuf::from))?;
        match self.merged.source(&self.above.join(key)) {
            Source::File { path: file, .. } => {
                let directory = file.parent().unwrap_or(Path::new(""));
                Some(directory.join(path))
            }
            _ => Some(path),
        }
    }

    /// Returns whether any source gave the key a value.
    pub(super) fn is_given(&self, key: &str) -> bool {
        self.merged.is_given(&self.above.join(key))
    }

    /// Returns whether this is the text that the key has.
    pub(super) fn is(&self, key: &str, text: &str) -> bool {
        let entry = self.merged.get(&self.above.join(key));
        entry.is_some_and(|entry| entry.value.as_str() == Some(text))
    }

    /// Returns the source of the strongest value in this table, if one is given.
    pub(super) fn strongest_source(&self) -> Option<Source> {
        let keys = self.merged.read.iter().map(|key| &key.path);
        keys.filter(|path| path.0.starts_with(&self.above.0))
            .map(|path| self.merged.source(path))
            .filter(|source| *source != Source::Default)
            .max_by_key(Source::rank)
    }

    /// Returns whether the key has a fault.
    pub(super) fn has_fault(&self, key: &str) -> bool {
        let key = self.above.join(key).to_string();
        self.merged.faults.iter().any(|fault| fault.key == key)
    }

    /// Records a fault of a key; of the table itself if the key is empty.
    pub(super) fn fault(&mut self, key: &str, why: impl Into<String>, hint: impl Into<String>) {
        let path = if key.is_empty() { self.above.clone() } else { self.above.join(key) };
        self.merged.fault(&path, why, hint);
    }

    /// Records that this source asks in this table for what is refused.
    pub(super) fn refuse(&mut self, source: Source, error: Error) {
        self.merged.fault_at(&self.above, source, error.into());
        if let Some(fault) = self.merged.faults.last_mut() {
            fault.kind = ErrorKind::Refused;
        }
    }

    pub(super) fn warn(&mut self, key: &str, why: impl Into<String>, hint: impl Into<String>) {
        self.merged.warn(&self.above.join(key), why, hint);
    }

    /// Returns the value, or records the error as a fault.
    pub(super) fn take<T>(&mut self, key: &str, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.fault(key, error.to_string(), error.hint_text().unwrap_or_default())).ok()
    }
}

/// Returns the settings of a table in which nothing is given.
pub(super) fn defaults<T>(read: impl FnOnce(&mut Section<'_>) -> T) -> T {
    read(&mut Section::new(&mut Merged::default(), &[]))
}

//! Dotted keys.

use std::fmt;

use toml::de::{DeTable, DeValue};

/// A key as its segments; a run's or remote's name is one segment whatever it holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct KeyPath(Vec<String>);

impl KeyPath {
    /// From segments.
    pub(super) fn of(segments: &[&str]) -> Self {
        Self(segments.iter().map(|segment| (*segment).to_owned()).collect())
    }

    /// Reads a key as TOML has it: `run."a/b".keep.local.last`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.contains(['=', '\n', '\r', '#']) {
            return None;
        }
        let line = format!("{text} = 0");
        let document = DeTable::parse(&line).ok()?;
        let mut segments = Vec::new();
        let mut table = document.get_ref();
        loop {
            let (key, value) = table.iter().next()?;
            segments.push(key.get_ref().to_string());
            match value.get_ref() {
                DeValue::Table(inner) => table = inner,
                _ => return Some(Self(segments)),
            }
        }
    }

    /// The key below this one.
    pub(super) fn join(&self, segment: &str) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment.to_owned());
        Self(segments)
    }

    pub(super) fn segments(&self) -> &[String] {
        &self.0
    }
}

impl From<&[String]> for KeyPath {
    fn from(segments: &[String]) -> Self {
        Self(segments.to_vec())
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.0.iter().enumerate() {
            if index > 0 {
                out.write_str(".")?;
            }
            let bare = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
            if !segment.is_empty() && segment.chars().all(bare) {
                out.write_str(segment)?;
            } else {
                write!(out, "{}", toml::Value::String(segment.clone()))?;
            }
        }
        Ok(())
    }
}

//! Dotted keys.

use std::fmt;

use toml::de::{DeTable, DeValue};

/// The tables of tables, each under a name of the user's choice.
const NAMED_TABLES: [&str; 2] = ["remote", "run"];

/// A key as its segments; the name of a run or remote is one segment, whatever it contains.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct KeyPath(pub(super) Vec<String>);

impl KeyPath {
    /// Returns a key from its segments.
    pub(super) fn of(segments: &[&str]) -> Self {
        Self(segments.iter().map(|segment| (*segment).to_owned()).collect())
    }

    /// Parses a key in TOML notation: `run."a/b".keep.local.last`.
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

    /// Returns the key below this one.
    pub(super) fn join(&self, segment: &str) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment.to_owned());
        Self(segments)
    }

    /// Returns the table and the user's name, if the key is that of a remote or a run, or below it.
    pub(super) fn user_name(&self) -> Option<(&str, &str)> {
        match self.0.as_slice() {
            [table, name, ..] if NAMED_TABLES.contains(&table.as_str()) => Some((table, name)),
            _ => None,
        }
    }

    /// Returns the key with another name in place of the user's.
    pub(super) fn with_user_name(&self, name: &str) -> Self {
        let mut path = self.clone();
        if path.user_name().is_some() {
            name.clone_into(&mut path.0[1]);
        }
        path
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

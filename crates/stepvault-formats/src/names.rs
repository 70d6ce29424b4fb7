//! What the names of files and directories say, as data in `names.toml`: its keys are described there.

use std::sync::LazyLock;

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Names {
    pub(crate) clutter: Words,
    pub(crate) clutter_prefixes: Words,
    pub(crate) clutter_extensions: Words,
    pub(crate) trackers: Words,
    pub(crate) texts: Words,
    pub(crate) others: Words,
    pub(crate) compressions: Words,
    pub(crate) telling: Words,
    pub(crate) weights: Words,
    pub(crate) torch_weights: Words,
    pub(crate) model_texts: Words,
    pub(crate) torch_bins: Words,
    pub(crate) secondary: Words,
    pub(crate) step: Words,
    pub(crate) checkpoint: Words,
    pub(crate) units: Words,
    pub(crate) counted: Words,
    pub(crate) models: Words,
    pub(crate) naming: Words,
    pub(crate) newest: Words,
}

// A test reads the file.
pub(crate) static NAMES: LazyLock<Names> = LazyLock::new(|| toml::from_str(TEXT).unwrap_or_default());
const TEXT: &str = include_str!("names.toml");

/// A list of words in lower case.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Words(Vec<String>);

impl Words {
    /// Returns the words in the order of the list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether this is one of the words.
    pub(crate) fn has<'a>(&self, word: impl Into<Option<&'a str>>) -> bool {
        let word = word.into();
        self.iter().any(|other| Some(other) == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_read() {
        let names: Names = toml::from_str(TEXT).unwrap();
        assert!(names.newest.has("last") && names.clutter.iter().all(|name| name.to_lowercase() == name));
    }
}

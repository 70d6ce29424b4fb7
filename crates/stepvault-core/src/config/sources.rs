//! What a configuration is loaded from.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::finding::Source;
use crate::ids::RunName;

/// The text of a configuration file and the path it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileText {
    /// Used in messages, and as the base of the relative paths in the file.
    pub path: PathBuf,
    /// The content.
    pub text: String,
}

/// A value that the command line gives for a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlagOverride {
    /// The key as in the file: `local.directory`, `remote.s3-main.url`, `run."a/b".watch`.
    pub key: String,
    /// Its value, as it would be written in the file.
    pub value: toml::Value,
    /// The flag, with its dashes, for messages.
    pub flag: String,
}

impl FlagOverride {
    /// Returns the override of a key with a text.
    pub fn text(key: impl Into<String>, text: impl Into<String>, flag: impl Into<String>) -> Self {
        Self { key: key.into(), value: toml::Value::String(text.into()), flag: flag.into() }
    }

    pub(super) fn source(&self) -> Source {
        Source::Flag { flag: self.flag.clone() }
    }
}

/// All sources of a configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sources {
    /// The file, if there is one.
    pub file: Option<FileText>,
    /// The environment; of the variables that do not begin with `STEPVAULT_`, only
    /// [those in names of runs](Self::variables_of_names) count.
    pub environment: Vec<(String, String)>,
    /// The run that was selected, if one was: no other one is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunName>,
    /// The values given on the command line.
    pub flags: Vec<FlagOverride>,
}

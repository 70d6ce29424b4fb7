//! A problem or warning about the configuration, and the sources a value can come from.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, ErrorKind};

/// The source of a value, weakest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "from", rename_all = "kebab-case")]
pub enum Source {
    /// The value is the default.
    Default,
    /// The configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1; null for the file as a whole.
        line: Option<usize>,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// A command-line flag.
    Flag {
        /// The flag as it is written, with its dashes.
        flag: String,
    },
}

impl Source {
    /// Returns the precedence: the higher one wins.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File { .. } => 1,
            Self::Environment { .. } => 2,
            Self::Flag { .. } => 3,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => out.write_str("default"),
            Self::File { path, line: Some(line) } => write!(out, "{}:{line}", path.display()),
            Self::File { path, line: None } => write!(out, "{}", path.display()),
            Self::Environment { variable } => out.write_str(variable),
            Self::Flag { flag } => out.write_str(flag),
        }
    }
}

/// One effective value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Explained {
    /// The key, dotted.
    pub key: String,
    /// The value as TOML, with secrets masked.
    pub value: String,
    /// The source of the value.
    pub source: Source,
}

/// What is wrong with a value, and the correct notation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) why: String,
    pub(super) hint: String,
}

impl Fault {
    pub(super) fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { why: why.into(), hint: hint.into() }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::new(error.to_string(), error.hint_text().unwrap_or_default())
    }
}

/// A fault or a warning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// The dotted key it is about; empty for the file as a whole.
    pub key: String,
    /// Where it was found.
    pub source: Source,
    /// What is wrong.
    pub why: String,
    /// What to do about it; null if there is no hint.
    pub hint: Option<String>,
    /// The kind of the resulting error.
    #[serde(skip)]
    pub kind: ErrorKind,
}

impl Finding {
    /// Returns a finding about a key.
    pub fn new(key: impl fmt::Display, source: Source, why: impl Into<String>) -> Self {
        Self { key: key.to_string(), source, why: why.into(), hint: None, kind: ErrorKind::Usage }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into()).filter(|hint: &String| !hint.is_empty());
        self
    }
}

/// `stepvault.toml:12: remote.s3-main.regoin: there is no such key`
impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.source != Source::Default {
            write!(out, "{}: ", self.source)?;
        }
        if !self.key.is_empty() {
            write!(out, "{}: ", self.key)?;
        }
        out.write_str(&self.why)
    }
}

/// Length of the longest word that is compared with others.
const LONGEST_WORD_BYTES: usize = 200;

/// Returns the candidate nearest to `word`, if it is near enough to be a typing error.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Such a long word is not a typing error, and its distance would take long to compute.
    if word.len() > LONGEST_WORD_BYTES {
        return None;
    }
    let most = (word.chars().count() / 3).max(2);
    let measured = candidates.into_iter().map(|candidate| {
        (strsim::damerau_levenshtein(&word.to_lowercase(), &candidate.to_lowercase()), candidate)
    });
    let (distance, candidate) = measured.min_by_key(|(distance, _)| *distance)?;
    (distance <= most && distance < word.chars().count()).then_some(candidate)
}

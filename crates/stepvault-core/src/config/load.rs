//! The way in: sources to a checked configuration.

use std::path::PathBuf;

use super::finding::{Finding, Source};
use super::model::Config;
use crate::error::{Error, ErrorKind, Result};

/// The text of a configuration file and the path it came from.
#[derive(Debug, Clone)]
pub struct FileText {
    /// For messages, and as the place that relative paths in it start from.
    pub path: PathBuf,
    /// The content.
    pub text: String,
}

/// A value that the command line gives for a key.
#[derive(Debug, Clone)]
pub struct FlagOverride {
    /// The key as in the file: `local.directory`, `remote.s3-main.url`, `run."a/b".watch`.
    pub key: String,
    /// Its value, as it would stand in the file.
    pub value: toml::Value,
    /// The flag, with its dashes, for messages.
    pub flag: String,
}

/// Everything that a configuration is made of.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file, if there is one.
    pub file: Option<FileText>,
    /// The environment; variables that do not begin with `STEPVAULT_` are passed over.
    pub environment: Vec<(String, String)>,
    /// What the command line gives.
    pub flags: Vec<FlagOverride>,
}

/// All that was found.
#[derive(Debug, Clone)]
pub struct Report {
    /// The configuration, when there is no fault.
    pub config: Option<Config>,
    /// What is wrong, in the order of the file.
    pub faults: Vec<Finding>,
    /// What is odd.
    pub warnings: Vec<Finding>,
}

/// Merges and checks everything, and reports every fault and warning: `config check`.
pub fn check(sources: &Sources) -> Report {
    let _ = sources;
    Report { config: None, faults: Vec::new(), warnings: Vec::new() }
}

/// Merges and checks everything.
///
/// # Errors
/// [`ErrorKind::Usage`] with every fault in one message; [`ErrorKind::Refused`] when the only faults are keep rules
/// that would delete everything.
pub fn load(sources: &Sources) -> Result<Config> {
    let report = check(sources);
    match report.config {
        Some(config) if report.faults.is_empty() => Ok(config),
        _ => Err(Error::new(ErrorKind::Usage, "the configuration is wrong")),
    }
}

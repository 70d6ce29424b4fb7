//! The way in: sources to a checked configuration.

use std::path::PathBuf;

use super::build::build;
use super::explain::explain;
use super::finding::{Finding, Source};
use super::key::KeyPath;
use super::merge::Merged;
use super::model::Config;
use super::{environment, file, options, validate};
use crate::error::{Error, ErrorKind, Result};

/// The text of a configuration file and the path it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    let mut merged = Merged::default();
    if let Some(file) = &sources.file {
        file::read(file, &mut merged);
    }
    let overrides: Vec<(KeyPath, &FlagOverride)> = sources
        .flags
        .iter()
        .filter_map(|flag| Some((flag_key(flag, &mut merged)?, flag)))
        .collect();
    // Before the environment, which may set their keys.
    for (path, _) in &overrides {
        merged.note_name(path);
    }
    environment::read(&sources.environment, &mut merged);
    for (path, flag) in overrides {
        merged.set(
            path,
            flag.value.clone(),
            Source::Flag {
                flag: flag.flag.clone(),
            },
        );
    }
    options::unfold(&mut merged);
    merged.fill_defaults();
    merged.settle_rules();
    let mut config = build(&mut merged);
    validate::check_all(&config, &mut merged);
    config.explained = explain(&merged);
    config.profiles = sources.file.clone().filter(|_| merged.has_profiles);
    config.warnings.clone_from(&merged.warnings);
    let Merged {
        mut faults, warnings, ..
    } = merged;
    faults.sort_by_key(|fault| match &fault.source {
        Source::File { line, .. } => (fault.source.rank(), *line),
        other => (other.rank(), None),
    });
    // One mistake may show at several places of the reading; it is told once.
    faults.dedup();
    Report {
        config: faults.is_empty().then_some(config),
        faults,
        warnings,
    }
}

fn flag_key(flag: &FlagOverride, merged: &mut Merged) -> Option<KeyPath> {
    let path = KeyPath::parse(&flag.key);
    if path.is_none() {
        let source = Source::Flag {
            flag: flag.flag.clone(),
        };
        merged
            .faults
            .push(Finding::new(&flag.key, source, "it is not a dotted key").hint("write it as in the file"));
    }
    path
}

/// Merges and checks everything.
///
/// # Errors
/// [`ErrorKind::Usage`] with every fault in one message; [`ErrorKind::Refused`] when the only faults are keep rules
/// that would delete everything.
pub fn load(sources: &Sources) -> Result<Config> {
    let report = check(sources);
    report
        .config
        .ok_or_else(|| faults_error("the configuration is wrong", &report.faults))
}

/// All faults as one error. A single one lends it its hint; several carry theirs with them.
pub fn faults_error(what: &str, faults: &[Finding]) -> Error {
    let refused = !faults.is_empty() && faults.iter().all(|fault| fault.kind == ErrorKind::Refused);
    let kind = if refused {
        ErrorKind::Refused
    } else {
        ErrorKind::Usage
    };
    let error = Error::new(kind, what);
    match faults {
        [only] => {
            let error = error.on(only);
            match &only.hint {
                Some(hint) if !hint.is_empty() => error.hint(hint),
                _ => error,
            }
        }
        several => {
            let line = |fault: &Finding| match &fault.hint {
                Some(hint) if !hint.is_empty() => format!("\n  {fault} ({hint})"),
                _ => format!("\n  {fault}"),
            };
            error.because(format!(
                "{} faults:{}",
                several.len(),
                several.iter().map(line).collect::<String>()
            ))
        }
    }
}

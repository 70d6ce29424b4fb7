//! Loads the sources and returns a checked configuration.

use super::explain::explain;
use super::finding::{Finding, Source};
use super::key::KeyPath;
use super::merge::Merged;
use super::model::Config;
use super::run_names::name_runs;
use super::sources::{FlagOverride, Sources};
use super::tables::{self, SCHEMA};
use super::{environment, file, options, validate};
use crate::error::{Error, ErrorKind, Result};

/// The result of a check.
#[derive(Debug, Clone)]
pub struct Report {
    /// The configuration, when there is no fault.
    pub config: Option<Config>,
    /// The faults, in the order of the file.
    pub faults: Vec<Finding>,
    /// The warnings.
    pub warnings: Vec<Finding>,
}

/// Merges and checks everything, and reports every fault and warning (`config check`).
pub fn check(sources: &Sources) -> Report {
    let schema = &*SCHEMA;
    let mut merged = Merged::new(schema);
    if let Some(file) = &sources.file {
        file::read(file, schema, &mut merged);
        name_runs(&mut merged, sources);
    }
    let overrides: Vec<(KeyPath, &FlagOverride)> =
        sources.flags.iter().filter_map(|flag| Some((flag_key(flag, &mut merged)?, flag))).collect();
    // The overrides come before the environment, which may set their keys.
    for (path, _) in &overrides {
        merged.add_name(path);
    }
    environment::read(&sources.environment, schema, &mut merged);
    for (path, flag) in overrides {
        merged.set(path, flag.value.clone(), flag.source());
    }
    options::unfold(schema, &mut merged);
    let mut config = tables::config(&mut merged);
    validate::check_all(&config, sources.run.as_ref(), &mut merged);
    config.explained = explain(&merged);
    config.profiles = sources.file.clone().filter(|_| merged.has_profiles);
    config.warnings.clone_from(&merged.warnings);
    let Merged { mut faults, warnings, .. } = merged;
    faults.sort_by_key(|fault| match &fault.source {
        Source::File { line, .. } => (fault.source.rank(), *line),
        other => (other.rank(), None),
    });
    // One mistake may be found several times; report it once.
    faults.dedup();
    Report { config: faults.is_empty().then_some(config), faults, warnings }
}

fn flag_key(flag: &FlagOverride, merged: &mut Merged) -> Option<KeyPath> {
    let path = KeyPath::parse(&flag.key);
    if path.is_none() {
        let finding = Finding::new(&flag.key, flag.source(), "it is not a valid dotted key");
        merged.faults.push(finding.hint("write it as in the configuration file"));
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
    report.config.ok_or_else(|| faults_error("the configuration is invalid", &report.faults))
}

/// Returns all faults as one error. A single fault provides the hint; several faults include their hints in the
/// message.
pub fn faults_error(what: &str, faults: &[Finding]) -> Error {
    let refused = !faults.is_empty() && faults.iter().all(|fault| fault.kind == ErrorKind::Refused);
    let kind = if refused { ErrorKind::Refused } else { ErrorKind::Usage };
    let error = Error::new(kind, what);
    match faults {
        [only] => error.on(only).hint(only.hint.as_deref().unwrap_or_default()),
        several => {
            let line = |fault: &Finding| match &fault.hint {
                Some(hint) => format!("\n  {fault} ({hint})"),
                None => format!("\n  {fault}"),
            };
            let lines: String = several.iter().map(line).collect();
            error.because(format!("{} problems:{lines}", several.len()))
        }
    }
}

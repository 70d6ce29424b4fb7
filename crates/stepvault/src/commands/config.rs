//! `config show` and `config check`: print and validate the configuration.

use std::path::PathBuf;

use clap::Subcommand;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::Result;
use stepvault_core::config::{Explained, Finding, Sources, check, load};

use crate::context::gather;
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use crate::session::Session;

/// Print or check the configuration
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigAction {
    /// Print the effective values and the source of each; secrets are masked
    Show,
    /// Report all faults and warnings in the file, the environment and the flags
    Check,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ShowReport<'a> {
    /// The configuration file; null if there is none.
    file: Option<PathBuf>,
    /// Every effective value, in the order of the reference.
    values: &'a [Explained],
}

impl Report for ShowReport<'_> {
    fn human(&self) -> String {
        let values = self.values.iter();
        let values = values.map(|value| [value.key.clone(), value.value.clone(), value.source.to_string()]);
        let file = self.file.as_ref().map_or("none".to_owned(), |file| file.display().to_string());
        format!("file: {file}\n\n{}", table::text(&["key", "value", "from"], &[], values))
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct CheckReport {
    /// The configuration file; null if there is none.
    file: Option<PathBuf>,
    /// What is wrong with the configuration; empty if nothing is.
    faults: Vec<Finding>,
    /// What is valid but needs attention.
    warnings: Vec<Finding>,
}

impl Report for CheckReport {
    fn human(&self) -> String {
        let file = self.file.as_ref().map_or("no file".to_owned(), |file| file.display().to_string());
        let mut lines = Vec::new();
        for (word, findings) in [("fault", &self.faults), ("warning", &self.warnings)] {
            for finding in findings {
                lines.push(format!("{word}: {finding}"));
                lines.extend(finding.hint.iter().map(|hint| format!("  hint: {hint}")));
            }
        }
        let verdict = match (self.faults.len(), self.warnings.len()) {
            (0, 0) => "the configuration is valid".to_owned(),
            (faults, warnings) => {
                format!(
                    "{}, {}",
                    human::count(faults as u64, "fault"),
                    human::count(warnings as u64, "warning")
                )
            }
        };
        lines.push(format!("{file}: {verdict}"));
        lines.join("\n")
    }
}

/// Runs the command.
pub(crate) fn run(session: &Session, action: &ConfigAction) -> Result<ExitCode> {
    let sources = gather(&session.global)?.sources;
    match action {
        ConfigAction::Show => {
            let config = load(&sources)?;
            session.output.result(&ShowReport { file: path_of(&sources), values: &config.explained })?;
            Ok(ExitCode::Done)
        }
        ConfigAction::Check => {
            let mut found = check(&sources);
            // The crate that reads the file does not know the frameworks.
            let profiles = found.config.as_ref().map(stepvault_agent::profiles);
            found.faults.extend(profiles.and_then(std::result::Result::err).unwrap_or_default());
            let code = if found.faults.is_empty() { ExitCode::Done } else { ExitCode::Usage };
            let report =
                CheckReport { file: path_of(&sources), faults: found.faults, warnings: found.warnings };
            session.output.result(&report)?;
            Ok(code)
        }
    }
}

fn path_of(sources: &Sources) -> Option<PathBuf> {
    sources.file.as_ref().map(|file| file.path.clone())
}

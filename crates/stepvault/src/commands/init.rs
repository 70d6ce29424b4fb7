//! `init`: writes a commented configuration file.

use std::path::{Path, PathBuf};

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable::{self, CreateOutcome};

use crate::context::{FILE_NAME, absolute};
use crate::exit_code::ExitCode;
use crate::output::Report;
use crate::session::Session;

/// The repository's configuration file: every key with its default and description.
const REFERENCE: &str = include_str!("../../../../config/stepvault.toml");

/// Write a commented stepvault.toml
///
/// It contains every key with its default. An existing file is overwritten only with --force.
#[derive(Debug, Args)]
pub(crate) struct InitArguments {
    /// File to write, or directory to write it to
    #[arg(value_name = "PATH", default_value = FILE_NAME)]
    path: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct InitReport {
    /// The written file.
    path: String,
}

impl Report for InitReport {
    fn human(&self) -> String {
        format!("wrote {}\nedit it, then check it with 'stepvault config check'", self.path)
    }
}

/// Runs the command.
pub(crate) fn run(session: &Session, arguments: &InitArguments) -> Result<ExitCode> {
    let path = if arguments.path.is_dir() { arguments.path.join(FILE_NAME) } else { arguments.path.clone() };
    let path = absolute(&path)?;
    write(Path::new(&path), arguments.force)?;
    session.output.result(&InitReport { path })?;
    Ok(ExitCode::Done)
}

fn write(path: &Path, force: bool) -> Result<()> {
    if force {
        return durable::replace(path, REFERENCE.as_bytes());
    }
    match durable::create_new(path, REFERENCE.as_bytes())? {
        CreateOutcome::Written => Ok(()),
        CreateOutcome::Exists => Err(Error::new(ErrorKind::Conflict, "refusing to overwrite the file")
            .on(path.display())
            .because("it exists")
            .hint("give another PATH, or overwrite the file with --force")),
    }
}

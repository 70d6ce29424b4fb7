//! `agent`: the background service.

use clap::Args;
use stepvault_core::{Error, ErrorKind, Result};

use super::Session;
use crate::exit_code::ExitCode;

/// Watch for finished steps, seal and upload them, and keep every tier to its rules
#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    /// Do what there is to do, and end
    #[arg(long)]
    once: bool,
}

/// Runs the command.
pub(crate) async fn run(_session: &Session, _arguments: &AgentArguments) -> Result<ExitCode> {
    Err(Error::new(ErrorKind::Failed, "not wired yet"))
}

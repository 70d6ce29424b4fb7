//! `completions`: what a shell completes after `stepvault`.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use stepvault_core::Result;

use super::Session;
use crate::arguments::Arguments;
use crate::exit_code::ExitCode;

/// Print a completion script for a shell
///
/// For bash, for one: stepvault completions bash > /etc/bash_completion.d/stepvault
#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(session: &Session, arguments: &CompletionsArguments) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "stepvault", &mut script);
    session.output.text(&String::from_utf8_lossy(&script));
    Ok(ExitCode::Done)
}

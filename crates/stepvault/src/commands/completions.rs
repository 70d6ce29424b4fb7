//! `completions`: completion scripts for shells.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use stepvault_core::Result;

use crate::arguments::Arguments;
use crate::exit_code::ExitCode;
use crate::session::Session;

/// Print a completion script for a shell
///
/// For bash: stepvault completions bash > stepvault.bash; source stepvault.bash
#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// Shell to print the script for
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(session: &Session, arguments: &CompletionsArguments) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "stepvault", &mut script);
    session.output.text(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::Done)
}

//! `stepvault`: checkpoint storage tiering for training on ephemeral nodes.
//!
//! The binary reads arguments, prints results and chooses the exit code. What it does is in the crates it calls.

mod arguments;
mod commands;
mod context;
mod exit_code;
mod interrupt;
mod leave_by;
mod log;
mod output;
mod progress;

use std::time::Duration;

use clap::Parser as _;
use stepvault_core::{Error, ErrorKind, Result};

use arguments::Arguments;
use commands::Session;
use exit_code::ExitCode;
use interrupt::Interrupt;
use leave_by::LeaveBy;
use output::Output;

/// Threads for file work. Each may hold a buffer: their number is part of the bound on memory.
const MAXIMUM_BLOCKING_THREADS: usize = 64;
/// How long file work that was under way may take to end after an interruption.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(2);

fn main() -> std::process::ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error).into(),
    };
    let output = Output::new(arguments.global.json, arguments.global.quiet);
    let code = start(arguments, &output).unwrap_or_else(|error| {
        output.error(&error);
        ExitCode::from(error.kind())
    });
    code.into()
}

/// What clap has to say: help and version are results, everything else is an error.
fn usage(error: &clap::Error) -> ExitCode {
    let wanted = !error.use_stderr();
    // Coloured where the terminal can; a closed pipe is no reason to complain.
    let _ = error.print();
    if wanted {
        return ExitCode::Done;
    }
    let is_help = error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !is_help && std::env::args_os().any(|argument| argument == "--json") {
        let text = error.render().to_string();
        let message = text
            .trim_start_matches("error: ")
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned();
        let error = Error::new(ErrorKind::Usage, message).hint("stepvault --help lists commands and options");
        Output::new(true, true).text(&output::json::error_document(&error));
    }
    ExitCode::Usage
}

fn start(arguments: Arguments, output: &Output) -> Result<ExitCode> {
    log::start(output, arguments.global.verbose)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(MAXIMUM_BLOCKING_THREADS)
        .build()
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot start the runtime").caused_by(error))?;
    let leave_by = LeaveBy::default();
    let outcome = runtime.block_on(run(arguments, output, leave_by.clone()));
    runtime.shutdown_timeout(leave_by.within(SHUTDOWN_DEADLINE));
    outcome
}

async fn run(arguments: Arguments, output: &Output, leave_by: LeaveBy) -> Result<ExitCode> {
    let Arguments { global, command } = arguments;
    interrupt::outlive_large_writes()?;
    let interrupt = if command.handles_signals() {
        Interrupt::never()
    } else {
        Interrupt::listen()?
    };
    let hint = command.after_interruption();
    let ends_by_itself = command.ends_by_itself_when_interrupted();
    let session = Session {
        global,
        output: output.clone(),
        interrupt: interrupt.clone(),
        leave_by,
    };
    tokio::select! {
        biased;
        outcome = commands::run(&session, command) => outcome,
        // Dropping the command's future cancels its requests; what it had finished is on record.
        () = interrupt.requested(), if !ends_by_itself => Err(interrupt::error(hint)),
    }
}

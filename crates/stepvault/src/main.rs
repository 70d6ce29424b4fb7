//! The `stepvault` program: reads arguments, prints results and progress, and chooses the exit code.
//!
//! - `arguments`: the command line.
//! - `commands`: one module for each command; each calls the engine or the agent and prints the outcome.
//! - `context`: from arguments and configuration to the run, the vault and the remotes of a command.
//! - `output`, `progress`, `log`: what is written to standard output and standard error.
//! - `session`: what every command has.
//! - `exit_code`: the exit codes, and the code of each kind of error.
//!
//! The program must not hold logic of its own: everything that a test could check without a terminal belongs to one of
//! the other crates.
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod arguments;
mod commands;
mod context;
mod exit_code;
mod interrupt;
mod log;
mod output;
mod progress;
mod session;

use std::sync::Arc;
use std::time::Duration;

use stepvault_agent::CommandMetrics;
use stepvault_core::{Error, ErrorKind, Result, RunName};
use tokio_util::sync::CancellationToken;

use arguments::Arguments;

use self::interrupt::ExitDeadline;
use exit_code::ExitCode;
use output::Output;
use session::Session;

/// Threads for blocking file operations. Each may hold a buffer, so their number is part of the memory bound.
const MAXIMUM_BLOCKING_THREADS: usize = 64;
/// How long pending file operations may take to end after an interruption.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(2);

fn main() -> std::process::ExitCode {
    let arguments = match Arguments::of_process() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error).into(),
    };
    let mut output = Output::new(arguments.global.json, arguments.global.quiet)
        .of_service(arguments.command.is_service())
        .of_events(arguments.command.prints_events());
    let metrics_file = arguments.global.metrics_file.clone();
    output.metrics = metrics_file.as_ref().map(|_| {
        let run = arguments.global.run.as_ref().map(RunName::as_str);
        Arc::new(CommandMetrics::new(arguments.command.name(), run))
    });
    let code = start(arguments, &output).unwrap_or_else(|error| {
        output.error(&error);
        ExitCode::from(error.kind())
    });
    if let (Some(file), Some(metrics)) = (&metrics_file, &output.metrics)
        && let Err(error) = metrics.write(file, code.number())
    {
        output.warn(&format!("cannot write the metrics: {error}"));
    }
    code.into()
}

/// Prints clap's message: help and version are results, everything else is an error.
fn usage(error: &clap::Error) -> ExitCode {
    let wanted = !error.use_stderr();
    // Clap colours the text if the terminal can show it.
    let printed = error.print();
    if wanted {
        return match printed {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Output::new(false, false).error(&output::not_printed(error));
                ExitCode::Failed
            }
            _ => ExitCode::Done,
        };
    }
    let is_help = error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !is_help && std::env::args_os().any(|argument| argument == "--json") {
        let text = error.render().to_string();
        let message = text.trim_start_matches("error: ").lines().next().unwrap_or_default().to_owned();
        let error =
            Error::new(ErrorKind::Usage, message).hint("run 'stepvault --help' to see commands and options");
        let _ = Output::new(true, true).text(&output::error_document(&error));
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
    let exit_deadline = ExitDeadline::default();
    let outcome = runtime.block_on(run(arguments, output, exit_deadline.clone()));
    runtime.shutdown_timeout(exit_deadline.within(SHUTDOWN_DEADLINE));
    outcome
}

async fn run(arguments: Arguments, output: &Output, exit_deadline: ExitDeadline) -> Result<ExitCode> {
    let Arguments { global, command } = arguments;
    interrupt::outlive_large_writes()?;
    // A command that handles signals itself is never cancelled.
    let interrupt = if command.passes_signals_on() { CancellationToken::new() } else { interrupt::listen()? };
    let hint = command.after_interruption();
    let ends_by_itself = command.is_service();
    let session = Session { global, output: output.clone(), interrupt: interrupt.clone(), exit_deadline };
    tokio::select! {
        biased;
        outcome = commands::run(&session, command) => outcome,
        // Dropping the command's future cancels its requests; the records keep what it had finished.
        () = interrupt.cancelled(), if !ends_by_itself => Err(interrupt::error(hint)),
    }
}

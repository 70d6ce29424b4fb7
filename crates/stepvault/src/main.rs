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
use stepvault_agent::notifications::LAST_MOMENTS;
use stepvault_core::config::ServiceUrl;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout_at};
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
    let is_counted = metrics_file.is_some() || arguments.global.metrics_push.is_some();
    output.metrics = is_counted.then(|| Arc::new(CommandMetrics::new(arguments.command.name())));
    let code = start(arguments, &output).unwrap_or_else(|error| code_of(&error, &output));
    if let (Some(file), Some(metrics)) = (&metrics_file, &output.metrics)
        && let Err(error) = metrics.write(file, code.number())
    {
        output.warn(&format!("cannot write the metrics: {error}"));
    }
    code.into()
}

/// Prints the error that ended the command.
fn code_of(error: &Error, output: &Output) -> ExitCode {
    output.error(error);
    ExitCode::from(error.kind())
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
    let gateway = arguments.global.metrics_push.clone();
    let code = runtime.block_on(async {
        let outcome = run(arguments, output, exit_deadline.clone()).await;
        let code = outcome.unwrap_or_else(|error| code_of(&error, output));
        tell_services(output, gateway, code, exit_deadline.within(LAST_MOMENTS)).await;
        code
    });
    runtime.shutdown_timeout(exit_deadline.within(SHUTDOWN_DEADLINE));
    Ok(code)
}

/// Sends the command's last traces and its metrics. A failure is a warning.
async fn tell_services(output: &Output, gateway: Option<ServiceUrl>, code: ExitCode, within: Duration) {
    let deadline = Instant::now() + within;
    let traces = async {
        if let Some(traces) = output.traces()
            && let Err(error) = traces.finish(deadline).await
        {
            output.warn(&error.text_with_hint());
        }
    };
    let metrics = async {
        let (Some(gateway), Some(metrics)) = (gateway, &output.metrics) else { return };
        match timeout_at(deadline, metrics.push(&gateway, code.number())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => output.warn(&error.text_with_hint()),
            Err(_) => output.warn(&format!("cannot push the metrics: {gateway}: no time was left")),
        }
    };
    tokio::join!(traces, metrics);
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

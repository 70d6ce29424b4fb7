//! The commands: each reads its arguments, calls the engine, prints what came of it and chooses the exit code.

pub(crate) mod agent;
pub(crate) mod announce;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod drain;
pub(crate) mod explain;
pub(crate) mod gc;
pub(crate) mod init;
pub(crate) mod inspect;
mod inventory;
mod keep;
mod left_by_drain;
pub(crate) mod list;
pub(crate) mod man;
pub(crate) mod pin;
pub(crate) mod prune;
pub(crate) mod push;
pub(crate) mod restore;
pub(crate) mod run;
pub(crate) mod save;
pub(crate) mod show;
mod starts;
pub(crate) mod status;
pub(crate) mod verify;
pub(crate) mod wait;

use stepvault_core::Result;

use crate::arguments::{Command, GlobalArguments};
use crate::exit_code::ExitCode;
use crate::interrupt::Interrupt;
use crate::leave_by::LeaveBy;
use crate::output::Output;

/// What every command has.
#[derive(Debug)]
pub(crate) struct Session {
    /// The global options.
    pub(crate) global: GlobalArguments,
    /// Where to print.
    pub(crate) output: Output,
    /// Tells when the process is asked to end.
    pub(crate) interrupt: Interrupt,
    /// By when the process has to be gone.
    pub(crate) leave_by: LeaveBy,
}

/// Runs a command.
pub(crate) async fn run(session: &Session, command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo(arguments) => Box::pin(demo::run(session, arguments)).await,
        Command::Init(arguments) => init::run(session, &arguments),
        Command::Agent(arguments) => agent::run(session, &arguments).await,
        Command::Announce(arguments) => announce::run(session, arguments).await,
        Command::Wait(arguments) => wait::run(session, &arguments).await,
        Command::Drain(arguments) => drain::run(session, &arguments).await,
        Command::Push(arguments) => push::run(session, arguments).await,
        Command::Restore(arguments) => restore::run(session, arguments).await,
        Command::Run(arguments) => Box::pin(run::run(session, arguments)).await,
        Command::Stage(arguments) => save::run_stage(session, arguments).await,
        Command::Commit(arguments) => save::run_commit(session, arguments).await,
        Command::List(arguments) => list::run(session, &arguments).await,
        Command::Show(arguments) => show::run(session, &arguments).await,
        Command::Status(arguments) => status::run(session, &arguments).await,
        Command::Verify(arguments) => verify::run(session, &arguments).await,
        Command::Prune(arguments) => prune::run(session, &arguments).await,
        Command::Pin(arguments) => pin::run_pin(session, &arguments).await,
        Command::Unpin(arguments) => pin::run_unpin(session, &arguments).await,
        Command::Gc(arguments) => gc::run(session, &arguments).await,
        Command::Inspect(arguments) => inspect::run(session, arguments).await,
        Command::Explain(arguments) => Box::pin(explain::run(session, arguments)).await,
        Command::Config(arguments) => config::run(session, &arguments),
        Command::Completions(arguments) => Ok(completions::run(session, &arguments)),
        Command::Man(arguments) => man::run(session, &arguments),
    }
}

//! The commands: each reads its arguments, calls the engine, prints the result and chooses the exit code.

pub(crate) mod agent;
pub(crate) mod announce;
mod child;
pub(crate) mod config;
pub(crate) mod copy;
pub(crate) mod dashboard;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod du;
pub(crate) mod estimate;
pub(crate) mod explain;
pub(crate) mod follow;
pub(crate) mod gc;
pub(crate) mod generated;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod inventory;
pub(crate) mod list;
mod node_records;
mod notify;
pub(crate) mod pin;
pub(crate) mod prune;
pub(crate) mod push;
pub(crate) mod remote;
pub(crate) mod restore;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod save;
#[cfg(test)]
mod schema_tests;
pub(crate) mod show;
mod starts;
pub(crate) mod status;
pub(crate) mod tier;
pub(crate) mod verify;
pub(crate) mod wait;

use stepvault_core::{ErrorKind, Result};

use crate::arguments::Command;
use crate::context::{Settings, hint_for_unknown_run};
use crate::exit_code::ExitCode;
use crate::session::Session;

/// Runs a command. If it finds no checkpoint because the run is unknown, the error names other runs.
pub(crate) async fn run(session: &Session, command: Command) -> Result<ExitCode> {
    let may_be_mistyped = !command.is_service();
    match Box::pin(dispatch(session, command)).await {
        Err(error) if error.kind() == ErrorKind::NotFound && may_be_mistyped => {
            let settings = Settings::load_silently(session)?;
            Err(match hint_for_unknown_run(&settings).await {
                Some(hint) => error.hint(hint),
                None => error,
            })
        }
        outcome => outcome,
    }
}

async fn dispatch(session: &Session, command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo(arguments) => Box::pin(demo::run(session, arguments)).await,
        Command::Doctor(arguments) => doctor::run(session, arguments).await,
        Command::Init(arguments) => init::run(session, &arguments),
        Command::Agent(arguments) => Box::pin(agent::run(session, &arguments)).await,
        Command::Announce(arguments) => announce::run(session, arguments).await,
        Command::Wait(arguments) => wait::run(session, &arguments).await,
        Command::Drain(arguments) => drain::run(session, &arguments).await,
        Command::Push(arguments) => push::run(session, arguments).await,
        Command::Restore(arguments) => restore::run(session, arguments).await,
        Command::Run(arguments) => Box::pin(run::run(session, arguments)).await,
        Command::Follow(arguments) => Box::pin(follow::run(session, *arguments)).await,
        Command::Stage(arguments) => save::run_stage(session, arguments).await,
        Command::Commit(arguments) => save::run_commit(session, arguments).await,
        Command::List(arguments) => list::run(session, &arguments).await,
        Command::Runs(arguments) => runs::run(session, &arguments).await,
        Command::Du(arguments) => du::run(session, arguments).await,
        Command::Show(chosen) => show::run(session, &chosen).await,
        Command::Status(arguments) => status::run(session, &arguments).await,
        Command::Dashboard(arguments) => Box::pin(dashboard::run(session, &arguments)).await,
        Command::Verify(arguments) => verify::run(session, &arguments).await,
        Command::Prune(arguments) => prune::run(session, &arguments).await,
        Command::Copy(arguments) => copy::run(session, &arguments).await,
        Command::Tier(arguments) => tier::run(session, &arguments).await,
        Command::Pin(arguments) => pin::change(session, &arguments.step, Some(&arguments.note)).await,
        Command::Unpin(chosen) => pin::change(session, &chosen, None).await,
        Command::Gc(arguments) => gc::run(session, &arguments).await,
        Command::Remote(action) => remote::run(session, &action).await,
        Command::Import(arguments) => import::run(session, *arguments).await,
        Command::Inspect(arguments) => inspect::run(session, arguments).await,
        Command::Estimate(arguments) => Box::pin(estimate::run(session, *arguments)).await,
        Command::Explain(arguments) => Box::pin(explain::run(session, arguments)).await,
        Command::Config(action) => config::run(session, &action),
        Command::Completions(arguments) => generated::completions(session, &arguments),
        Command::Man(arguments) => generated::man(session, &arguments),
    }
}

//! `run`: restores, runs the trainer with an agent, and drains.

mod history;
mod restoring;
pub(super) mod signals;
mod trainer;
mod uploads;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use stepvault_agent::notifications::{LAST_MOMENTS, Notifier};
use stepvault_agent::{Stop, StopReason};
use stepvault_core::starts::{End, Ending};
use stepvault_core::{Attempt, Error, ErrorKind, Result, Step};
use stepvault_engine::exclusive::{Purpose, TIME_TO_LIVE};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::drain::left_undone;
use super::notify::notifier;
use super::push::hold_exclusive;
use super::restore::{ArchiveArguments, NodesArguments};
use crate::arguments::values::checked;
use crate::context::Tiers;
use crate::exit_code::ExitCode;
use crate::interrupt;
use crate::progress::{Progress, Style};
use crate::session::Session;
use history::StartNote;
use restoring::{Place, RestoredStep, refused, restore_step, tell};
use signals::{Signals, shares_terminal};
use trainer::{Ended, Trainer};
use uploads::Serving;

/// Until then the lease of a job that was killed has expired.
const LEASE_PATIENCE: Duration = TIME_TO_LIVE.saturating_add(Duration::from_secs(15));

/// Restore, start the trainer, watch for its checkpoints, and drain when it ends
///
/// Restores the newest valid step as 'restore --into' does, starts CMD, serves the configured runs as 'agent' does
/// while CMD runs, forwards signals to it, uploads the remaining steps when it ends, and exits with its exit code (128
/// plus the signal number if a signal killed it). A step that is not durable by then is named on stderr, and does not
/// change the exit code: 'stepvault status' and the next start tell of it.
///
/// If no checkpoint exists yet, the trainer starts from scratch. If checkpoints exist but none can be restored, the
/// trainer is not started. A step from which the trainer crashed several times in a row is skipped in favour of the
/// previous one. The trainer's environment has STEPVAULT_RESTORED_STEP and STEPVAULT_RESTORED_PATH, both empty at a
/// first start.
///
/// While another 'stepvault run' of the same run uses the vault, here or in another container, the trainer is not
/// started.
///
/// If the agent fails, a warning is printed and training continues. After SIGTERM the trainer has three quarters of
/// agent.drain-deadline to exit before its processes are killed; the rest is for uploading its last steps. A notice
/// that the machine is being taken away, and 'stepvault drain', are forwarded as SIGTERM.
#[derive(Debug, Args)]
#[expect(clippy::doc_markdown, reason = "the comments are the help texts")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct RunArguments {
    /// Directory that the trainer writes steps to and resumes from; by default the run's 'watch'
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// Restore this step instead of the newest valid one, even if the trainer crashed from it
    #[arg(long, value_name = "N", value_parser = checked::<Step>)]
    step: Option<Step>,
    /// Attempt to restore from
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    attempt: Option<Attempt>,
    /// Replace other content that has the step's name
    #[arg(long)]
    replace: bool,
    /// Resume from an older step if a newer one exists but cannot be read
    ///
    /// Without this flag the trainer is not started then, and the exit code is 12.
    #[arg(long)]
    allow_older: bool,
    /// Framework that wrote the checkpoints; detected by default
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Do not change the trainer's pointers or anything else in DIR
    #[arg(long)]
    no_pointer: bool,
    #[command(flatten)]
    archive: ArchiveArguments,
    #[command(flatten)]
    nodes: NodesArguments,
    /// Start the trainer even if checkpoints exist, or may exist, but none could be restored
    #[arg(long)]
    start_anyway: bool,
    /// Command that starts the trainer, with its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: RunArguments) -> Result<ExitCode> {
    if session.output.json {
        return Err(Error::new(ErrorKind::Usage, "cannot use --json with 'run'")
            .because("stdout belongs to the trainer")
            .hint("run 'stepvault status --json' to see the steps and the last starts"));
    }
    if std::process::id() == 1 {
        return signals::run_as_init().await;
    }
    let signals = Signals::listen(shares_terminal())?;
    let mut place = Place::find(session, arguments.into.as_deref())?;
    let tiers = place.open(session).await?;
    let notifier = notifier(&tiers);
    let code = train(session, &arguments, place, &tiers, signals, &notifier).await;
    // Nothing was kept waiting for the notifications of the start.
    notifier.finish(Instant::now() + session.exit_deadline.within(LAST_MOMENTS)).await;
    code
}

/// Restores a step, starts the trainer, and serves it to its end.
async fn train(
    session: &Session,
    arguments: &RunArguments,
    place: Place,
    tiers: &Tiers,
    mut signals: Signals,
    notifier: &Notifier,
) -> Result<ExitCode> {
    let in_foreground = shares_terminal();
    let (mut note, lock) = StartNote::begin(tiers).await?;
    let restoring = async {
        let held = hold_exclusive(tiers, Purpose::Train, LEASE_PATIENCE).await?;
        match restore_step(session, arguments, &place, tiers, &note, notifier).await {
            Err(error) if arguments.start_anyway => {
                let message = format!("the trainer is started without a restored step: {error}");
                session.output.warn(&message);
                Ok((held, None))
            }
            Err(error) => Err(refused(error)),
            Ok(restored) => Ok((held, restored)),
        }
    };
    let restored = tokio::select! {
        restored = restoring => restored,
        received = signals.next_end() => Err(interrupt::error("the trainer was not started")
            .because(received.name)),
    };
    tiers.progress.finish();
    let started = restored.and_then(|(held, restored)| {
        let environment = launch_environment(restored.as_ref());
        let trainer = Trainer::start(&arguments.command, environment, in_foreground, lock)?;
        Ok((held, trainer, restored))
    });
    let (held, trainer, restored) = match started {
        Ok(started) => started,
        Err(error) => {
            note_end(&mut note, Duration::ZERO, not_started(&error)).await;
            note.copy().await;
            return Err(error);
        }
    };
    let (process, step) = (trainer.process.clone(), restored.filter(|step| !step.is_outrun));
    note.change(move |start| {
        start.trainer.clone_from(&process);
        start.restored = step.as_ref().map(|step| step.id);
    })
    .await;
    let ended = Box::pin(accompany(session, place, tiers, trainer, &mut signals, &mut note)).await;
    for held in held {
        held.release().await;
    }
    Ok(ExitCode::Trainer(ended?.code()))
}

/// Runs the agent from the trainer's start to the end of the drain.
async fn accompany(
    session: &Session,
    place: Place,
    tiers: &Tiers,
    trainer: Trainer,
    signals: &mut Signals,
    note: &mut StartNote,
) -> Result<Ended> {
    let drain_deadline = place.served.agent.drain_deadline;
    let copying = tokio::spawn(note.clone().copy());
    let style = Style::of_service(&session.output);
    let progress = Progress::start(&place.served.remotes, style, &session.output);
    let mut serving = Serving {
        config: place.served,
        writer: tiers.writer.clone(),
        progress,
        output: session.output.clone(),
        invocation: place.settings.invocation(),
        said: String::new(),
    };
    let stop = Stop::new();
    let drained = CancellationToken::new();
    let cut_off = CancellationToken::new();
    let serve = async {
        let report = tokio::select! {
            report = serving.serve(&stop) => report,
            () = cut_off.cancelled() => None,
        };
        drained.cancel();
        report
    };
    let follow = async {
        let say = |text: &str| session.output.warn(text);
        let ended = trainer.wait(&mut *signals, &stop, drain_deadline, say).await;
        let (mut deadline, mut was_asked) = (Instant::now() + drain_deadline, false);
        // The copy under way must not overwrite the newer one below.
        copying.abort();
        if let Ok(ended) = &ended {
            note_end(note, ended.lasted, ending(ended)).await;
            tell(session, &format!("the trainer ended: {}", ending(ended)));
            if ended.left_others {
                let text = "processes that the trainer started are still running and are not stopped";
                session.output.warn(text);
            }
            if let Some(asked_for) = ended.deadline {
                deadline = asked_for;
                session.exit_deadline.set(asked_for.into_std());
            }
            was_asked = ended.asked_by.is_some();
        }
        let left_none = ended.as_ref().is_ok_and(|ended| ended.left_none);
        let reason = if left_none { StopReason::TrainerGone } else { StopReason::TrainerEnded };
        stop.request(reason, Some(deadline));
        let copied = tokio::time::timeout_at(deadline, note.clone().copy());
        let drained = async {
            let (_, ()) = tokio::join!(copied, drained.cancelled());
        };
        tokio::select! {
            () = drained => {}
            () = repeated_request(session, signals, was_asked) => {
                tell(session, "uploads stop; the next start continues them");
                cut_off.cancel();
            }
        }
        ended
    };
    let (report, ended) = tokio::join!(serve, follow);
    serving.progress.finish();
    if let Some(report) = &report {
        for line in left_undone(&report.left) {
            session.output.warn(&line);
        }
    }
    ended
}

/// Resolves when a signal asks to end although an end was already requested.
async fn repeated_request(session: &Session, signals: &mut Signals, was_asked: bool) {
    if !was_asked {
        signals.next_end().await;
        tell(session, "uploads continue until the drain deadline; a second signal ends them at once");
    }
    signals.next_end().await;
}

/// Returns the variables; empty values if there is no step, so that values of an outer `stepvault run` do not apply.
fn launch_environment(restored: Option<&RestoredStep>) -> [(&'static str, OsString); 2] {
    let restored = restored.map(|step| (step.id.step.number().to_string(), step.path.clone()));
    let (step, path) = restored.unwrap_or_default();
    [("STEPVAULT_RESTORED_STEP", step.into()), ("STEPVAULT_RESTORED_PATH", path.into())]
}

async fn note_end(note: &mut StartNote, lasted: Duration, how: Ending) {
    let end = End { lasted_seconds: lasted.as_secs(), how };
    note.change(move |start| start.end = Some(end.clone())).await;
}

fn not_started(error: &Error) -> Ending {
    if error.kind() == ErrorKind::Interrupted {
        Ending::stopped("a signal before the trainer's start")
    } else {
        Ending::failed(error)
    }
}

fn ending(ended: &Ended) -> Ending {
    let itself = match ended.status.signal() {
        Some(signal) => Ending::Killed(signal),
        None => Ending::Exited(i32::from(ended.code())),
    };
    match ended.asked_by {
        Some(signal) if ended.was_killed => {
            Ending::stopped(format!("{signal}, and killed because it did not exit"))
        }
        Some(signal) => Ending::stopped(format!("{signal}, with {itself}")),
        None => itself,
    }
}

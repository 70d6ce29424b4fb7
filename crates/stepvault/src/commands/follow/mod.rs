//! `follow`: restores each new durable step on another machine, and runs a command for it.

mod command;
mod document;
mod observer;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use parking_lot::Mutex;
use stepvault_agent::pause::{LONGEST, Pause, longest_pause};
use stepvault_core::follow::{NextStep, next_step};
use stepvault_core::include::IncludeFilter;
use stepvault_core::{Error, ErrorKind, RemoteName, Result, StepId};
use stepvault_engine::blocking;
use stepvault_engine::follow::{
    DurableSteps, FollowRequest, FollowedStep, Unfollowed, durable_steps, restore_followed, unfollowed,
};
use stepvault_engine::restore::{RestoreContext, RestorePlan, ThawOptions};
use stepvault_local::follow_directory::{FollowDirectory, LATEST};
use stepvault_remote::store::ThawSpeed;
use tokio::time::Instant;

use super::restore::restore_context;
use super::run::signals::{Signals, run_as_init};
use crate::arguments::values::{duration, interval, thaw_speed};
use crate::context::{DefaultVault, Settings, Tiers, hint_for_unknown_run};
use crate::exit_code::ExitCode;
use crate::interrupt;
use crate::session::Session;
use command::{Asked, CommandEnd, Confirmations, run_command};
pub(super) use document::FollowDocument;
use document::FollowEvent;
use observer::PlaceObserver;

/// Wait for new durable steps on another machine, restore each, and run a command for it
///
/// For evaluation jobs, and for servers that load new weights. A step is restored with each byte verified, to
/// DIR/LABEL/NAME, a path that never holds anything else; the link DIR/latest points to the newest. COMMAND is run for
/// each step, with {path}, {step} and {attempt} replaced in its arguments. If several steps became durable meanwhile,
/// the newest is restored and the others are passed over, unless --all is given.
///
/// The last restored steps stay in DIR, and older ones are removed: only files that this command put there and that
/// nobody has changed. What is finished is recorded in DIR, so that the next start continues there. Credentials that may
/// only read suffice.
///
/// A command that fails is run again --retries times, unless a newer step is durable by then. SIGTERM and SIGINT are
/// passed on to a running command; between steps, follow ends with code 0. A remote that cannot be reached is waited for.
#[derive(Debug, Args)]
pub(crate) struct FollowArguments {
    /// Directory to restore the steps into
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    /// Restore only files that match; repeatable: --include '*.safetensors'
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Follow only steps whose number is a multiple of N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    every: Option<u64>,
    /// Follow every step, the oldest first, instead of the newest that waits
    ///
    /// An older step that becomes durable after a newer one is followed then.
    #[arg(long)]
    all: bool,
    /// Number of restored steps that stay in DIR
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Interval at which the remotes are listed, from 1s to 1h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = interval)]
    interval: Duration,
    /// Follow one step and exit
    #[arg(long)]
    once: bool,
    /// Maximum time to wait for a new step, for ever by default; "0s" checks once, for at most 5 s
    ///
    /// Then it exits: with 0 if it has followed a step, 10 if there was none, and 12 if no remote answered.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// Request archived objects of a step, which takes minutes to days and is charged: expedited, standard or bulk
    ///
    /// The step is tried again until they are readable. Without this flag, somebody else has to request them.
    #[arg(long, value_name = "SPEED", value_parser = thaw_speed)]
    thaw: Option<ThawSpeed>,
    /// How often a command that failed is run again for the same step
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(..=100))]
    retries: u32,
    /// Maximum time of one run of the command; it gets SIGTERM then, and counts as failed
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    command_timeout: Option<Duration>,
    /// Time that the command has to exit after SIGTERM before its processes are killed
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    grace: Duration,
    /// Wait for a line on stdin after each restored step before it counts as finished
    ///
    /// For a program that reads the steps from --json. When stdin ends, follow ends.
    #[arg(long, conflicts_with = "command")]
    confirm: bool,
    /// Command to run for each restored step, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Why it ends if nobody confirms the steps any more.
const UNREAD: &str = "stdin has ended";
/// Longest time of a single check.
const ONE_CHECK_WITHIN: Duration = Duration::from_secs(5);
/// Longest timeout, so that adding it to the current time cannot overflow.
const LONGEST_TIMEOUT: Duration = Duration::from_hours(24 * 365);

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: FollowArguments) -> Result<ExitCode> {
    if std::process::id() == 1 {
        return run_as_init().await;
    }
    let mut signals = Signals::listen(true)?;
    IncludeFilter::new(&arguments.include)?;
    let settings = Settings::load(session)?;
    let tiers = Tiers::open_for_service(&settings, DefaultVault::None, &session.output).await?;
    if tiers.remotes.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "no remote selected")
            .because("only steps on a remote can be followed")
            .hint("give --remote URL, or a configuration with --config FILE"));
    }
    let (into, run) = (arguments.into.clone(), tiers.run_name().clone());
    let directory = blocking(move || FollowDirectory::open(&into, &run)).await?;
    let mut follower = Follower {
        session,
        tiers: &tiers,
        confirmations: arguments.confirm.then(Confirmations::listen).transpose()?,
        arguments: &arguments,
        directory: Arc::new(Mutex::new(directory)),
        answers: Answers::default(),
        delay: Pause::default(),
        delayed: None,
        waiting_since: None,
        is_waiting: false,
        finished: 0,
        failed: 0,
    };
    let outcome = Box::pin(follower.follow(&mut signals)).await;
    tiers.progress.finish();
    outcome
}

/// What came of a restored step.
enum Acted {
    Finished,
    /// A signal arrived while the command ran, and the command has succeeded even so.
    FinishedLast(&'static str),
    /// A signal arrived while the command ran, and the step is not finished.
    Interrupted(&'static str),
    /// Nobody reads the steps any more.
    Unread,
}

struct Follower<'a> {
    session: &'a Session,
    tiers: &'a Tiers,
    arguments: &'a FollowArguments,
    directory: Arc<Mutex<FollowDirectory>>,
    confirmations: Option<Confirmations>,
    answers: Answers,
    /// How long to wait for the step that could not be restored.
    delay: Pause,
    /// The step that could not be restored the last time, and why.
    delayed: Option<(StepId, Error)>,
    /// Since when a new step is waited for.
    waiting_since: Option<Instant>,
    /// Whether it was told that there is no step yet.
    is_waiting: bool,
    finished: u64,
    failed: u64,
}

/// Which remotes answer.
#[derive(Default)]
struct Answers {
    /// The remotes that did not answer the last time, each with what was told of it.
    failing: BTreeMap<RemoteName, Error>,
    /// How long to wait for them.
    pause: Pause,
    /// Whether any remote has ever answered.
    has_any: bool,
}

impl Follower<'_> {
    async fn follow(&mut self, signals: &mut Signals) -> Result<ExitCode> {
        // One that was stopped before it removed a step is to go on; a step that waits may be an older one.
        if self.waiting_placed().await?.is_empty() {
            self.remove_older().await?;
        }
        loop {
            let unread = self.confirmations.as_ref().map(Confirmations::ended).unwrap_or_default();
            let next = tokio::select! {
                biased;
                received = signals.next_end() => return self.end(received.name, ExitCode::Done),
                () = unread.cancelled() => return self.end(UNREAD, ExitCode::Done),
                next = self.wait_for_step() => next?,
            };
            let Some(next) = next else {
                return self.timed_out();
            };
            let id = next.id;
            let path = tokio::select! {
                biased;
                received = signals.next_end() => return Err(interrupted(received.name, id)),
                path = self.restore(next) => path?,
            };
            let Some(path) = path else {
                continue;
            };
            match self.act(id, &path, signals).await? {
                Acted::Finished => {}
                Acted::FinishedLast(signal) => return self.end(signal, self.code()),
                Acted::Interrupted(signal) => return Err(interrupted(signal, id)),
                Acted::Unread => return self.end(UNREAD, ExitCode::Done),
            }
            if self.arguments.once {
                return Ok(self.code());
            }
        }
    }

    fn document(&self, event: FollowEvent, id: Option<StepId>) -> FollowDocument {
        FollowDocument::new(event, self.tiers.run_name(), id)
    }

    fn report(&self, document: &FollowDocument) -> Result<()> {
        let output = &self.session.output;
        let is_result = document.is_restored() && self.arguments.command.is_empty();
        if document.is_warning() {
            output.warn(&document.text());
        } else if !output.json && !is_result && !output.quiet {
            output.line(&document.text());
        }
        if output.json || is_result { output.result(document) } else { Ok(()) }
    }

    fn end(&self, reason: &str, code: ExitCode) -> Result<ExitCode> {
        self.report(&FollowDocument {
            reason: Some(reason.to_owned()),
            ..self.document(FollowEvent::Ended, None)
        })?;
        Ok(code)
    }

    /// Returns the code from the results of the commands.
    fn code(&self) -> ExitCode {
        match self.failed {
            0 => ExitCode::Done,
            failed if failed == self.finished => ExitCode::Failed,
            _ => ExitCode::Partly,
        }
    }

    /// Ends because no new step appeared in time.
    fn timed_out(&mut self) -> Result<ExitCode> {
        if self.finished > 0 {
            return self.end("no new step in time", self.code());
        }
        if let Some((_, error)) = self.delayed.take() {
            return Err(error);
        }
        if !self.answers.has_any {
            let error = self.answers.failing.pop_first().map(|(_, error)| error);
            return Err(error.unwrap_or_else(|| {
                Error::new(ErrorKind::Unreachable, "no remote answered in time")
                    .hint("give a longer --timeout")
            }));
        }
        Err(Error::new(ErrorKind::NotFound, "no new durable step")
            .on(format!("run '{}'", self.tiers.run_name()))
            .because("none appeared in time")
            .hint("give a longer --timeout; 'stepvault list' shows the steps"))
    }

    /// Lists the durable steps once, and returns the step to follow.
    async fn next_durable(&mut self) -> Result<Option<NextStep>> {
        let followed = self.directory.lock().followed().clone();
        let rules = self.arguments.rules();
        let is_waiting = |id| followed.is_waiting(id, rules);
        let mut durable = durable_steps(&self.tiers.remotes, is_waiting).await;
        self.report_unreachable(&mut durable)?;
        durable.ids.extend(self.waiting_placed().await?);
        Ok(next_step(&durable.ids, &followed, rules))
    }

    /// Returns the steps that were restored and are not finished. They are followed even if they were removed since.
    async fn waiting_placed(&self) -> Result<BTreeSet<StepId>> {
        let (directory, rules) = (Arc::clone(&self.directory), self.arguments.rules());
        blocking(move || {
            let directory = directory.lock();
            let mut placed = directory.placed_steps()?;
            placed.retain(|id| directory.followed().is_waiting(*id, rules));
            Ok(placed)
        })
        .await
    }

    /// Waits for a step to follow; `None` if none appeared in time.
    async fn wait_for_step(&mut self) -> Result<Option<NextStep>> {
        let begun = *self.waiting_since.get_or_insert_with(Instant::now);
        let timeout = self.arguments.timeout.map(|timeout| timeout.min(LONGEST_TIMEOUT));
        let deadline = begun + timeout.unwrap_or(LONGEST_TIMEOUT);
        let cut = if timeout == Some(Duration::ZERO) { begun + ONE_CHECK_WITHIN } else { deadline };
        loop {
            if self.delayed.is_some() {
                tokio::select! {
                    () = self.delay.wait() => {}
                    () = tokio::time::sleep_until(deadline) => return Ok(None),
                }
            }
            match tokio::time::timeout_at(cut, self.next_durable()).await {
                Ok(next) => {
                    if let Some(next) = next? {
                        return Ok(Some(next));
                    }
                }
                Err(_) => return Ok(None),
            }
            self.delayed = None;
            self.report_waiting().await?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let interval = tokio::time::sleep(self.arguments.interval.min(left));
            if self.answers.failing.is_empty() {
                interval.await;
            } else {
                tokio::select! {
                    () = self.answers.pause.wait() => {}
                    () = tokio::time::sleep(left) => {}
                }
            }
        }
    }

    /// Reports once that there is no step yet.
    async fn report_waiting(&mut self) -> Result<()> {
        let is_new = self.directory.lock().followed().newest().is_none() && self.answers.failing.is_empty();
        if !is_new || std::mem::replace(&mut self.is_waiting, true) {
            return Ok(());
        }
        let reason = hint_for_unknown_run(&self.tiers.settings).await;
        self.report(&FollowDocument { reason, ..self.document(FollowEvent::Waiting, None) })
    }

    /// Reports which remotes stopped answering, and which answer again: each once.
    fn report_unreachable(&mut self, durable: &mut DurableSteps) -> Result<()> {
        let now: BTreeMap<RemoteName, Error> = std::mem::take(&mut durable.unreachable)
            .into_iter()
            .map(|(remote, error)| (remote.name().clone(), error))
            .collect();
        let before = std::mem::replace(&mut self.answers.failing, now);
        self.answers.has_any |= self.answers.failing.len() < self.tiers.remotes.len();
        match self.answers.failing.values().map(longest_pause).max() {
            Some(longest) => self.answers.pause.failed(longest, None),
            None => self.answers.pause.clear(),
        }
        for (remote, error) in self.answers.failing.iter().filter(|(remote, _)| !before.contains_key(*remote))
        {
            self.report(&FollowDocument {
                remote: Some(remote.clone()),
                reason: Some(error.text_with_hint()),
                ..self.document(FollowEvent::Unreachable, None)
            })?;
        }
        for remote in before.into_keys().filter(|remote| !self.answers.failing.contains_key(remote)) {
            self.report(&FollowDocument {
                remote: Some(remote),
                ..self.document(FollowEvent::Reachable, None)
            })?;
        }
        Ok(())
    }

    /// Restores a step and returns its path; `None` if it is skipped, or is tried again later.
    async fn restore(&mut self, next: NextStep) -> Result<Option<PathBuf>> {
        let (began, id) = (Instant::now(), next.id);
        let directory = self.directory.lock().path().to_owned();
        let observer = Arc::new(PlaceObserver { inner: self.tiers.observer(), directory });
        let context = RestoreContext { observer, ..restore_context(self.tiers) };
        let run = self.tiers.run_name();
        let patience = Duration::ZERO;
        let request = FollowRequest {
            run: run.clone(),
            id,
            include: self.arguments.include.clone(),
            thaw: self.arguments.thaw.map(|speed| ThawOptions { speed, patience }),
        };
        let restored = restore_followed(&context, &self.directory, request).await;
        let FollowedStep { path, report } = match restored {
            Ok(restored) => restored,
            Err(error) => return self.not_restored(id, error).await.map(|()| None),
        };
        (self.delayed, self.waiting_since) = (None, None);
        self.delay.clear();
        let plan = report.as_ref().map(|report| &report.plan);
        self.report(&FollowDocument {
            path: Some(path.clone()),
            files: plan.map(RestorePlan::file_count),
            bytes: plan.map(RestorePlan::data_bytes),
            passed_over: next.passed_over,
            seconds: Some(began.elapsed().as_secs_f64()),
            ..self.document(FollowEvent::Restored, Some(id))
        })?;
        let (directory, pointed) = (Arc::clone(&self.directory), path.clone());
        if !blocking(move || directory.lock().point_to(id, &pointed)).await? {
            let link = self.directory.lock().path().join(LATEST);
            let text = format!("{} is not a link of this command, and is left as it is", link.display());
            self.session.output.warn(&text);
        }
        Ok(Some(path))
    }

    /// Skips a step that cannot be restored, or lets it be tried again.
    async fn not_restored(&mut self, id: StepId, error: Error) -> Result<()> {
        let is_ours = matches!(error.kind(), ErrorKind::Usage | ErrorKind::Interrupted | ErrorKind::Held);
        if is_ours {
            return Err(error);
        }
        // What was requested is tried again: the hint of a restore does not apply.
        let is_requested = error.kind() == ErrorKind::Archived && self.arguments.thaw.is_some();
        let mut reason = if is_requested { error.to_string() } else { error.text_with_hint() };
        let outcome = unfollowed(&self.tiers.remotes, id, &error).await;
        if outcome != Unfollowed::Unknown {
            if outcome == Unfollowed::Removed {
                reason = format!("it was removed from a remote meanwhile: {error}");
            } else {
                let directory = Arc::clone(&self.directory);
                blocking(move || directory.lock().skip(id)).await?;
            }
            let skipped = self.document(FollowEvent::Skipped, Some(id));
            return self.report(&FollowDocument { reason: Some(reason), ..skipped });
        }
        self.delay.failed(longest_pause(&error), None);
        let is_known = self.delayed.replace((id, error)).is_some_and(|(delayed, _)| delayed == id);
        if is_known {
            return Ok(());
        }
        let delayed = self.document(FollowEvent::Delayed, Some(id));
        self.report(&FollowDocument { reason: Some(reason), ..delayed })
    }

    /// Does what is to be done with a restored step, and removes older ones.
    async fn act(&mut self, id: StepId, path: &Path, signals: &mut Signals) -> Result<Acted> {
        let acted = if let Some(confirmations) = &mut self.confirmations {
            tokio::select! {
                biased;
                received = signals.next_end() => Acted::Interrupted(received.name),
                line = confirmations.next() => if line { Acted::Finished } else { Acted::Unread },
            }
        } else if self.arguments.command.is_empty() {
            Acted::Finished
        } else {
            self.run_command(id, path, signals).await?
        };
        if matches!(acted, Acted::Interrupted(_) | Acted::Unread) {
            return Ok(acted);
        }
        self.finished += 1;
        let (directory, rules) = (Arc::clone(&self.directory), self.arguments.rules());
        blocking(move || directory.lock().finish(id, rules)).await?;
        self.remove_older().await?;
        Ok(acted)
    }

    /// Removes the followed steps but the newest ones that are to be kept.
    async fn remove_older(&self) -> Result<()> {
        let (directory, keep) = (Arc::clone(&self.directory), self.arguments.keep as usize);
        for step in blocking(move || directory.lock().remove_older(keep)).await? {
            let left = "it holds files that were changed, or that this command did not put there";
            self.report(&FollowDocument {
                path: Some(step.path),
                reason: step.left_others.then(|| left.to_owned()),
                ..self.document(FollowEvent::Removed, Some(step.id))
            })?;
        }
        Ok(())
    }

    /// Runs the command, again if it fails.
    async fn run_command(&mut self, id: StepId, path: &Path, signals: &mut Signals) -> Result<Acted> {
        let mut pause = Pause::default();
        for tries in 1.. {
            let ended =
                run_command(self.arguments.command_line(id, path, self.session.output.json), signals).await?;
            let is_last = self.report_end(id, &ended, tries).await?;
            if let Some(Asked::Signal(signal)) = ended.asked {
                let is_success = ended.is_success();
                return Ok(if is_success { Acted::FinishedLast(signal) } else { Acted::Interrupted(signal) });
            }
            if is_last {
                break;
            }
            pause.failed(LONGEST, None);
            tokio::select! {
                biased;
                received = signals.next_end() => return Ok(Acted::Interrupted(received.name)),
                () = pause.wait() => {}
            }
        }
        Ok(Acted::Finished)
    }

    /// Reports how the command ended; returns whether it is not run again.
    async fn report_end(&mut self, id: StepId, ended: &CommandEnd, tries: u32) -> Result<bool> {
        let mut reason = ended.reason();
        let is_success = ended.is_success();
        let is_stopped = matches!(ended.asked, Some(Asked::Signal(_)));
        let mut is_last = is_success || !is_stopped && tries > self.arguments.retries;
        if !is_last && !is_stopped {
            let newer = self.next_durable().await?;
            if newer.is_some_and(|newer| newer.id != id && !self.arguments.all) {
                is_last = true;
                reason.push_str("; not run again, as a newer step is durable");
            }
        }
        let event = match is_success {
            true => FollowEvent::Finished,
            false if is_last => FollowEvent::Failed,
            false => FollowEvent::Retrying,
        };
        self.failed += u64::from(event == FollowEvent::Failed);
        self.report(&FollowDocument {
            exit_code: Some(ended.code),
            output: ended.output.clone(),
            tries: Some(tries),
            reason: (!is_success).then_some(reason),
            seconds: Some(ended.lasted.as_secs_f64()),
            ..self.document(event, Some(id))
        })?;
        Ok(is_last)
    }
}

fn interrupted(signal: &str, id: StepId) -> Error {
    interrupt::error("run the same command again to continue; bytes that were fetched are kept")
        .on(format!("{id} is not finished"))
        .because(signal)
}

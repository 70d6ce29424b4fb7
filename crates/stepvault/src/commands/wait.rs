//! `wait`: a barrier for trainers that always returns.

use std::time::Duration;

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_agent::control::{Client, LONGEST_WAIT, WaitRequest};
use stepvault_agent::step_progress::{Goal, Outcome, StepProgress, StepQuery, read_progress};
use stepvault_core::{Attempt, Error, ErrorKind, Result, Step};
use tokio::time::Instant;

use crate::arguments::values::{checked, duration, goal};
use crate::context::{DefaultVault, Settings, Tiers};
use crate::exit_code::ExitCode;
use crate::output::Report;
use crate::session::Session;

/// Wait until a step is staged, uploaded or durable; always returns, with the result as exit code
///
/// Asks the agent of the configured vault; if none answers, reads the vault's own records, and lists the remotes for
/// steps that these do not have. Exits with 0 if the step reached the state, 1 if it will not reach it by waiting, 10
/// if no such step was found in time, and 12 if the step is known but has not reached the state, or nothing could be
/// queried.
///
/// Without --attempt the newest attempt that has the step counts; a step that a later attempt has abandoned does not.
/// Right after a save this may still be an older attempt: to wait for a step that was just written, use 'announce
/// --wait-for', or give --attempt.
#[derive(Debug, Args)]
pub(crate) struct WaitArguments {
    /// Step number
    #[arg(value_parser = checked::<Step>)]
    step: Step,
    /// State to wait for: staged, uploaded or durable
    #[arg(long = "for", value_name = "STATE", default_value = "durable", value_parser = goal)]
    goal: Goal,
    /// Attempt; by default the newest that has the step
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    attempt: Option<Attempt>,
    /// Maximum time to wait; "0s" checks once, for at most 5 s
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,
}

/// Maximum timeout, so that adding it to the current time cannot overflow.
const LONGEST_TIMEOUT: Duration = Duration::from_hours(24 * 365);
/// Timeout of a single check.
const ONE_LOOK_WITHIN: Duration = Duration::from_secs(5);
/// Time within which a healthy agent answers.
const AGENT_ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait in one request, so that an agent that ends or freezes is noticed.
const ONE_REQUEST: Duration = Duration::from_secs(5);
const REQUEST_GRACE: Duration = Duration::from_secs(3);
/// Pause before an agent that did not answer is asked again.
const AGENT_LEFT_ALONE: Duration = Duration::from_secs(10);
/// Interval between two reads of the vault.
const VAULT_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum interval between two checks, also at the end.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two listings of the remotes.
const REMOTES_INTERVAL: Duration = Duration::from_secs(5);

/// The result of waiting.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WaitDocument {
    /// The state to wait for.
    #[serde(rename = "for")]
    goal: Goal,
    /// The outcome.
    outcome: Outcome,
    #[serde(flatten)]
    progress: StepProgress,
    /// Duration in seconds.
    seconds: f64,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &WaitArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?.patient();
    let wanted = StepQuery { run: settings.run()?.name, step: arguments.step, attempt: arguments.attempt };
    let document = wait(session, &settings, wanted, arguments.goal, arguments.timeout).await?;
    session.output.result(&document)?;
    Ok(document.exit_code())
}

/// Waits for at most `timeout`.
pub(super) async fn wait(
    session: &Session,
    settings: &Settings,
    wanted: StepQuery,
    goal: Goal,
    timeout: Duration,
) -> Result<WaitDocument> {
    let begun = Instant::now();
    let timeout = timeout.min(LONGEST_TIMEOUT);
    let mut barrier =
        Barrier { session, settings, goal, wanted: &wanted, deadline: begun + timeout, seen: None };
    let cut = begun + if timeout.is_zero() { ONE_LOOK_WITHIN } else { timeout };
    if let Ok(held) = tokio::time::timeout_at(cut, barrier.hold()).await {
        held?;
    }
    // If nothing answered, it is not even known that there is no such step.
    let nothing = || StepProgress {
        reason: Some("neither an agent nor a vault nor a remote answered in time".to_owned()),
        ..StepProgress::unknown(&wanted, &[])
    };
    let (outcome, progress) = match barrier.seen {
        Some(progress) => (progress.outcome(goal), progress),
        None => (Outcome::Late, nothing()),
    };
    Ok(WaitDocument { goal, outcome, progress, seconds: begun.elapsed().as_secs_f64() })
}

struct Barrier<'a> {
    session: &'a Session,
    settings: &'a Settings,
    goal: Goal,
    wanted: &'a StepQuery,
    deadline: Instant,
    seen: Option<StepProgress>,
}

impl Barrier<'_> {
    /// Stores the progress; returns true if there is nothing more to wait for.
    fn see(&mut self, progress: StepProgress) -> bool {
        let is_over = matches!(progress.outcome(self.goal), Outcome::Reached | Outcome::Failed);
        self.seen = Some(progress);
        is_over || Instant::now() >= self.deadline
    }

    /// Polls the agent, the vault and the remotes until the wait is over.
    async fn hold(&mut self) -> Result<()> {
        let client = self.settings.control();
        let mut ask_agent_at = Instant::now();
        let mut tiers: Option<Tiers> = None;
        loop {
            if let Some(client) = client.as_ref().filter(|_| ask_agent_at <= Instant::now()) {
                if self.ask_agent(client).await {
                    return Ok(());
                }
                ask_agent_at = Instant::now() + AGENT_LEFT_ALONE;
            }
            let tiers = match &tiers {
                Some(tiers) => tiers,
                None => tiers.insert(self.open().await?),
            };
            let looked = read_progress(tiers.vault.as_ref(), &tiers.upload_remotes(), self.wanted).await;
            let in_vault = match looked {
                Ok(progress) => {
                    // Remotes without the vault show a step only once it is durable.
                    let in_vault = progress.reached.is_some_and(|reached| reached < Goal::Durable);
                    if self.see(progress) {
                        return Ok(());
                    }
                    in_vault
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot read the vault");
                    true
                }
            };
            let interval = if in_vault { VAULT_INTERVAL } else { REMOTES_INTERVAL };
            let left = self.deadline.saturating_duration_since(Instant::now());
            tokio::time::sleep(interval.min(left).max(SHORTEST_INTERVAL)).await;
        }
    }

    async fn open(&self) -> Result<Tiers> {
        let tiers = Tiers::open(self.settings, DefaultVault::None, &self.session.output).await?;
        tiers.progress.finish();
        tiers.require_any()?;
        Ok(tiers)
    }

    /// Waits through the agent; returns false if none answers.
    async fn ask_agent(&mut self, client: &Client) -> bool {
        // Ask for the status first, so that a frozen agent costs one second, not the whole request.
        if let Err(error) = client.status(AGENT_ANSWERS_WITHIN).await {
            tracing::debug!(%error, "no agent answers");
            return false;
        }
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let request = WaitRequest {
                run: Some(self.wanted.run.clone()),
                step: self.wanted.step,
                attempt: self.wanted.attempt,
                goal: self.goal,
                timeout_seconds: left.min(ONE_REQUEST).min(LONGEST_WAIT).as_secs(),
            };
            match client.wait(&request, REQUEST_GRACE).await {
                Ok(answer) => {
                    if self.see(answer.progress) {
                        return true;
                    }
                    if request.timeout_seconds == 0 {
                        tokio::time::sleep(left.min(VAULT_INTERVAL)).await;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "the agent did not answer");
                    return false;
                }
            }
        }
    }
}

impl WaitDocument {
    /// Returns the exit code.
    pub(super) fn exit_code(&self) -> ExitCode {
        match self.outcome {
            Outcome::Reached => ExitCode::Done,
            Outcome::Failed => ExitCode::Failed,
            Outcome::Unknown if self.was_answered() => ExitCode::NotFound,
            Outcome::Unknown | Outcome::Late => ExitCode::Unreachable,
        }
    }

    /// Returns whether a source that knows all steps reported that there is no such step.
    fn was_answered(&self) -> bool {
        let remotes = &self.progress.remotes;
        remotes.is_empty() || remotes.iter().any(|remote| remote.reason.is_none())
    }
}

impl Report for WaitDocument {
    fn human(&self) -> String {
        let progress = &self.progress;
        let (run, goal) = (&progress.run, self.goal);
        let step = match progress.id() {
            Some(id) => format!("{id} of '{run}'"),
            None => format!("step {} of '{run}'", progress.step),
        };
        let reason = progress.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let mut lines = vec![match (self.outcome, progress.reached) {
            (Outcome::Reached, _) => return format!("{step} is {goal}"),
            (Outcome::Failed, _) => format!("{step} will not become {goal} by waiting{reason}"),
            (Outcome::Unknown, _) => format!("no {step} was found{reason}"),
            (Outcome::Late, Some(reached)) => format!("{step} is {reached}, not {goal} yet{reason}"),
            (Outcome::Late, None) => format!("{step} is not {goal} yet{reason}"),
        }];
        let missing =
            progress.remotes.iter().filter(|remote| remote.reached.is_none_or(|reached| reached < self.goal));
        for remote in missing.filter(|_| progress.attempt.is_some()) {
            let weight = if remote.required { "" } else { " (optional)" };
            let reached = remote.reached.map_or("missing", Into::into);
            let reason = remote.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            lines.push(format!("  {}{weight}: {reached}{reason}", remote.remote));
        }
        lines.join("\n")
    }
}

/// Returns the error for a configuration without a control socket.
pub(super) fn no_agent() -> Error {
    Error::new(ErrorKind::Usage, "cannot reach the agent")
        .because(
            "no control socket is known, because no vault is configured or agent.control-socket is \"off\"",
        )
        .hint("give the agent's vault with --local DIR, or the agent's configuration with --config FILE")
}

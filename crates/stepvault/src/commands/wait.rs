//! `wait`: a barrier for trainers, which always ends.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use stepvault_agent::control::{Client, LONGEST_WAIT, WaitRequest};
use stepvault_agent::standing::{Goal, Outcome, Standing, Wanted, look};
use stepvault_core::ids::{Attempt, Step};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::Session;
use crate::arguments::values::{checked, duration, goal};
use crate::context::{DefaultVault, Settings, Tiers};
use crate::exit_code::ExitCode;
use crate::output::Report;

/// Wait until a step is staged, uploaded or durable; always ends, and says by the exit code how
///
/// It asks the agent of the configured vault, and where none answers the vault's own records, and for what these do not
/// have the remotes. Ends with 0 when the step is there, 1 when it will not get there by waiting, 10 when no such step
/// was seen by the end of the time, and 12 when it is known and not there yet, or nobody could be asked.
///
/// Without --attempt the newest attempt that has the step counts, and a step that a later attempt has left behind does
/// not. Right after a save that attempt may still be an older one: to wait for what was just written, use 'announce
/// --wait-for', or give --attempt.
#[derive(Debug, Args)]
pub(crate) struct WaitArguments {
    /// The step
    #[arg(value_parser = checked::<Step>)]
    step: Step,
    /// How far it has to come: staged, uploaded or durable
    #[arg(long = "for", value_name = "STATE", default_value = "durable", value_parser = goal)]
    goal: Goal,
    /// Its attempt; the newest that has this step when not given
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    attempt: Option<Attempt>,
    /// How long to wait; "0s" looks once, for at most 5 s
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,
}

/// What counts as for ever: a time that clocks can still add up.
const LONGEST_TIMEOUT: Duration = Duration::from_hours(24 * 365);
/// Looking once takes no longer than this.
const ONE_LOOK_WITHIN: Duration = Duration::from_secs(5);
/// An agent that is well answers in this time.
const AGENT_ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait in one request, so that an agent that ends or freezes is noticed.
const ONE_REQUEST: Duration = Duration::from_secs(5);
const REQUEST_GRACE: Duration = Duration::from_secs(3);
/// An agent that did not answer is asked again after this long.
const AGENT_LEFT_ALONE: Duration = Duration::from_secs(10);
/// Between two looks at a vault.
const VAULT_INTERVAL: Duration = Duration::from_millis(500);
/// Between any two looks, also at the end.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Between two looks at remotes.
const REMOTES_INTERVAL: Duration = Duration::from_secs(5);

/// What waiting came to.
#[derive(Debug, Serialize)]
pub(super) struct WaitDocument {
    #[serde(rename = "for")]
    goal: Goal,
    outcome: Outcome,
    #[serde(flatten)]
    standing: Standing,
    seconds: f64,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &WaitArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let wanted = Wanted {
        run: settings.run()?.name,
        step: arguments.step,
        attempt: arguments.attempt,
    };
    let document = wait(session, &settings, wanted, arguments.goal, arguments.timeout).await?;
    session.output.result(&document)?;
    Ok(document.exit_code())
}

/// Waits for at most `timeout`.
pub(super) async fn wait(
    session: &Session,
    settings: &Settings,
    wanted: Wanted,
    goal: Goal,
    timeout: Duration,
) -> Result<WaitDocument> {
    let begun = Instant::now();
    let timeout = timeout.min(LONGEST_TIMEOUT);
    let barrier = Barrier {
        session,
        settings,
        goal,
        wanted: &wanted,
        deadline: begun + timeout,
        seen: Mutex::new(None),
    };
    let cut = begun
        + if timeout.is_zero() {
            ONE_LOOK_WITHIN
        } else {
            timeout
        };
    let standing = tokio::select! {
        biased;
        standing = barrier.hold() => standing?,
        () = tokio::time::sleep_until(cut) => barrier.last_seen(),
    };
    let (outcome, standing) = match standing {
        Some(standing) => (standing.outcome(goal), standing),
        None => (Outcome::Late, nothing(wanted)),
    };
    Ok(WaitDocument {
        goal,
        outcome,
        standing,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Nobody answered: nothing is known, not even that there is no such step.
fn nothing(wanted: Wanted) -> Standing {
    Standing {
        run: wanted.run,
        step: wanted.step,
        attempt: None,
        reached: None,
        remotes: Vec::new(),
        reason: Some("neither an agent nor a vault nor a remote answered in time".to_owned()),
        failed: false,
    }
}

struct Barrier<'a> {
    session: &'a Session,
    settings: &'a Settings,
    goal: Goal,
    wanted: &'a Wanted,
    deadline: Instant,
    seen: Mutex<Option<Standing>>,
}

impl Barrier<'_> {
    fn last_seen(&self) -> Option<Standing> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps what was seen; true when there is nothing more to wait for.
    fn see(&self, standing: Standing) -> bool {
        let is_over = matches!(standing.outcome(self.goal), Outcome::Reached | Outcome::Failed);
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(standing);
        is_over || Instant::now() >= self.deadline
    }

    /// Asks whoever knows, until it is over.
    async fn hold(&self) -> Result<Option<Standing>> {
        let client = self.settings.control();
        let mut ask_agent_at = Instant::now();
        let mut tiers: Option<Tiers> = None;
        loop {
            if let Some(client) = client.as_ref().filter(|_| ask_agent_at <= Instant::now()) {
                if self.ask_agent(client).await? {
                    return Ok(self.last_seen());
                }
                ask_agent_at = Instant::now() + AGENT_LEFT_ALONE;
            }
            let tiers = match &tiers {
                Some(tiers) => tiers,
                None => tiers.insert(self.open().await?),
            };
            let looked = look(tiers.vault.as_ref(), &tiers.remotes, self.wanted).await;
            let in_vault = match looked {
                Ok(standing) => {
                    // On remotes alone a step is durable or nothing.
                    let in_vault = standing.reached.is_some_and(|reached| reached < Goal::Durable);
                    if self.see(standing) {
                        return Ok(self.last_seen());
                    }
                    in_vault
                }
                Err(error) => {
                    tracing::debug!(%error, "the vault could not be looked at");
                    true
                }
            };
            let interval = if in_vault {
                VAULT_INTERVAL
            } else {
                REMOTES_INTERVAL
            };
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

    /// Waits with the agent; false when there is none that answers.
    async fn ask_agent(&self, client: &Client) -> Result<bool> {
        // Asked first, so that one that is frozen costs a second and not the whole request.
        if let Err(error) = client.status(AGENT_ANSWERS_WITHIN).await {
            tracing::debug!(%error, "no agent answers");
            return Ok(false);
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
                    if self.see(answer.standing) {
                        return Ok(true);
                    }
                    if request.timeout_seconds == 0 {
                        tokio::time::sleep(left.min(VAULT_INTERVAL)).await;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "the agent did not answer");
                    return Ok(false);
                }
            }
        }
    }
}

impl WaitDocument {
    /// How the process ends.
    pub(super) fn exit_code(&self) -> ExitCode {
        match self.outcome {
            Outcome::Reached => ExitCode::Done,
            Outcome::Failed => ExitCode::Failed,
            Outcome::Unknown if self.was_answered() => ExitCode::NotFound,
            Outcome::Unknown | Outcome::Late => ExitCode::Unreachable,
        }
    }

    /// Whether somebody who would know has said that there is no such step, rather than nobody anything.
    fn was_answered(&self) -> bool {
        let remotes = &self.standing.remotes;
        remotes.is_empty() || remotes.iter().any(|remote| remote.reason.is_none())
    }
}

impl Report for WaitDocument {
    fn human(&self) -> String {
        let standing = &self.standing;
        let (run, goal) = (&standing.run, self.goal.name());
        let step = match standing.id() {
            Some(id) => format!("{id} of '{run}'"),
            None => format!("step {} of '{run}'", standing.step),
        };
        let reason = standing
            .reason
            .as_ref()
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default();
        let mut lines = vec![match (self.outcome, standing.reached) {
            (Outcome::Reached, _) => return format!("{step} is {goal}"),
            (Outcome::Failed, _) => format!("{step} will not be {goal} by waiting{reason}"),
            (Outcome::Unknown, _) => format!("no {step} was seen{reason}"),
            (Outcome::Late, Some(reached)) => format!("{step} is {}, not {goal} yet{reason}", reached.name()),
            (Outcome::Late, None) => format!("{step} is not {goal} yet{reason}"),
        }];
        let missing = standing
            .remotes
            .iter()
            .filter(|remote| remote.reached.is_none_or(|reached| reached < self.goal));
        for remote in missing.filter(|_| standing.attempt.is_some()) {
            let weight = if remote.required { "" } else { " (optional)" };
            let reached = remote.reached.map_or("not there", Goal::name);
            let reason = remote
                .reason
                .as_ref()
                .map(|reason| format!(": {reason}"))
                .unwrap_or_default();
            lines.push(format!("  {}{weight}: {reached}{reason}", remote.remote));
        }
        lines.join("\n")
    }
}

/// An error that says only that nobody listens.
pub(super) fn no_agent() -> Error {
    Error::new(
        ErrorKind::Usage,
        "it is not known where the agent listens",
    )
    .because("no vault is configured, or agent.control-socket is \"off\"")
    .hint(
        "give the agent's vault with --local DIR, or the configuration that the agent has with --config FILE",
    )
}

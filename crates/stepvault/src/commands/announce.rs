//! `announce`: tells the agent that a step is finished.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_agent::control::{AnnounceAnswer, AnnounceRequest, AnnouncedStep, AnnouncementState, Client};
use stepvault_agent::step_progress::{Goal, StepQuery};
use stepvault_core::{Error, ErrorKind, Result, Step, StepId};
use tokio::time::Instant;

use super::wait::{self, WaitDocument};
use crate::arguments::values::{checked, duration, goal, metric};
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::output::Report;
use crate::session::Session;

/// Tell the agent that a step is finished, so that it seals the step at once, without a quiet time
///
/// The agent validates the step first: it refuses one that is incomplete by the rules of its framework or damaged, and
/// gives the reason. Announcing the same step twice is not an error. With --wait-for the command then waits as 'wait'
/// does, for exactly the files that are present now.
#[derive(Debug, Args)]
pub(crate) struct AnnounceArguments {
    /// Finished step: a directory or a single file
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Step number; by default read from the name, or from the content if the name has none
    #[arg(long, value_name = "N", value_parser = checked::<Step>)]
    step: Option<Step>,
    /// Metric for rules that keep the best steps; repeatable, overrides the checkpoint's own metrics
    #[arg(long, value_name = "NAME=VALUE", value_parser = metric)]
    metric: Vec<(String, f64)>,
    /// Wait until the step is staged, uploaded or durable
    #[arg(long, value_name = "STATE", value_parser = goal)]
    wait_for: Option<Goal>,
    /// Maximum time to wait
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct AnnounceDocument {
    #[serde(flatten)]
    announced: AnnouncedStep,
    /// Result of `--wait-for`; null without it, or if the step was not sealed in time.
    wait: Option<WaitDocument>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: AnnounceArguments) -> Result<ExitCode> {
    let deadline = Instant::now().checked_add(arguments.timeout);
    let settings = Settings::load(session)?;
    let client = settings.control().ok_or_else(wait::no_agent)?;
    let request = AnnounceRequest {
        run: settings.named_run().cloned(),
        path: absolute(&arguments.path)?,
        step: arguments.step,
        name: None,
        metrics: arguments.metric.into_iter().collect(),
        rank: None,
    };
    let mut answer = client.announce(&request).await?;
    let mut waited = None;
    if let Some(goal) = arguments.wait_for {
        let left =
            || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        answer = until_sealed(&client, answer, left()).await?;
        if let (Some(step), Some(attempt)) = (answer.announced.step, answer.announced.attempt) {
            let goal_step = StepQuery { run: answer.announced.run.clone(), step, attempt: Some(attempt) };
            waited = Some(wait::wait(session, &settings, goal_step, goal, left()).await?);
        }
    }
    let code = match (&waited, arguments.wait_for) {
        (Some(waited), _) => waited.exit_code(),
        // The step is known but not sealed yet.
        (None, Some(_)) => ExitCode::Unreachable,
        (None, None) => ExitCode::Done,
    };
    session.output.result(&AnnounceDocument { announced: answer.announced, wait: waited })?;
    Ok(code)
}

/// Polls until the step is sealed, for at most `within`.
async fn until_sealed(client: &Client, first: AnnounceAnswer, within: Duration) -> Result<AnnounceAnswer> {
    let id = first.announcement_id;
    let mut answer = first.clone();
    let asking = async {
        while answer.announced.state == AnnouncementState::Queued {
            answer = client.announcement(id).await?;
        }
        Ok(answer)
    };
    tokio::time::timeout(within, asking).await.unwrap_or(Ok(first))
}

/// Resolves the path for the agent, which has another working directory.
fn absolute(path: &Path) -> Result<PathBuf> {
    let fault = || Error::new(ErrorKind::Usage, "cannot announce").on(path.display());
    let given = std::path::absolute(path).map_err(|error| fault().caused_by(error))?;
    if let Err(error) = given.symlink_metadata() {
        return Err(fault().caused_by(error).hint("announce the step after it is written"));
    }
    match (given.parent(), given.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = parent.canonicalize().map_err(|error| fault().caused_by(error))?;
            Ok(parent.join(name))
        }
        _ => given.canonicalize().map_err(|error| fault().caused_by(error)),
    }
}

impl Report for AnnounceDocument {
    fn human(&self) -> String {
        let AnnouncedStep { run, path, .. } = &self.announced;
        let path = path.display();
        let id = self.announced.step.zip(self.announced.attempt);
        let id = id.map(|(step, attempt)| StepId {
            revision: self.announced.revision,
            ..StepId::new(attempt, step)
        });
        let announced = match id {
            Some(id) if self.announced.newly_sealed => format!("sealed {id} of '{run}': {path}"),
            Some(id) => format!("{id} of '{run}' was already sealed: {path}"),
            None => format!("announced to '{run}', not sealed yet: {path}"),
        };
        match &self.wait {
            Some(waited) => format!("{announced}\n{}", waited.human()),
            None => announced,
        }
    }
}

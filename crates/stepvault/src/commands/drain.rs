//! `drain`: asks the agent to finish its uploads and exit.

use std::time::Duration;

use clap::Args;
use stepvault_agent::control::{DrainAnswer, DrainRequest};
use stepvault_agent::{LeftUndone, SkippedEntry};
use stepvault_core::Result;

use super::wait::no_agent;
use crate::arguments::values::duration;
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::output::{Report, human};
use crate::session::Session;

/// Ask the agent to finish its uploads and exit, as SIGTERM does
///
/// With --wait the command waits until the agent has exited. The exit code is then 0 if every finished step, of any run
/// in the vault, is durable on every required remote, else 3.
#[derive(Debug, Args)]
pub(crate) struct DrainArguments {
    /// How long uploads may continue; by default agent.drain-deadline. An earlier deadline is never extended
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    deadline: Option<Duration>,
    /// Wait until the agent has exited
    #[arg(long)]
    wait: bool,
    /// The trainer has ended with all its processes, so no quiet time is waited for
    #[arg(long)]
    trainer_ended: bool,
}

/// How long the agent may take to exit after its deadline.
const GRACE: Duration = Duration::from_secs(30);

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &DrainArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let client = settings.control().ok_or_else(no_agent)?;
    let seconds = |deadline: Duration| deadline.as_secs() + u64::from(deadline.subsec_nanos() > 0);
    let request = DrainRequest {
        deadline_seconds: arguments.deadline.map(seconds),
        wait: arguments.wait,
        trainer_ended: arguments.trainer_ended,
    };
    let within = match (arguments.wait, arguments.deadline) {
        (false, _) => Duration::ZERO,
        // Assumes that the agent has the same configuration.
        (true, deadline) => deadline.unwrap_or(settings.config.agent.drain_deadline).saturating_add(GRACE),
    };
    let answer = client.drain(&request, within).await?;
    let code = match (answer.ended, answer.durable) {
        (false, _) | (true, Some(true)) => ExitCode::Done,
        (true, _) => ExitCode::Partly,
    };
    session.output.result(&answer)?;
    Ok(code)
}

impl Report for DrainAnswer {
    fn human(&self) -> String {
        if !self.ended {
            return format!(
                "asked the agent to stop: it exits within {}",
                human::duration(Duration::from_secs(self.remaining_seconds))
            );
        }
        let mut lines = vec![match self.durable {
            Some(true) => "the agent has exited: every finished step is sealed, and every sealed step is durable on every \
                 required remote"
                .to_owned(),
            _ => "the agent has exited, but not every finished step is durable on every required remote".to_owned(),
        }];
        lines.extend(left_undone(&self.left));
        lines.join("\n")
    }
}

/// Returns the work that an agent left unfinished when it exited: one line for each entry.
pub(super) fn left_undone(left: &LeftUndone) -> Vec<String> {
    let not_durable = left.not_durable.iter().map(|step| {
        format!(
            "{} of '{}' is not durable on {}{}, {} missing: {}",
            step.id,
            step.run,
            step.remote,
            if step.required { "" } else { " (optional)" },
            human::bytes(step.missing_bytes),
            step.reason
        )
    });
    let entries = |entries: &'static str, of: &[SkippedEntry]| -> Vec<String> {
        of.iter().map(|entry| format!("{} {entries}: {}", entry.path.display(), entry.reason)).collect()
    };
    not_durable
        .chain(entries("is not sealed", &left.unsealed))
        .chain(entries("cannot be uploaded", &left.unreadable))
        .chain(left.unserved.iter().map(ToString::to_string))
        .collect()
}

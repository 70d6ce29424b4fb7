//! `drain`: asking the agent to finish its uploads and end.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use stepvault_agent::control::{DrainAnswer, DrainRequest};
use stepvault_core::Result;

use super::Session;
use super::wait::no_agent;
use crate::arguments::values::duration;
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::output::{Report, human};

/// Ask the agent to upload what it can and end, as SIGTERM does
///
/// With --wait it ends when the agent has ended, with 0 when every sealed step is durable on every required remote and 3
/// when one is not.
#[derive(Debug, Args)]
pub(crate) struct DrainArguments {
    /// How long uploads may go on; agent.drain-deadline when not given. An earlier deadline is never put off
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    deadline: Option<Duration>,
    /// Wait until the agent has ended
    #[arg(long)]
    wait: bool,
}

/// How long the agent may take to end after its deadline.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Serialize)]
#[serde(transparent)]
struct DrainDocument(DrainAnswer);

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &DrainArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let client = settings.control().ok_or_else(no_agent)?;
    let seconds = |deadline: Duration| deadline.as_secs() + u64::from(deadline.subsec_nanos() > 0);
    let request = DrainRequest {
        deadline_seconds: arguments.deadline.map(seconds),
        wait: arguments.wait,
    };
    let within = match (arguments.wait, arguments.deadline) {
        (false, _) => Duration::ZERO,
        // As the agent is configured, where it has the same configuration.
        (true, deadline) => deadline
            .unwrap_or(settings.config.agent.drain_deadline)
            .saturating_add(GRACE),
    };
    let answer = client.drain(&request, within).await?;
    let code = match answer.safe {
        Some(false) => ExitCode::Partly,
        _ => ExitCode::Done,
    };
    session.output.result(&DrainDocument(answer))?;
    Ok(code)
}

impl Report for DrainDocument {
    fn human(&self) -> String {
        let answer = &self.0;
        if !answer.ended {
            return format!(
                "the agent was asked to stop, and ends within {}",
                human::duration(Duration::from_secs(answer.remaining_seconds))
            );
        }
        let mut lines = vec![match answer.safe {
            Some(true) => {
                "the agent has ended: every sealed step is durable on every required remote".to_owned()
            }
            _ => "the agent has ended, and not every sealed step is durable on every required remote"
                .to_owned(),
        }];
        for step in &answer.not_durable {
            let weight = if step.required { "" } else { " (optional)" };
            lines.push(format!(
                "{} of '{}' is not durable on {}{weight}: {}",
                step.id, step.run, step.remote, step.reason
            ));
        }
        lines.join("\n")
    }
}

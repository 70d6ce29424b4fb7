//! Waits for a step: the client gets an answer in time, whatever happens to the step.

use std::time::Duration;

use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::ControlState;
use crate::messages::{WaitAnswer, WaitRequest};
use crate::remotes::ServedRun;
use crate::step_progress::{Outcome, StepProgress, StepQuery, progress_elsewhere, progress_in_vault};

/// Maximum wait of one request.
pub const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// Interval of vault checks without a notification of a change: verifying a part is not an event.
const VAULT_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of remote queries about a step that the vault does not hold.
const REMOTE_INTERVAL: Duration = Duration::from_secs(15);

/// Waits until the step has reached the goal, fails, or time is up.
pub(super) async fn wait(state: &ControlState, request: WaitRequest) -> Result<WaitAnswer> {
    let timeout = Duration::from_secs(request.timeout_seconds);
    if timeout > LONGEST_WAIT {
        return Err(Error::new(ErrorKind::Usage, "cannot wait so long")
            .on(format!("timeout_seconds {}", request.timeout_seconds))
            .because(format!("one request waits for at most {} s", LONGEST_WAIT.as_secs()))
            .hint("send another request after its answer"));
    }
    let served = state.run(request.run.as_ref())?;
    let _permit = state.wait_permit()?;
    let deadline = Instant::now() + timeout;
    let mut watch = StepWatch {
        state,
        served,
        query: StepQuery { run: served.name().clone(), step: request.step, attempt: request.attempt },
        elsewhere: None,
    };
    let mut changes = state.shared.reporter.status.changes();
    let mut ended = state.ended.clone();
    loop {
        changes.mark_unchanged();
        let progress = watch.progress().await?;
        let answer = WaitAnswer { goal: request.goal, outcome: progress.outcome(request.goal), progress };
        let over = matches!(answer.outcome, Outcome::Reached | Outcome::Failed);
        if over || Instant::now() >= deadline || ended.borrow().is_some() {
            return Ok(answer);
        }
        let next = (Instant::now() + VAULT_INTERVAL).min(deadline);
        tokio::select! {
            _ = changes.changed() => {}
            _ = ended.wait_for(Option::is_some) => {}
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// Checks one step repeatedly, remotes rarely.
struct StepWatch<'a> {
    state: &'a ControlState,
    served: &'a ServedRun,
    query: StepQuery,
    elsewhere: Option<(Instant, StepProgress)>,
}

impl StepWatch<'_> {
    async fn progress(&mut self) -> Result<StepProgress> {
        let (vault, remotes) = (&self.state.shared.vault.vault, &self.served.remotes);
        let mut progress = match progress_in_vault(vault, remotes, &self.query).await? {
            Some(progress) => progress,
            None => match &self.elsewhere {
                Some((at, known)) if at.elapsed() < REMOTE_INTERVAL => known.clone(),
                _ => {
                    let found = progress_elsewhere(Some(vault), remotes, &self.query).await?;
                    self.elsewhere = Some((Instant::now(), found.clone()));
                    found
                }
            },
        };
        self.state.shared.reporter.status.explain(&mut progress);
        Ok(progress)
    }
}

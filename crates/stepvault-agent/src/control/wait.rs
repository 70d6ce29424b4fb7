//! Waits for a step: the client gets an answer in time, whatever happens to the step.

use std::time::Duration;

use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::messages::{WaitAnswer, WaitRequest};
use super::{ControlState, ServedRun};
use crate::standing::{Outcome, Standing, Wanted, look_elsewhere, look_in_vault};

/// Maximum wait of one request.
pub const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// Interval of vault checks without a notification of a change: verifying a part is not an event.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of remote queries about a step that the vault does not hold.
const ASK_INTERVAL: Duration = Duration::from_secs(15);

/// Waits until the step has reached the goal, fails, or time is up.
pub(super) async fn wait(control_state: &ControlState, request: WaitRequest) -> Result<WaitAnswer> {
    let timeout = Duration::from_secs(request.timeout_seconds);
    if timeout > LONGEST_WAIT {
        return Err(Error::new(ErrorKind::Usage, "cannot wait so long")
            .on(format!("timeout_seconds {}", request.timeout_seconds))
            .because(format!(
                "one request waits for at most {} s",
                LONGEST_WAIT.as_secs()
            ))
            .hint("send another request after its answer"));
    }
    let served = control_state.run(request.run.as_ref())?;
    let _leave = control_state.leave_to_wait()?;
    let deadline = Instant::now() + timeout;
    let mut watch = StepWatch::new(control_state, served, &request);
    let mut changes = control_state.shared.status.changes();
    let mut ended = control_state.ended.clone();
    loop {
        changes.mark_unchanged();
        let standing = watch.look().await?;
        let answer = WaitAnswer {
            goal: request.goal,
            outcome: standing.outcome(request.goal),
            standing,
        };
        let over = matches!(answer.outcome, Outcome::Reached | Outcome::Failed);
        if over || Instant::now() >= deadline || ended.borrow().is_some() {
            return Ok(answer);
        }
        let next = (Instant::now() + LOOK_INTERVAL).min(deadline);
        tokio::select! {
            _ = changes.changed() => {}
            _ = ended.wait_for(Option::is_some) => {}
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// Checks one step repeatedly, remotes rarely.
struct StepWatch<'a> {
    control_state: &'a ControlState,
    served: &'a ServedRun,
    wanted: Wanted,
    elsewhere: Option<(Instant, Standing)>,
}

impl<'a> StepWatch<'a> {
    fn new(control_state: &'a ControlState, served: &'a ServedRun, request: &WaitRequest) -> Self {
        Self {
            control_state,
            served,
            wanted: Wanted {
                run: served.run.clone(),
                step: request.step,
                attempt: request.attempt,
            },
            elsewhere: None,
        }
    }

    async fn look(&mut self) -> Result<Standing> {
        let (vault, remotes) = (&self.control_state.shared.vault, &self.served.remotes);
        let mut standing = match look_in_vault(vault, remotes, &self.wanted).await? {
            Some(standing) => standing,
            None => match &self.elsewhere {
                Some((at, known)) if at.elapsed() < ASK_INTERVAL => known.clone(),
                _ => {
                    let found = look_elsewhere(Some(vault), remotes, &self.wanted).await?;
                    self.elsewhere = Some((Instant::now(), found.clone()));
                    found
                }
            },
        };
        self.control_state.shared.status.explain(&mut standing);
        Ok(standing)
    }
}

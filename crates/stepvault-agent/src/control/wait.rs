//! Waiting for a step: whoever asks gets an answer in time, whatever becomes of the step.

use std::time::Duration;

use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::messages::{WaitAnswer, WaitRequest};
use super::{Desk, ServedRun};
use crate::standing::{Outcome, Standing, Wanted, look_elsewhere, look_in_vault};

/// The longest that one request may wait.
pub const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// The vault is looked at this often even if nobody tells of a change: a part that is verified is no event.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Remotes are asked this often about a step that the vault does not hold.
const ASK_INTERVAL: Duration = Duration::from_secs(15);

/// Waits until the step is there, or fails, or time is up.
pub(super) async fn wait(desk: &Desk, request: WaitRequest) -> Result<WaitAnswer> {
    let timeout = Duration::from_secs(request.timeout_seconds);
    if timeout > LONGEST_WAIT {
        return Err(Error::new(ErrorKind::Usage, "cannot wait so long")
            .on(format!("timeout_seconds {}", request.timeout_seconds))
            .because(format!(
                "one request waits for at most {} s",
                LONGEST_WAIT.as_secs()
            ))
            .hint("ask again when it has been answered"));
    }
    let served = desk.run(request.run.as_ref())?;
    let _leave = desk.leave_to_wait()?;
    let deadline = Instant::now() + timeout;
    let mut watch = StepWatch::new(desk, served, &request);
    let mut changes = desk.shared.board.changes();
    let mut ended = desk.ended.clone();
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

/// Looks at one step again and again, at remotes rarely.
struct StepWatch<'a> {
    desk: &'a Desk,
    served: &'a ServedRun,
    wanted: Wanted,
    elsewhere: Option<(Instant, Standing)>,
}

impl<'a> StepWatch<'a> {
    fn new(desk: &'a Desk, served: &'a ServedRun, request: &WaitRequest) -> Self {
        Self {
            desk,
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
        let (vault, remotes) = (&self.desk.shared.vault, &self.served.remotes);
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
        self.desk.shared.board.explain(&mut standing);
        Ok(standing)
    }
}

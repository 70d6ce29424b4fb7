//! Starts no second trainer of an exclusive run.

use std::time::Duration;

use stepvault_core::{ErrorKind, Result};
use stepvault_engine::exclusive::{ExclusiveRun, Purpose, TIME_TO_LIVE};
use tokio::time::{Instant, sleep};

use crate::context::Tiers;

const INTERVAL: Duration = Duration::from_secs(5);
/// Until then the lease of a job that was killed has expired.
const PATIENCE: Duration = TIME_TO_LIVE.saturating_add(Duration::from_secs(15));

/// Takes the exclusive right to train, on every remote that answers, if the run is exclusive. It is held until dropped.
///
/// # Errors
/// [`ErrorKind::Held`] while another job that trains has it.
pub(super) async fn hold_to_train(tiers: &Tiers) -> Result<Vec<ExclusiveRun>> {
    let mut held = Vec::new();
    let Some(vault) = tiers.vault.as_ref().filter(|_| tiers.run.exclusive) else {
        return Ok(held);
    };
    let began = Instant::now();
    for remote in &tiers.remotes {
        let mut is_said = false;
        loop {
            match ExclusiveRun::take(remote, vault, &tiers.writer, Purpose::Train).await {
                Ok(right) => held.push(right),
                Err(error) if error.kind() == ErrorKind::Held => {
                    if began.elapsed() > PATIENCE {
                        return Err(error);
                    }
                    if !std::mem::replace(&mut is_said, true) {
                        let seconds = PATIENCE.as_secs();
                        let text = format!("{error}; waiting {seconds} s at most, in case it was killed");
                        tiers.output.warn(&text);
                    }
                    sleep(INTERVAL).await;
                    continue;
                }
                Err(error) => tracing::debug!(%error, "cannot determine whether another job trains the run"),
            }
            break;
        }
    }
    Ok(held)
}

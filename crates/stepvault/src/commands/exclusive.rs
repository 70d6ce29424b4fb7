//! The exclusive right to write a run.

use std::time::Duration;

use stepvault_core::{ErrorKind, Result};
use stepvault_engine::exclusive::{ExclusiveRun, Purpose};
use tokio::time::{Instant, sleep};

use crate::context::Tiers;

const INTERVAL: Duration = Duration::from_secs(5);

/// Takes the exclusive right, on every remote that answers, if the run is exclusive. It is held until dropped. While
/// another job has it, waits for as long as `patience`.
///
/// # Errors
/// [`ErrorKind::Held`] if another job with this purpose still has it then.
pub(super) async fn hold(tiers: &Tiers, purpose: Purpose, patience: Duration) -> Result<Vec<ExclusiveRun>> {
    let mut held = Vec::new();
    let Some(vault) = tiers.vault.as_ref().filter(|_| tiers.run.exclusive) else {
        return Ok(held);
    };
    let does = match purpose {
        Purpose::Train => "trains",
        Purpose::Upload => "writes",
    };
    let began = Instant::now();
    for remote in &tiers.remotes {
        let mut is_said = false;
        loop {
            match ExclusiveRun::take(remote, vault, &tiers.writer, purpose).await {
                Ok(right) => held.push(right),
                Err(error) if error.kind() == ErrorKind::Held => {
                    if began.elapsed() >= patience {
                        for held in held {
                            held.release().await;
                        }
                        return Err(error);
                    }
                    if !std::mem::replace(&mut is_said, true) {
                        let seconds = patience.as_secs();
                        let text = format!("{error}; waiting {seconds} s at most, in case it was killed");
                        tiers.output.warn(&text);
                    }
                    sleep(INTERVAL).await;
                    continue;
                }
                Err(error) => tracing::debug!(%error, "cannot determine whether another job {does} the run"),
            }
            break;
        }
    }
    Ok(held)
}

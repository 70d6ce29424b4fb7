//! The history of starts, from the vault and the remotes.

pub(super) mod status;

use std::collections::BTreeMap;
use std::time::Duration;

use stepvault_core::ids::StepId;
use stepvault_core::starts::{Start, demoted, merged};
use stepvault_engine::blocking::blocking;
use stepvault_engine::node_records::read_starts;

use crate::context::Tiers;

/// Timeout for reading the remotes' histories, so that they do not delay a start.
const READ_DEADLINE: Duration = Duration::from_secs(15);

/// Returns every recorded start. Histories that cannot be read cause a warning and count as empty.
pub(super) async fn known_starts(tiers: &Tiers) -> Vec<Start> {
    let (mut elsewhere, mut faults) = (Vec::new(), Vec::new());
    match tokio::time::timeout(READ_DEADLINE, read_starts(&tiers.remotes)).await {
        Ok((starts, unreadable)) => (elsewhere, faults) = (starts, unreadable),
        Err(_) => faults.push(format!("the remotes did not answer within {} s", READ_DEADLINE.as_secs())),
    }
    let mut here = Vec::new();
    if let Some(vault) = tiers.vault.clone() {
        let run = tiers.run_name().clone();
        match blocking(move || vault.starts(&run)).await {
            Ok(starts) => here = starts,
            Err(error) => faults.push(error.to_string()),
        }
    }
    for fault in faults {
        tiers.output.warn(&format!(
            "cannot read all earlier starts, so a step from which the trainer crashes may be restored again: {fault}"
        ));
    }
    merged(elsewhere, here)
}

/// Returns the steps that a restore skips because the trainer crashed from them repeatedly, with the reasons.
pub(super) async fn demoted_steps(tiers: &Tiers) -> BTreeMap<StepId, String> {
    let rule = tiers.settings.config.restart.demotion;
    if rule.crashes == 0 {
        return BTreeMap::new();
    }
    demoted(&known_starts(tiers).await, rule)
}

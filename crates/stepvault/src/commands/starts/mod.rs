//! What the vault and the remotes remember of starts, for the commands that go by it.

pub(super) mod status;

use std::collections::BTreeMap;
use std::time::Duration;

use stepvault_core::ids::StepId;
use stepvault_core::starts::{Start, demoted, merged};
use stepvault_engine::blocking::blocking;
use stepvault_engine::starts::read_starts;

use crate::context::{Settings, Tiers};
use crate::output::Output;

/// How long the remotes may take to tell: what they remember is worth less than a start in time.
const READ_DEADLINE: Duration = Duration::from_secs(15);

/// Every start that is remembered anywhere. What cannot be read is warned of, and is as good as none.
pub(super) async fn known_starts(tiers: &Tiers, output: &Output) -> Vec<Start> {
    let (mut elsewhere, mut faults) = (Vec::new(), Vec::new());
    match tokio::time::timeout(READ_DEADLINE, read_starts(&tiers.remotes)).await {
        Ok((starts, unreadable)) => (elsewhere, faults) = (starts, unreadable),
        Err(_) => faults.push(format!("no remote told it within {} s", READ_DEADLINE.as_secs())),
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
        output.warn(&format!(
            "earlier starts are not all known, and a step that the trainer does not survive may be taken again: {fault}"
        ));
    }
    merged(elsewhere, here)
}

/// The steps that a restore passes over because the trainer does not survive them, and why.
pub(super) async fn demoted_steps(
    settings: &Settings,
    tiers: &Tiers,
    output: &Output,
) -> BTreeMap<StepId, String> {
    let rule = settings.config.restart.demotion;
    if rule.crashes == 0 {
        return BTreeMap::new();
    }
    demoted(&known_starts(tiers, output).await, rule)
}

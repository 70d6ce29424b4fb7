//! The history of starts, from the vault and the remotes.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::config::RestartSettings;
use stepvault_core::document::StepIdMembers;
use stepvault_core::starts::{RestartLoop, Start, StartedProgram, demoted, merged, restart_loop};
use stepvault_core::{Clock as _, NodeName, Result, RunName, StepId};
use stepvault_engine::blocking::blocking;
use stepvault_engine::node_records::read_starts;
use stepvault_local::{SystemClock, Vault, process};

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

/// Returns the latest of these starts of each node, by the node's name.
pub(super) fn latest_of_nodes(starts: &[Start]) -> Vec<StartStatus> {
    // The latest is last.
    let latest: BTreeMap<&NodeName, &Start> = starts.iter().map(|start| (&start.node, start)).collect();
    latest.into_values().map(StartStatus::of).collect()
}

/// Maximum number of starts to show, the latest.
const MAXIMUM_TOLD: usize = 8;

/// The latest starts, restart loops and demoted steps.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in crate::commands) struct StartsStatus {
    /// The latest 8 starts that this vault has recorded, the latest first.
    starts: Vec<StartStatus>,
    /// Restart loops of the agent or the trainer on this node; usually empty.
    restart_loops: Vec<RestartLoop>,
    /// Steps that restores skip because the trainer crashed from them repeatedly.
    demoted: Vec<DemotedStep>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(in crate::commands) struct StartStatus {
    /// What was started.
    who: StartedProgram,
    /// The node.
    node: NodeName,
    /// Time of the start, by that node's clock.
    started_at: String,
    /// The step that the trainer resumed from; null if there was none.
    restored_step: Option<u64>,
    /// Duration; null while it runs, or if its end was not recorded.
    lasted_seconds: Option<u64>,
    /// How it ended, as text: `running`, `unknown`, `exit 1`, `signal 11`, `stopped by …` or what failed in
    /// stepvault.
    ending: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DemotedStep {
    /// The step.
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// The reason, as text.
    reason: String,
}

impl StartsStatus {
    /// Reads the vault's history.
    pub(in crate::commands) fn read(
        vault: &Vault,
        run: &RunName,
        node: &NodeName,
        rules: RestartSettings,
    ) -> Result<Self> {
        let history = vault.starts(run)?;
        let now = SystemClock.now();
        let found = |who| restart_loop(&history, run, node, who, rules.restart_loop, now);
        let skipped = demoted(&history, rules.demotion).into_iter().rev();
        Ok(Self {
            starts: history.iter().rev().take(MAXIMUM_TOLD).map(StartStatus::of).collect(),
            restart_loops: [StartedProgram::Trainer, StartedProgram::Agent]
                .into_iter()
                .filter_map(found)
                .collect(),
            demoted: skipped.map(|(id, reason)| DemotedStep { id, reason }).collect(),
        })
    }

    /// Returns the lines for people.
    pub(in crate::commands) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for who in [StartedProgram::Trainer, StartedProgram::Agent] {
            if let Some(latest) = self.starts.iter().find(|start| start.who == who) {
                lines.push(latest.line());
            }
        }
        lines.extend(self.restart_loops.iter().map(ToString::to_string));
        lines.extend(self.demoted.iter().map(|step| format!("{} is skipped: {}", step.id, step.reason)));
        lines
    }
}

impl StartStatus {
    fn of(start: &Start) -> Self {
        let runs = start.end.is_none() && start.process.as_ref().is_some_and(process::is_running);
        Self {
            who: start.who,
            node: start.node.clone(),
            started_at: start.started_at.to_rfc3339(),
            restored_step: start.restored.map(|id| id.step.number()),
            lasted_seconds: start.end.as_ref().map(|end| end.lasted_seconds),
            ending: if runs { "running".to_owned() } else { start.ending() },
        }
    }

    fn line(&self) -> String {
        let from = self.restored_step.map_or_else(String::new, |step| format!(" from step {step}"));
        let lasted = self.lasted_seconds.map_or_else(String::new, |seconds| format!(" after {seconds} s"));
        format!(
            "{} was started{from} at {} on {}: {}{lasted}",
            self.who, self.started_at, self.node, self.ending
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_start_is_one_line() {
        let mut start = StartStatus {
            who: StartedProgram::Trainer,
            node: NodeName::new("node-0").unwrap(),
            started_at: "2026-11-21T10:16:00Z".to_owned(),
            restored_step: Some(10),
            lasted_seconds: Some(3),
            ending: "exit 1".to_owned(),
        };
        assert_eq!(
            start.line(),
            "the trainer was started from step 10 at 2026-11-21T10:16:00Z on node-0: exit 1 after 3 s"
        );
        start.restored_step = None;
        start.lasted_seconds = None;
        start.ending = "running".to_owned();
        assert_eq!(start.line(), "the trainer was started at 2026-11-21T10:16:00Z on node-0: running");
    }
}

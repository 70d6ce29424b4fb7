//! `list`: lists the steps of a run over all tiers.

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::Result;
use stepvault_core::nodes::first_of;
use stepvault_engine::drains::Drains;

use super::Session;
use super::inventory::{FailedTier, IncompleteOn, Inventory, ListedStep, LocalState};
use super::left_by_drain::LeftByDrain;
use crate::context::Tiers;
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};

/// List the steps of a run over all tiers, the newest first
#[derive(Debug, Args)]
pub(crate) struct ListArguments {}

#[derive(Serialize, JsonSchema)]
pub(super) struct ListDocument {
    /// The run.
    run: String,
    /// Every step, the newest first.
    steps: Vec<ListedStep>,
    /// Drains of nodes with unfinished steps, if the remote has neither these steps nor newer ones.
    drains: Vec<LeftByDrain>,
    /// Tiers that could not be listed and may hold more steps.
    failed: Vec<FailedTier>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, _arguments: &ListArguments) -> Result<ExitCode> {
    let (_, tiers) = Tiers::load(session).await?;
    let inventory = Inventory::gather(&tiers).await?;
    tiers.progress.finish();
    for (tier, error) in &inventory.failed {
        session
            .output
            .warn(&format!("cannot list {tier}, which may hold more steps"));
        session.output.error_beside_report(error);
    }
    let asked = tiers.remotes.len() + usize::from(tiers.vault.is_some()) - inventory.failed.len();
    let failures = inventory.failed.iter().map(|(_, error)| Err(error));
    let code = ExitCode::of_tiers(failures.chain((0..asked).map(|_| Ok(()))));
    let drains = Drains::ask(&tiers.remotes).await;
    let mut document = ListDocument::new(&tiers, inventory);
    let left = |record| LeftByDrain::of(record, |left| drains.is_missed(left));
    document.drains = drains.records.iter().filter_map(left).collect();
    session.output.result(&document)?;
    Ok(code)
}

impl ListDocument {
    pub(super) fn new(tiers: &Tiers, inventory: Inventory) -> Self {
        Self {
            run: tiers.run_name().to_string(),
            failed: FailedTier::all(&inventory.failed),
            steps: inventory.steps,
            drains: Vec::new(),
        }
    }
}

impl Report for ListDocument {
    fn human(&self) -> String {
        let drains: Vec<String> = self
            .drains
            .iter()
            .map(|drain| format!("\n{}", drain.text()))
            .collect();
        let drains = drains.concat();
        if self.steps.is_empty() {
            return format!("no tier holds a step of '{}'{drains}", self.run);
        }
        let mut steps = table::table(
            &[
                "step",
                "attempt",
                "written (utc)",
                "size",
                "files",
                "where",
                "",
                "metrics",
            ],
            &[0, 1, 3, 4],
        );
        for step in &self.steps {
            steps.add_row([
                step.step.to_string(),
                step.attempt.to_string(),
                step.written_at
                    .as_ref()
                    .map_or_else(String::new, |time| short_time(time)),
                step.bytes.map_or_else(|| "?".to_owned(), human::bytes),
                step.files
                    .map_or_else(|| "?".to_owned(), |files| files.to_string()),
                places(step),
                marks(step),
                human::metrics(&step.metrics),
            ]);
        }
        let faults = self.steps.iter().flat_map(|step| {
            step.faults
                .iter()
                .map(|fault| format!("\nstep {} (attempt {}): {fault}", step.step, step.attempt))
        });
        format!("{}{}{drains}", table::text(&steps), faults.collect::<String>())
    }
}

/// Converts `2026-11-21T10:16:00Z` into `2026-11-21 10:16:00`.
fn short_time(rfc3339: &str) -> String {
    rfc3339.trim_end_matches('Z').replacen('T', " ", 1)
}

/// Returns the marks that matter for retention.
fn marks(step: &ListedStep) -> String {
    let marks = [(step.pinned, "pinned"), (step.abandoned, "abandoned")];
    let marks = marks.into_iter().filter(|(is_so, _)| *is_so);
    marks.map(|(_, mark)| mark).collect::<Vec<_>>().join(", ")
}

/// Formats a remote with the missing nodes: `main (missing node-1)`.
fn incomplete(on: &IncompleteOn) -> String {
    const TOLD: usize = 4;
    if on.missing_nodes.is_empty() {
        return format!("{} (not committed yet)", on.remote);
    }
    format!("{} (missing {})", on.remote, first_of(&on.missing_nodes, TOLD))
}

fn places(step: &ListedStep) -> String {
    let local = step.local.map(|state| match state {
        LocalState::Staged => "local (staged)".to_owned(),
        LocalState::Durable => "local".to_owned(),
    });
    let incomplete = step.incomplete.iter().map(incomplete);
    let places: Vec<String> = local
        .into_iter()
        .chain(step.remotes.iter().cloned())
        .chain(incomplete)
        .collect();
    if places.is_empty() {
        "unreadable".to_owned()
    } else {
        places.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn steps_stand_in_a_table() {
        let step = ListedStep {
            step: 100,
            attempt: 1,
            name: Some("step_100".to_owned()),
            written_at: Some("2026-11-21T10:16:00Z".to_owned()),
            bytes: Some(3 << 20),
            files: Some(3),
            local: Some(LocalState::Staged),
            remotes: vec!["main".to_owned()],
            pinned: true,
            abandoned: false,
            incomplete: vec![IncompleteOn {
                remote: "gs".to_owned(),
                missing_nodes: vec!["node-1".to_owned()],
            }],
            metrics: BTreeMap::from([("loss".to_owned(), 0.25)]),
            faults: vec!["gs: it is missing".to_owned()],
        };
        let document = ListDocument {
            run: "demo".to_owned(),
            steps: vec![step],
            drains: Vec::new(),
            failed: Vec::new(),
        };
        let text = document.human();
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].contains(
                "100        1  2026-11-21 10:16:00  3.0 MiB      3  local (staged), main, gs (missing node-1)  pinned  loss=0.25"
            ),
            "{text}"
        );
        assert_eq!(lines[2], "step 100 (attempt 1): gs: it is missing");
    }

    #[test]
    fn an_empty_run_says_so() {
        let document = ListDocument {
            run: "demo".to_owned(),
            steps: Vec::new(),
            drains: Vec::new(),
            failed: Vec::new(),
        };
        assert_eq!(document.human(), "no tier holds a step of 'demo'");
        assert!(
            crate::output::json::document(&document)
                .unwrap()
                .contains("\"steps\": []")
        );
    }
}

//! `list`: lists the steps of a run over all tiers.

use std::collections::BTreeMap;

use clap::Args;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::Result;
use stepvault_core::retention::SelectionState;
use stepvault_core::words::first_of;
use stepvault_engine::RunRemote;
use stepvault_engine::node_records::Drains;
use stepvault_engine::tier::selective::selection_states;
use stepvault_engine::tier::step_state::{Durability, still_given_up};

use super::inventory::{
    FailedTier, IncompleteOn, Inventory, ListedStep, LocalState, PlannedOn, attempt_text, unknown,
};
use super::node_records::{GivenUpDocument, LeftByDrain, known_records};
use super::status::ask_agent;
use crate::context::{Tiers, hint_for_unknown_run};
use crate::exit_code::ExitCode;
use crate::output::table::fit;
use crate::output::{Report, human, table};
use crate::session::Session;

/// List the steps of a run over all tiers, the newest first
#[derive(Debug, Args)]
pub(crate) struct ListArguments {}

#[derive(Serialize, JsonSchema)]
pub(super) struct ListDocument {
    /// The run.
    run: String,
    /// Every step, the newest first.
    steps: Vec<ListedStep>,
    /// Times that contradict the order of the steps, as text; omitted when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// Steps that nodes gave up to free disk space, by node, and that are not durable on every required remote.
    given_up: Vec<GivenUpDocument>,
    /// Drains of nodes with unfinished steps, if the remote has neither these steps nor newer ones.
    drains: Vec<LeftByDrain>,
    /// Tiers that could not be listed and may hold more steps.
    failed: Vec<FailedTier>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, _arguments: &ListArguments) -> Result<ExitCode> {
    let tiers = Tiers::load_to_read(session).await?;
    let mut inventory = Inventory::gather(&tiers, None).await?;
    mark_uploads(&tiers, &mut inventory).await;
    mark_planned(&tiers, &mut inventory).await;
    tiers.progress.finish();
    for (tier, error) in &inventory.failed {
        let warning = format!("cannot list {tier}, which may hold more steps");
        session.output.warn(&warning);
        session.output.error_beside_report(error);
    }
    let asked = tiers.remotes.len() + usize::from(tiers.vault.is_some()) - inventory.failed.len();
    let failures = inventory.failed.iter().map(|(_, error)| Err(error));
    let code = ExitCode::of_tiers(failures.chain((0..asked).map(|_| Ok(()))));
    let drains = Drains::ask(&tiers.remotes).await;
    let left = |record| LeftByDrain::of(record, |left| drains.is_missed(left));
    let document = ListDocument {
        run: tiers.run_name().to_string(),
        given_up: given_up(&tiers, &inventory).await,
        drains: drains.records.iter().filter_map(left).collect(),
        failed: FailedTier::all(&inventory.failed),
        warnings: inventory.warnings(),
        steps: inventory.steps,
    };
    let is_empty = document.steps.is_empty() && document.given_up.is_empty();
    session.output.result(&document)?;
    if is_empty
        && code == ExitCode::Done
        && let Some(hint) = hint_for_unknown_run(&tiers.settings).await
    {
        session.output.warn(&hint);
        return Ok(ExitCode::NotFound);
    }
    Ok(code)
}

/// Marks the steps that the vault's agent uploads, if one answers.
async fn mark_uploads(tiers: &Tiers, inventory: &mut Inventory) {
    let Some(vault) = &tiers.vault else { return };
    let agent = ask_agent(&tiers.settings, vault, tiers.run_name()).await;
    for on in agent.into_iter().flat_map(|agent| agent.remotes) {
        let step = inventory.steps.iter_mut().find(|step| Some(step.id) == on.uploading);
        if let Some(step) = step {
            step.uploading.push(on.remote.to_string());
        }
    }
}

/// Marks the steps for which a selective remote waits, and those that it does not select. Of one that could not be listed,
/// or whose source could not, nothing is known.
pub(super) async fn mark_planned(tiers: &Tiers, inventory: &mut Inventory) {
    for to in &tiers.remotes {
        let Some(selection) = &to.settings.selection else { continue };
        let Some(from) = tiers.remotes.iter().find(|from| *from.name() == selection.from) else { continue };
        let listed = |remote: &RunRemote| inventory.listed.get(remote.name().as_str());
        let (Some(source), Some(target)) = (listed(from), listed(to)) else { continue };
        let states = match selection_states((from, source), (to, target), selection).await {
            Ok(states) => states,
            Err(error) => {
                inventory.failed.push((to.name().to_string(), error));
                continue;
            }
        };
        for step in &mut inventory.steps {
            let remote = to.name().to_string();
            match states.get(&step.id) {
                Some(SelectionState::Planned { due_at }) => {
                    step.planned.push(PlannedOn { remote, due_at: due_at.to_rfc3339() });
                }
                Some(SelectionState::NotSelected) => step.not_selected.push(remote),
                _ => {}
            }
        }
    }
}

impl ListDocument {
    /// Returns the steps with the nodes that gave them up, the newest first. Of a step that no tier holds, the record
    /// says only the bytes.
    fn rows(&self) -> Vec<(ListedStep, Vec<&str>)> {
        let steps = self.steps.iter().rev();
        let mut rows: BTreeMap<_, _> = steps.map(|step| (step.id, (step.clone(), Vec::new()))).collect();
        for record in &self.given_up {
            for step in &record.steps {
                let row = rows.entry(step.id);
                let (row, nodes) = row.or_insert_with(|| (unknown(step.id), Vec::new()));
                row.bytes.get_or_insert(step.bytes);
                nodes.push(record.node.as_str());
            }
        }
        rows.into_values().rev().collect()
    }
}

/// Returns the steps that nodes gave up. A step that its node has sealed again, or that is durable by now, is not among
/// them; on a remote that cannot be listed, no step is known to be durable.
async fn given_up(tiers: &Tiers, inventory: &Inventory) -> Vec<GivenUpDocument> {
    let failed = inventory.failed.iter().map(|(tier, _)| tier.as_str()).collect_vec();
    let is_durable = |step: &ListedStep| {
        Durability::of(&tiers.remotes, |remote| Ok(step.is_on(remote)))
            .is_ok_and(|durability| durability.is_durable())
    };
    let records = known_records(tiers, &failed).await;
    let still = records.iter().filter_map(|record| {
        let is_own = record.node == *tiers.writer.place.node();
        let held = inventory.steps.iter();
        let held = held.filter(|step| is_own && step.local.is_some() || is_durable(step));
        still_given_up(record, &held.map(|step| step.id).collect())
    });
    still.map(GivenUpDocument::from).collect()
}

impl Report for ListDocument {
    fn fitted(&self, width: usize) -> String {
        let drains = self.drains.iter();
        let drains = drains.map(|drain| format!("\n{}", drain.text)).join("");
        let rows = self.rows();
        if rows.is_empty() {
            let run = &self.run;
            if self.failed.is_empty() {
                return format!("no tier holds a step of '{run}'{drains}");
            }
            let failed = self.failed.iter().map(|failed| &failed.tier).join(", ");
            return format!("no step of '{run}' was found, but {failed} could not be listed{drains}");
        }
        let headings = ["step", "attempt", "written (utc)", "size", "files", "where", "", "metrics"];
        let rows = rows.iter().map(|(step, gave_up)| {
            [
                step.id.step.to_string(),
                attempt_text(step.id),
                step.written_at.map(|time| short_time(&time.to_rfc3339())).unwrap_or_default(),
                step.bytes.map_or_else(|| "?".to_owned(), human::bytes),
                step.files.map_or_else(|| "?".to_owned(), |files| files.to_string()),
                places(step, gave_up),
                marks(step),
                human::metrics(&step.metrics),
            ]
        });
        let table = table::fitted(&headings, &[0, 1, 3, 4], rows, width);
        let mut lines = Vec::new();
        for step in &self.steps {
            let (attempt, number) = (step.id.attempt, step.id.step);
            let began = step.began.as_ref();
            lines.extend(began.map(|began| format!("attempt {attempt} begins with step {number}: {began}")));
        }
        lines.extend(self.warnings.iter().map(|warning| format!("warning: {warning}")));
        for step in &self.steps {
            lines.extend(step.faults.iter().map(|fault| format!("{}: {fault}", step.id)));
        }
        std::iter::once(table).chain(lines.iter().map(|line| fit(line, width))).join("\n") + &drains
    }
}

/// Formats a time as `2026-11-21 10:16:00`.
pub(super) fn short_time(time: &str) -> String {
    time.trim_end_matches('Z').replacen('T', " ", 1)
}

/// Returns the marks that matter for retention.
fn marks(step: &ListedStep) -> String {
    let marks = [(step.pinned, "pinned"), (step.abandoned, "abandoned")];
    let marks = marks.into_iter().filter(|(is_so, _)| *is_so);
    marks.map(|(_, mark)| mark).join(", ")
}

/// Formats a remote with the missing nodes: `main (missing node-1)`.
fn incomplete(on: &IncompleteOn) -> String {
    const TOLD: usize = 4;
    if on.missing_nodes.is_empty() {
        return format!("{} (not committed yet)", on.remote);
    }
    format!("{} (missing {})", on.remote, first_of(&on.missing_nodes, TOLD, 0))
}

/// Formats the tiers that hold a step, and the nodes that gave it up: `main, given up by node-0`.
fn places(step: &ListedStep, gave_up: &[&str]) -> String {
    let local = step.local.map(|state| match state {
        LocalState::Staged => "local (staged)".to_owned(),
        LocalState::Durable => "local".to_owned(),
    });
    let waiting = step.incomplete.iter().filter(|on| !step.uploading.contains(&on.remote));
    let mut places = local
        .into_iter()
        .chain(step.remotes.iter().cloned())
        .chain(step.uploading.iter().map(|remote| format!("{remote} (uploading)")))
        .chain(step.planned.iter().map(|on| format!("{} (planned)", on.remote)))
        .chain(step.not_selected.iter().map(|remote| format!("{remote} (not selected)")))
        .chain(waiting.map(incomplete))
        .chain(gave_up.iter().map(|node| format!("given up by {node}")))
        .peekable();
    if places.peek().is_none() {
        return "unreadable".to_owned();
    }
    places.join(", ")
}

#[cfg(test)]
mod tests {
    use stepvault_core::given_up::{GivenUpRecord, GivenUpStep};
    use stepvault_core::ids::{NodeName, RunName, StepId};
    use stepvault_core::timestamp::Timestamp;
    use stepvault_core::{Error, ErrorKind};

    use super::*;

    fn staged_step() -> ListedStep {
        ListedStep {
            name: Some("step_100".to_owned()),
            written_at: Some(Timestamp::from_seconds(1_795_256_160)),
            bytes: Some(3 << 20),
            files: Some(3),
            local: Some(LocalState::Staged),
            remotes: vec!["main".to_owned()],
            pinned: true,
            incomplete: vec![IncompleteOn {
                remote: "gs".to_owned(),
                missing_nodes: vec!["node-1".to_owned()],
                begun_at: "2026-11-21T10:16:00Z".to_owned(),
            }],
            metrics: BTreeMap::from([("loss".to_owned(), 0.25)]),
            faults: vec!["gs: it is missing".to_owned()],
            ..unknown(StepId::from_label("000000000100.a1").unwrap())
        }
    }

    fn document(steps: Vec<ListedStep>, given_up: Vec<GivenUpDocument>) -> ListDocument {
        ListDocument {
            run: "demo".to_owned(),
            steps,
            warnings: Vec::new(),
            given_up,
            drains: Vec::new(),
            failed: Vec::new(),
        }
    }

    #[test]
    fn steps_stand_in_a_table() {
        let text = document(vec![staged_step()], Vec::new()).human();
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
    fn revisions_evidence_and_contradictions_are_named() {
        let mut begun = staged_step();
        begun.id = StepId::from_label("000000000100.a2r2").unwrap();
        begun.began = Some("the attempt was given".to_owned());
        begun.faults.clear();
        let mut listed = document(vec![begun, staged_step()], Vec::new());
        listed.warnings = vec!["step 100 was written after step 300".to_owned()];
        let text = listed.human();
        assert!(text.contains("100  2 (revision 2)  2026"), "{text}");
        assert!(
            text.contains("\nattempt 2 begins with step 100: the attempt was given\nwarning: step 100 was")
        );
        let json = crate::output::document(&listed).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["steps"][0]["revision"], 2);
        assert_eq!(json["steps"][0]["began"], "the attempt was given");
        assert!(json["steps"][1].get("revision").is_none() && json["steps"][1].get("began").is_none());
    }

    #[test]
    fn given_up_steps_stand_among_the_others() {
        let step = |label| GivenUpStep {
            id: StepId::from_label(label).unwrap(),
            bytes: 2 << 20,
            given_up_at: Timestamp::default(),
            durable_on: Vec::new(),
        };
        let node = NodeName::new("node-1").unwrap();
        let mut record = GivenUpRecord::new(RunName::new("demo").unwrap(), node);
        for label in ["000000000050.a1", "000000000100.a1", "000000000200.a1"] {
            record.add(step(label));
        }
        let steps = vec![staged_step()];
        let text = document(steps, vec![GivenUpDocument::from(record.clone())]).human();
        let lines: Vec<&str> = text.lines().collect();
        for (line, step, places) in [
            (1, "200", "2.0 MiB      ?  given up by node-1"),
            (2, "100", "main, gs (missing node-1), given up by node-1  pinned"),
            (3, "50", "2.0 MiB      ?  given up by node-1"),
        ] {
            let found = lines[line].trim_start();
            assert!(found.starts_with(step) && found.contains(places), "{text}");
        }
        let only_given_up = document(Vec::new(), vec![GivenUpDocument::from(record)]).human();
        assert_eq!(only_given_up.lines().count(), 4, "{only_given_up}");
    }

    #[test]
    fn an_empty_run_says_so() {
        let document = document(Vec::new(), Vec::new());
        assert_eq!(document.human(), "no tier holds a step of 'demo'");
        let failed = vec![("gs".to_owned(), Error::new(ErrorKind::Unreachable, "cannot list objects"))];
        let partial = ListDocument { failed: FailedTier::all(&failed), ..document };
        assert_eq!(partial.human(), "no step of 'demo' was found, but gs could not be listed");
        let document = self::document(Vec::new(), Vec::new());
        assert!(crate::output::document(&document).unwrap().contains("\"steps\": []"));
    }
}

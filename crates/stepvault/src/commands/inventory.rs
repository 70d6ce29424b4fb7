//! Lists the steps of a run over all tiers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::Args;
use futures::future::join_all;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use stepvault_core::document::{ErrorInfo, StepIdMembers};
use stepvault_core::placement::contradiction;
use stepvault_core::retention::abandoned_steps;
use stepvault_core::words::count;
use stepvault_core::{
    Attempt, Clock as _, Error, ErrorKind, Result, Revision, RunName, Step, StepId, Timestamp,
};
use stepvault_engine::placement::evidence_text;
use stepvault_engine::restore::WantedSteps;
use stepvault_engine::tier::catalog::pins;
use stepvault_engine::tier::step_state::{Durability, is_durable_on};
use stepvault_engine::tier::step_state::{StepsOnRemote, visible_and_incomplete};
use stepvault_engine::{RunRemote, blocking};
use stepvault_local::{SystemClock, Vault};

use crate::arguments::values::checked;
use crate::context::Tiers;

/// Maximum number of removed steps of each remote, the newest.
pub(super) const MAX_REMOVED: usize = 200;
/// A time further ahead of the local clock than this lies in the future.
const MAX_AHEAD_SECONDS: u64 = 60;

/// State of a local copy with respect to the run's remotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LocalState {
    /// Sealed in the vault, but not durable on every required remote.
    Staged,
    /// Durable on every required remote.
    Durable,
}

/// One step over all tiers.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[expect(clippy::struct_excessive_bools, reason = "members of a document, each true or false")]
pub(super) struct ListedStep {
    /// Its identity.
    #[serde(flatten, with = "StepIdMembers")]
    pub(super) id: StepId,
    /// The evidence with which its attempt begins, as text; omitted unless it is the first step of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) began: Option<String>,
    /// Name of the step's directory or file; null if no record of it can be read.
    pub(super) name: Option<String>,
    /// The newest modification time of its files; null if no record of it can be read.
    #[serde(serialize_with = "serialize_time")]
    #[schemars(with = "Option<String>")]
    pub(super) written_at: Option<Timestamp>,
    /// Whether it is a revision that was made of the one before it: its time says nothing of the order of the steps.
    #[serde(skip)]
    pub(super) amends: bool,
    /// Bytes of all files of the step; null if no record of it can be read.
    pub(super) bytes: Option<u64>,
    /// Number of files of the step; null if no record of it can be read.
    pub(super) files: Option<u64>,
    /// The state of the local copy; null if there is none.
    pub(super) local: Option<LocalState>,
    /// The remotes that have committed it.
    pub(super) remotes: Vec<String>,
    /// The remotes to which the vault's agent uploads it at the moment; omitted when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) uploading: Vec<String>,
    /// The selective remotes to which it will be copied; omitted when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) planned: Vec<PlannedOn>,
    /// The selective remotes whose rules do not select it; omitted when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) not_selected: Vec<String>,
    /// Whether the step is pinned.
    pub(super) pinned: bool,
    /// Whether its objects are where another program has written them.
    pub(super) imported: bool,
    /// How many of its files are proved by the checksum of the store alone, and were not read by stepvault.
    pub(super) trusted_files: u64,
    /// Whether a later attempt started at or before the step: retention removes such steps first.
    pub(super) abandoned: bool,
    /// Remotes on which the step is incomplete.
    pub(super) incomplete: Vec<IncompleteOn>,
    /// Metrics by name.
    pub(super) metrics: BTreeMap<String, f64>,
    /// Errors of records that cannot be read.
    pub(super) faults: Vec<String>,
}

impl ListedStep {
    /// Returns whether a remote has committed it.
    pub(super) fn is_on(&self, remote: &RunRemote) -> bool {
        self.remotes.iter().any(|name| name == remote.name().as_str())
    }
}

/// A selective remote that waits for a step.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(super) struct PlannedOn {
    /// The remote's name.
    pub(super) remote: String,
    /// The time from which the step may be copied.
    pub(super) due_at: String,
}

/// A remote on which a step is incomplete.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(super) struct IncompleteOn {
    /// The remote's name.
    pub(super) remote: String,
    /// The nodes whose parts are missing; empty just before the commit.
    pub(super) missing_nodes: Vec<String>,
    /// When its upload began, by the store's clock.
    pub(super) begun_at: String,
}

/// A tier that could not be read, and may hold more steps.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct FailedTier {
    /// `local` or the remote's name.
    pub(super) tier: String,
    /// Why it could not be read.
    pub(super) error: ErrorInfo,
}

impl FailedTier {
    /// Returns the document of each tier.
    pub(super) fn all(failed: &[(String, Error)]) -> Vec<Self> {
        let failed =
            failed.iter().map(|(tier, error)| Self { tier: tier.clone(), error: ErrorInfo::from(error) });
        failed.collect()
    }
}

/// The step that a command line selects.
#[derive(Debug, Args)]
pub(crate) struct ChosenStep {
    /// Step number
    #[arg(value_name = "STEP", value_parser = checked::<Step>)]
    pub(super) step: Step,
    /// Attempt; by default the newest that has the step
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    pub(super) attempt: Option<Attempt>,
    /// Revision; by default the newest
    #[arg(long, value_name = "N", value_parser = checked::<Revision>)]
    pub(super) revision: Option<Revision>,
}

impl ChosenStep {
    /// Takes the step out of the inventory, by default its newest attempt. If it was not found, a tier that could not be
    /// listed may hold it: its error is returned then.
    pub(super) fn find(&self, run: &RunName, inventory: &mut Inventory) -> Result<ListedStep> {
        let wanted = WantedSteps { step: Some(self.step), attempt: self.attempt, revision: self.revision };
        if let Some(position) = inventory.steps.iter().position(|step| wanted.contain(step.id)) {
            return Ok(inventory.steps.remove(position));
        }
        if let Some((tier, error)) = inventory.failed.drain(..).next() {
            return Err(error.hint(format!("retry when {tier} is reachable: no other tier has the step")));
        }
        let step = match (self.attempt, self.revision) {
            (Some(attempt), revision) => {
                StepId { revision: revision.unwrap_or_default(), ..StepId::new(attempt, self.step) }
                    .to_string()
            }
            (None, Some(revision)) => format!("step {} (revision {revision})", self.step),
            (None, None) => format!("step {}", self.step),
        };
        Err(Error::new(ErrorKind::NotFound, "no such checkpoint")
            .on(format!("{step} of run '{run}'"))
            .because("no tier has it")
            .hint("run 'stepvault list' to see the steps"))
    }
}

/// The steps that were found, and the tiers that could not be listed.
#[derive(Debug)]
pub(super) struct Inventory {
    /// The newest first.
    pub(super) steps: Vec<ListedStep>,
    /// The tiers that could not be listed, by name.
    pub(super) failed: Vec<(String, Error)>,
    /// The newest steps that were removed from remotes, at most 200 of each, with the remotes' names.
    pub(super) removed: BTreeMap<StepId, Vec<String>>,
    /// What was listed of each remote, by name.
    pub(super) listed: BTreeMap<String, StepsOnRemote>,
}

impl Inventory {
    /// Lists every tier: all steps, or those with one number alone, whose records are then the only ones that are read.
    pub(super) async fn gather(tiers: &Tiers, only: Option<Step>) -> Result<Self> {
        let mut found: BTreeMap<StepId, ListedStep> = BTreeMap::new();
        let (mut failed, mut removed, mut listed) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        if let Some(vault) = tiers.vault.clone() {
            let (run, remotes) = (tiers.run_name().clone(), tiers.remotes.clone());
            match blocking(move || found_locally(&vault, &run, &remotes)).await {
                Ok(steps) => found = steps,
                Err(error) => failed.push(("local".to_owned(), error)),
            }
        }
        let mut ids: BTreeSet<StepId> = found.keys().copied().collect();
        let on_remotes = join_all(tiers.remotes.iter().map(|remote| found_on(remote, only))).await;
        for (remote, listing) in tiers.remotes.iter().zip(on_remotes) {
            match listing {
                Ok(listing) => {
                    let name = remote.name().to_string();
                    ids.extend(&listing.steps.ids);
                    for id in listing.steps.removed.newest(MAX_REMOVED) {
                        removed.entry(id).or_insert_with(Vec::new).push(name.clone());
                    }
                    listing.merge_into(&mut found, &name);
                    listed.insert(name, listing.steps);
                }
                Err(error) => failed.push((remote.name().to_string(), error)),
            }
        }
        found.retain(|id, _| only.is_none_or(|only| id.step == only));
        let abandoned = abandoned_steps(ids);
        for (id, step) in &mut found {
            step.abandoned = abandoned.contains(id);
        }
        Ok(Self { steps: found.into_values().rev().collect(), failed, removed, listed })
    }

    /// Returns warnings of times that contradict the order of the steps, and of incomplete steps that were left out.
    pub(super) fn warnings(&self) -> Vec<String> {
        // The times of imported steps say when a tool copied them.
        let own = self.steps.iter().filter(|step| !step.amends && !step.imported);
        let own = own.filter_map(|step| Some((step.id, step.written_at?)));
        let more = self.listed.iter().filter(|(_, steps)| steps.more_incomplete > 0);
        let more = more.map(|(remote, steps)| {
            let more = count(steps.more_incomplete as u64, "older incomplete step");
            format!(
                "{remote} has {more} that are not listed: 'stepvault gc' removes what dead uploads have left"
            )
        });
        time_warnings(own, SystemClock.now()).into_iter().chain(more).collect()
    }
}

/// Returns warnings of times that contradict the order of the steps, or lie in the future.
pub(super) fn time_warnings(
    steps: impl Iterator<Item = (StepId, Timestamp)> + Clone,
    now: Timestamp,
) -> Vec<String> {
    let newest = steps.clone().max_by_key(|(id, _)| *id);
    let in_future = newest.filter(|(_, written_at)| written_at.seconds_since(now) > MAX_AHEAD_SECONDS);
    let in_future = in_future.map(|(id, written_at)| {
        let (step, time) = (id.step, written_at.to_rfc3339());
        format!("step {step}, the newest, has a time in the future: {time}")
    });
    let contradiction = contradiction(steps).map(|(newest, last)| {
        format!(
            "step {0} was written after step {1}, which has the higher number and is the newest; to resume from step {0}, \
             use 'stepvault restore --step {0}'",
            last.step, newest.step
        )
    });
    contradiction.into_iter().chain(in_future).collect()
}

/// Returns the attempt of a step for a table, with the revision unless it is the first: `1 (revision 2)`.
pub(super) fn attempt_text(id: StepId) -> String {
    if id.revision.is_first() {
        id.attempt.to_string()
    } else {
        format!("{} (revision {})", id.attempt, id.revision)
    }
}

#[expect(clippy::ref_option, reason = "serde passes the member like this")]
fn serialize_time<S: Serializer>(
    time: &Option<Timestamp>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    time.map(Timestamp::to_rfc3339).serialize(serializer)
}

/// Returns the identity of the step that a path in the vault is named after.
pub(super) fn id_of(path: &Path) -> Option<StepId> {
    StepId::from_label(path.file_name()?.to_str()?)
}

/// Returns an entry for a step of which only the identity is known.
pub(super) fn unknown(id: StepId) -> ListedStep {
    ListedStep {
        id,
        began: None,
        name: None,
        written_at: None,
        amends: false,
        bytes: None,
        files: None,
        local: None,
        remotes: Vec::new(),
        uploading: Vec::new(),
        planned: Vec::new(),
        not_selected: Vec::new(),
        pinned: false,
        imported: false,
        trusted_files: 0,
        abandoned: false,
        incomplete: Vec::new(),
        metrics: BTreeMap::new(),
        faults: Vec::new(),
    }
}

fn found_locally(
    vault: &Vault,
    run: &RunName,
    remotes: &[RunRemote],
) -> Result<BTreeMap<StepId, ListedStep>> {
    let scan = vault.steps(run)?;
    let pinned: BTreeSet<StepId> = vault.pins(run)?.into_iter().map(|pin| pin.id).collect();
    let mut found = BTreeMap::new();
    for step in scan.steps {
        let record = step.record();
        let durability = Durability::of(remotes, |remote| is_durable_on(&step, remote))?;
        let listed = ListedStep {
            name: Some(record.name.clone()),
            began: record.origin.began.as_ref().map(evidence_text),
            written_at: Some(record.written_at),
            amends: record.origin.amends,
            bytes: Some(record.data_bytes()),
            files: Some(record.files.len() as u64),
            local: Some(if durability.is_durable() { LocalState::Durable } else { LocalState::Staged }),
            pinned: pinned.contains(&record.id),
            metrics: record.metrics.clone(),
            ..unknown(record.id)
        };
        found.insert(record.id, listed);
    }
    for (path, error) in scan.faults {
        if let Some(id) = id_of(&path) {
            let entry = found.entry(id).or_insert_with(|| unknown(id));
            entry.faults.push(format!("local: {error}"));
        }
    }
    Ok(found)
}

/// The listing of one remote.
struct RemoteListing {
    steps: StepsOnRemote,
    pinned: BTreeSet<StepId>,
}

async fn found_on(remote: &RunRemote, only: Option<Step>) -> Result<RemoteListing> {
    let (steps, pinned) = tokio::try_join!(visible_and_incomplete(remote, only), pins(remote))?;
    Ok(RemoteListing { steps, pinned })
}

impl RemoteListing {
    fn merge_into(&self, found: &mut BTreeMap<StepId, ListedStep>, remote: &str) {
        for step in &self.steps.incomplete {
            let entry = found.entry(step.id).or_insert_with(|| unknown(step.id));
            entry.name.get_or_insert_with(|| step.name.clone());
            entry.incomplete.push(IncompleteOn {
                remote: remote.to_owned(),
                missing_nodes: step.missing.iter().map(ToString::to_string).collect(),
                begun_at: Timestamp::from(step.begun).to_rfc3339(),
            });
        }
        for (id, found_commit) in &self.steps.commits {
            let entry = found.entry(*id).or_insert_with(|| unknown(*id));
            entry.pinned |= self.pinned.contains(id);
            match &found_commit.commit {
                Ok(commit) => {
                    entry.remotes.push(remote.to_owned());
                    // A commit covers all nodes, a local record only this one.
                    entry.bytes = Some(commit.data_bytes());
                    entry.files = Some(commit.file_count());
                    entry.began = commit.began.as_ref().map(evidence_text);
                    entry.written_at = Some(commit.written_at);
                    entry.amends = commit.amends;
                    entry.imported |= commit.is_imported();
                    entry.trusted_files = entry.trusted_files.max(commit.trusted_files());
                    entry.metrics.extend(commit.metrics.clone());
                    entry.name = Some(commit.name.clone());
                }
                Err(error) => entry.faults.push(format!("{remote}: {error}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(steps: &[(&str, i64)]) -> Vec<String> {
        let step = |(label, seconds): &(&str, i64)| {
            (StepId::from_label(label).unwrap(), Timestamp::from_seconds(*seconds))
        };
        time_warnings(steps.iter().map(step), Timestamp::from_seconds(1000))
    }

    #[test]
    fn a_step_that_was_written_after_a_higher_number_is_named_with_the_command_that_takes_it() {
        assert_eq!(
            warnings(&[("000000000100.a1", 30), ("000000000200.a1", 10), ("000000000300.a1", 20)]),
            [
                "step 100 was written after step 300, which has the higher number and is the newest; to resume from \
                 step 100, use 'stepvault restore --step 100'"
            ]
        );
        assert_eq!(warnings(&[("000000000100.a1", 10), ("000000000300.a1", 20)]), [""; 0]);
        let of_an_earlier_attempt = [("000000000300.a1", 30), ("000000000100.a2", 20)];
        assert_eq!(warnings(&of_an_earlier_attempt), [""; 0]);
    }

    #[test]
    fn a_newest_step_of_the_future_is_named() {
        let text = warnings(&[("000000000100.a1", 2000)]);
        assert_eq!(text, ["step 100, the newest, has a time in the future: 1970-01-01T00:33:20Z"]);
        assert_eq!(warnings(&[("000000000100.a1", 1060)]), [""; 0]);
    }

    #[test]
    fn a_step_without_a_revision_has_the_members_of_old_documents() {
        let members = |label| {
            let listed = unknown(StepId::from_label(label).unwrap());
            let text = serde_json::to_string(&listed).unwrap();
            text.split(",\"name\"").next().unwrap_or_default().to_owned()
        };
        assert_eq!(members("000000000100.a3"), r#"{"step":100,"attempt":3"#);
        assert_eq!(members("000000000100.a3r2"), r#"{"step":100,"attempt":3,"revision":2"#);
    }
}

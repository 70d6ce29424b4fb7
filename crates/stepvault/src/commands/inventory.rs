//! Lists the steps of a run over all tiers.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use futures::future::join_all;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::commit::Commit;
use stepvault_core::document::ErrorInfo;
use stepvault_core::ids::{Attempt, RunName, Step, StepId};
use stepvault_core::retention::abandoned_steps;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::catalog::pins;
use stepvault_engine::incomplete::{IncompleteStep, visible_and_incomplete};
use stepvault_engine::run_remote::RunRemote;
use stepvault_engine::step_state::{Durability, is_durable_on};
use stepvault_local::vault::Vault;

use crate::arguments::values::checked;
use crate::context::Tiers;

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
pub(super) struct ListedStep {
    /// The step's number.
    pub(super) step: u64,
    /// The attempt.
    pub(super) attempt: u32,
    /// Name of the step's directory or file; null if no record of it can be read.
    pub(super) name: Option<String>,
    /// The newest modification time of its files; null if no record of it can be read.
    pub(super) written_at: Option<String>,
    /// Bytes of all files of the step; null if no record of it can be read.
    pub(super) bytes: Option<u64>,
    /// Number of files of the step; null if no record of it can be read.
    pub(super) files: Option<u64>,
    /// The state of the local copy; null if there is none.
    pub(super) local: Option<LocalState>,
    /// The remotes that have committed it.
    pub(super) remotes: Vec<String>,
    /// Whether the step is pinned.
    pub(super) pinned: bool,
    /// Whether a later attempt started at or before the step: retention removes such steps first.
    pub(super) abandoned: bool,
    /// Remotes on which the step is incomplete.
    pub(super) incomplete: Vec<IncompleteOn>,
    /// Metrics by name.
    pub(super) metrics: BTreeMap<String, f64>,
    /// Errors of records that cannot be read.
    pub(super) faults: Vec<String>,
}

/// A remote on which a step is incomplete.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct IncompleteOn {
    /// The remote's name.
    pub(super) remote: String,
    /// The nodes whose parts are missing; empty just before the commit.
    pub(super) missing_nodes: Vec<String>,
}

/// A tier that could not be read, and may hold more steps.
#[derive(Serialize, JsonSchema)]
pub(super) struct FailedTier {
    /// `local` or the remote's name.
    pub(super) tier: String,
    /// Why it could not be read.
    pub(super) error: ErrorInfo,
}

impl FailedTier {
    /// Returns the document of each tier.
    pub(super) fn all(failed: &[(String, Error)]) -> Vec<Self> {
        let failed = failed.iter().map(|(tier, error)| Self {
            tier: tier.clone(),
            error: ErrorInfo::from(error),
        });
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
}

impl ChosenStep {
    /// Finds the step, by default its newest attempt. If it was not found, a tier that could not be listed may hold it:
    /// its error is returned then.
    pub(super) fn find(&self, run: &RunName, inventory: Inventory) -> Result<FoundStep> {
        let Inventory { steps, failed } = inventory;
        let found = steps.into_iter().find(|step| {
            step.step == self.step.number()
                && self
                    .attempt
                    .is_none_or(|attempt| attempt.number() == step.attempt)
        });
        if let Some(listed) = found {
            let id = listed.id()?;
            return Ok(FoundStep { id, listed, failed });
        }
        if let Some((tier, error)) = failed.into_iter().next() {
            return Err(error.hint(format!(
                "retry when {tier} is reachable: no other tier has the step"
            )));
        }
        let step = match self.attempt {
            Some(attempt) => StepId::new(attempt, self.step).to_string(),
            None => format!("step {}", self.step),
        };
        Err(Error::new(ErrorKind::NotFound, "no such checkpoint")
            .on(format!("{step} of run '{run}'"))
            .because("no tier has it")
            .hint("run 'stepvault list' to see the steps"))
    }
}

/// A step that was found.
#[derive(Debug)]
pub(super) struct FoundStep {
    pub(super) id: StepId,
    pub(super) listed: ListedStep,
    /// The tiers that could not be listed.
    pub(super) failed: Vec<(String, Error)>,
}

/// The steps that were found, and the tiers that could not be listed.
#[derive(Debug)]
pub(super) struct Inventory {
    /// The newest first.
    pub(super) steps: Vec<ListedStep>,
    /// The tiers that could not be listed, by name.
    pub(super) failed: Vec<(String, Error)>,
}

impl Inventory {
    /// Lists every tier.
    pub(super) async fn gather(tiers: &Tiers) -> Result<Self> {
        let mut found: BTreeMap<StepId, ListedStep> = BTreeMap::new();
        let mut failed = Vec::new();
        if let Some(vault) = tiers.vault.clone() {
            let (run, remotes) = (tiers.run_name().clone(), tiers.remotes.clone());
            match blocking(move || found_locally(&vault, &run, &remotes)).await {
                Ok(steps) => found = steps,
                Err(error) => failed.push(("local".to_owned(), error)),
            }
        }
        let on_remotes = join_all(tiers.remotes.iter().map(found_on)).await;
        for (remote, listing) in tiers.remotes.iter().zip(on_remotes) {
            match listing {
                Ok(listing) => listing.merge_into(&mut found, &remote.name().to_string()),
                Err(error) => failed.push((remote.name().to_string(), error)),
            }
        }
        let abandoned = abandoned_steps(found.keys().copied());
        for (id, step) in &mut found {
            step.abandoned = abandoned.contains(id);
        }
        Ok(Self {
            steps: found.into_values().rev().collect(),
            failed,
        })
    }
}

impl ListedStep {
    /// Returns step and attempt.
    pub(super) fn id(&self) -> Result<StepId> {
        Ok(StepId::new(Attempt::new(self.attempt)?, Step::new(self.step)?))
    }
}

/// Returns an entry for a step of which only the identity is known.
pub(super) fn unknown(id: StepId) -> ListedStep {
    ListedStep {
        step: id.step.number(),
        attempt: id.attempt.number(),
        name: None,
        written_at: None,
        bytes: None,
        files: None,
        local: None,
        remotes: Vec::new(),
        pinned: false,
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
            written_at: Some(record.written_at.to_rfc3339()),
            bytes: Some(record.data_bytes()),
            files: Some(record.files.len() as u64),
            local: Some(if durability.is_durable() {
                LocalState::Durable
            } else {
                LocalState::Staged
            }),
            pinned: pinned.contains(&record.id),
            metrics: record.metrics.clone(),
            ..unknown(record.id)
        };
        found.insert(record.id, listed);
    }
    for (path, error) in scan.faults {
        let id = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(StepId::from_label);
        if let Some(id) = id {
            found
                .entry(id)
                .or_insert_with(|| unknown(id))
                .faults
                .push(format!("local: {error}"));
        }
    }
    Ok(found)
}

/// The listing of one remote.
struct RemoteListing {
    commits: BTreeMap<StepId, Result<Commit>>,
    pinned: BTreeSet<StepId>,
    incomplete: Vec<IncompleteStep>,
}

async fn found_on(remote: &RunRemote) -> Result<RemoteListing> {
    let ((visible, incomplete), pinned) = tokio::try_join!(visible_and_incomplete(remote), pins(remote))?;
    Ok(RemoteListing {
        commits: visible
            .into_iter()
            .map(|(id, found)| (id, found.commit))
            .collect(),
        pinned,
        incomplete,
    })
}

impl RemoteListing {
    fn merge_into(self, found: &mut BTreeMap<StepId, ListedStep>, remote: &str) {
        for step in self.incomplete {
            let entry = found.entry(step.id).or_insert_with(|| unknown(step.id));
            entry.name.get_or_insert(step.name);
            entry.incomplete.push(IncompleteOn {
                remote: remote.to_owned(),
                missing_nodes: step.missing.iter().map(ToString::to_string).collect(),
            });
        }
        for (id, commit) in self.commits {
            let entry = found.entry(id).or_insert_with(|| unknown(id));
            entry.pinned |= self.pinned.contains(&id);
            match commit {
                Ok(commit) => {
                    entry.remotes.push(remote.to_owned());
                    // A commit covers all nodes, a local record only this one.
                    entry.bytes = Some(commit.data_bytes());
                    entry.files = Some(commit.file_count());
                    entry.written_at = Some(commit.written_at.to_rfc3339());
                    entry.metrics.extend(commit.metrics);
                    entry.name = Some(commit.name);
                }
                Err(error) => entry.faults.push(format!("{remote}: {error}")),
            }
        }
    }
}

//! The final report of a service, and the types that its status and messages share with it.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepvault_core::ids::{NodeName, RemoteName, RunName, StepId};
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::listed;
use stepvault_core::starts::RestartLoop;

/// Maximum number of entries kept in each list: a service may run for months.
const LATEST: usize = 1000;

/// How often something happened, and the latest occurrences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Tally<T> {
    /// Total number.
    pub total: u64,
    /// The latest 1,000, in order.
    pub latest: Vec<T>,
}

impl<T> Default for Tally<T> {
    fn default() -> Self {
        Self { total: 0, latest: Vec::new() }
    }
}

impl<T> Tally<T> {
    pub(crate) fn add(&mut self, entry: T) {
        self.total += 1;
        if self.latest.len() == LATEST {
            self.latest.remove(0);
        }
        self.latest.push(entry);
    }
}

/// A step of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct RunStep {
    /// The run.
    pub run: RunName,
    /// Step and attempt.
    #[serde(flatten)]
    pub id: StepId,
}

impl RunStep {
    pub(crate) fn new(run: &RunName, id: StepId) -> Self {
        Self { run: run.clone(), id }
    }
}

/// A step of a run on a remote.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct StepOnRemote {
    /// The run.
    pub run: RunName,
    /// Step and attempt.
    #[serde(flatten)]
    pub id: StepId,
    /// The remote.
    pub remote: RemoteName,
}

impl StepOnRemote {
    pub(crate) fn new(run: &RunName, id: StepId, remote: &RemoteName) -> Self {
        Self { run: run.clone(), id, remote: remote.clone() }
    }

    /// Returns the step, on whatever remote.
    pub(crate) fn step(&self) -> RunStep {
        RunStep::new(&self.run, self.id)
    }
}

/// A sealed step that a remote does not have yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotDurable {
    /// The run.
    pub run: RunName,
    /// Step and attempt.
    #[serde(flatten)]
    pub id: StepId,
    /// The remote.
    pub remote: RemoteName,
    /// Whether the step is not durable for lack of this remote: it is required, or no remote is and none has the step.
    pub required: bool,
    /// Whether the fault needs an operator. The next start retries regardless.
    pub failed: bool,
    /// Whether the remote needs data from this vault. False if only the parts of other nodes are missing, and for a step
    /// that was durable until retention removed it. True in the answer of an agent that does not say.
    #[serde(default = "vault_is_needed")]
    pub needs_this_vault: bool,
    /// Bytes that were not sent to it yet.
    pub missing_bytes: u64,
    /// Why it is not durable on it.
    pub reason: String,
}

/// An agent that does not say may still need its vault.
fn vault_is_needed() -> bool {
    true
}

/// A run that the service does not serve but whose steps in the vault are not durable: they are neither uploaded nor
/// evicted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnservedRun {
    /// The run.
    pub run: RunName,
    /// Number of its steps that are not durable on every required remote, according to the vault's records.
    pub steps: u64,
}

impl std::fmt::Display for UnservedRun {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { run, steps } = self;
        let (noun, verb) = if *steps == 1 { ("step", "is") } else { ("steps", "are") };
        write!(
            out,
            "the vault holds {steps} {noun} of the run '{run}' that {verb} not durable, but the agent does not serve \
             the run: upload with 'stepvault agent --once --run {run}' and the same configuration, or configure the \
             run again"
        )
    }
}

/// An entry of a watched directory, or of the vault, that is not sealed or cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedEntry {
    /// The run.
    pub run: RunName,
    /// Its path, which may no longer exist.
    pub path: PathBuf,
    /// The cause.
    pub reason: String,
}

/// Another training job that writes a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OtherWriter {
    /// The remote on which it was seen.
    pub remote: RemoteName,
    /// Its launch; null if it has no name.
    pub launch: Option<LaunchName>,
    /// Its nodes.
    pub nodes: Vec<NodeName>,
    /// Its latest step that was seen.
    #[serde(flatten)]
    pub id: StepId,
    /// When it was seen, in UTC.
    pub seen_at: String,
}

impl std::fmt::Display for OtherWriter {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes = listed(&self.nodes);
        write!(
            out,
            "another training job writes this run on {}: {} was written by {nodes}",
            self.remote, self.id
        )?;
        match &self.launch {
            Some(launch) => write!(out, ", launch '{launch}'"),
            None => Ok(()),
        }
    }
}

/// What the service left undone. In the answer to a request to drain, each list has at most 100 entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftUndone {
    /// Sealed steps of any run in the vault that are not durable on one of their remotes, oldest first within each run;
    /// of `drain`, at most 100, those on required remotes first.
    pub not_durable: Vec<NotDurable>,
    /// Finished steps that could not be sealed, and directories that may hold one but could not be read; of `drain`, at
    /// most 100.
    #[serde(default)]
    pub unsealed: Vec<SkippedEntry>,
    /// Steps in the vault that are unreadable or damaged and not known to be durable; of `drain`, at most 100.
    #[serde(default)]
    pub unreadable: Vec<SkippedEntry>,
    /// Runs that the agent does not serve but whose steps in the vault are not durable; of `drain`, at most 100.
    #[serde(default)]
    pub unserved: Vec<UnservedRun>,
}

impl LeftUndone {
    /// Whether no finished step is left.
    pub fn has_no_step(&self) -> bool {
        self.not_durable.is_empty() && self.unsealed.is_empty() && self.unreadable.is_empty()
    }
}

/// What the service did, and what it left undone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AgentReport {
    /// Steps that were sealed into the vault.
    pub sealed: Tally<RunStep>,
    /// Steps that became durable on a remote. Steps that were already durable on it do not count.
    pub uploaded: Tally<StepOnRemote>,
    /// Local copies that retention removed.
    pub evicted: Tally<RunStep>,
    /// Steps that the vault gave up before they were durable, for lack of space.
    pub given_up: Tally<RunStep>,
    /// The trainer's own steps that were removed from a watched directory.
    pub cleaned: Tally<RunStep>,
    /// Steps that retention removed from a remote.
    pub pruned: Tally<StepOnRemote>,
    /// What it left undone.
    #[serde(flatten)]
    pub left: LeftUndone,
    /// Entries that were not sealed, with the cause.
    pub skipped: Tally<SkippedEntry>,
    /// The restart loop that the agent is in; usually null.
    pub restart_loop: Option<RestartLoop>,
}

impl AgentReport {
    /// Whether every finished and every sealed step, of any run in the vault, is durable on every remote that it must
    /// be on, and none was given up. What could not be checked counts as not durable.
    pub fn is_durable(&self) -> bool {
        self.is_safe_here() && !self.left.not_durable.iter().any(|step| step.required)
    }

    /// Whether this vault is not needed any more: as [`Self::is_durable`], except that the parts of other nodes may be
    /// missing, and that retention may have removed a step from the remote.
    pub fn is_safe_here(&self) -> bool {
        let needed = |step: &NotDurable| step.required && step.needs_this_vault;
        self.given_up.total == 0
            && self.left.unsealed.is_empty()
            && self.left.unreadable.is_empty()
            && !self.left.not_durable.iter().any(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_counts_all_and_keeps_the_latest() {
        let mut tally = Tally::default();
        (0..LATEST + 5).for_each(|number| tally.add(number));
        assert_eq!((tally.total, tally.latest.len()), (1005, LATEST));
        assert_eq!((tally.latest[0], tally.latest[LATEST - 1]), (5, 1004));
    }
}

//! What a service that has ended says of its life.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::starts::RestartLoop;

/// Most entries of each list that are kept: a service may live for months.
const LATEST: usize = 1000;

/// How often something happened, and the latest of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tally<T> {
    /// How often in all.
    pub total: u64,
    /// The latest 1,000, in order.
    pub latest: Vec<T>,
}

impl<T> Default for Tally<T> {
    fn default() -> Self {
        Self {
            total: 0,
            latest: Vec::new(),
        }
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RunStep {
    /// The run.
    pub run: RunName,
    /// Step and attempt.
    #[serde(flatten)]
    pub id: StepId,
}

/// A step of a run on a remote.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct StepOnRemote {
    /// The run.
    pub run: RunName,
    /// Step and attempt.
    #[serde(flatten)]
    pub id: StepId,
    /// The remote.
    pub remote: RemoteName,
}

/// A sealed step that a remote does not have yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotDurable {
    /// The run.
    pub run: RunName,
    /// Step and attempt.
    #[serde(flatten)]
    pub id: StepId,
    /// The remote.
    pub remote: RemoteName,
    /// Whether a step is only safe once it is durable there.
    pub required: bool,
    /// Whether it is given up on this remote until the service is started again.
    pub failed: bool,
    /// Bytes that were not sent there yet.
    pub missing_bytes: u64,
    /// Why it is not there.
    pub reason: String,
}

/// Something in a watched directory that was not taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedEntry {
    /// The run.
    pub run: RunName,
    /// Where it is, or was.
    pub path: PathBuf,
    /// Why it was passed over.
    pub reason: String,
}

/// What the service did, and what it left undone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AgentReport {
    /// Steps that were taken over into the vault.
    pub sealed: Tally<RunStep>,
    /// Steps that became durable on a remote. One that was durable there before does not count.
    pub uploaded: Tally<StepOnRemote>,
    /// Local copies that retention removed.
    pub evicted: Tally<RunStep>,
    /// Steps of the trainer's own that were removed from a watched directory.
    pub cleaned: Tally<RunStep>,
    /// Steps that retention removed from a remote.
    pub pruned: Tally<StepOnRemote>,
    /// Sealed steps that are not durable on one of their remotes, oldest first within each run.
    pub not_durable: Vec<NotDurable>,
    /// What was not taken over, and why.
    pub skipped: Tally<SkippedEntry>,
    /// That the service is started again and again, and how it ended before.
    pub restart_loop: Option<RestartLoop>,
}

impl AgentReport {
    /// Whether every sealed step is durable on every remote that it has to be on.
    pub fn is_safe(&self) -> bool {
        !self.not_durable.iter().any(|step| step.required)
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

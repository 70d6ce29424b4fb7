//! Records in the vault which steps this node has restored, and which attempt it has saved since.
//!
//! Checkpoints that a trainer saves after a restore follow the restored step and replace what came after it. The file
//! times of other nodes cannot show that, and neither can an unreachable remote.

use serde::{Deserialize, Serialize};
use stepvault_core::Result;
use stepvault_core::ids::{Attempt, RunName, StepId};
use stepvault_core::placement::ResumedFrom;
use stepvault_core::timestamp::Timestamp;
use stepvault_local::vault::Vault;

use crate::notes::{read_list, write_list};

/// Number of restores that a vault stores, the latest ones.
const KEPT: usize = 256;
const NOTE: &str = "resumptions";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resumption {
    restored: StepId,
    /// By this node's clock.
    since: Timestamp,
    /// The attempt of the steps saved since then.
    attempt: Option<Attempt>,
}

/// The restores of one run on this node, the latest last.
#[derive(Debug)]
pub(crate) struct Resumptions {
    vault: Vault,
    run: RunName,
    list: Vec<Resumption>,
}

impl Resumptions {
    /// Loads the stored restores. An unreadable record counts as empty.
    pub(crate) async fn open(vault: &Vault, run: &RunName) -> Result<Self> {
        Ok(Self { vault: vault.clone(), run: run.clone(), list: read_list(vault, run, NOTE).await? })
    }

    /// Records that the trainer resumes from `restored`.
    pub(crate) async fn add(&mut self, restored: StepId, since: Timestamp) -> Result<()> {
        // A restore after which nothing was saved is superseded by the next.
        if self.list.last().is_some_and(|last| last.attempt.is_none()) {
            self.list.pop();
        }
        self.list.push(Resumption { restored, since, attempt: None });
        self.write().await
    }

    /// Returns the latest restore before `time`.
    pub(crate) fn before(&self, time: Timestamp) -> Option<ResumedFrom> {
        let found = self.list.iter().rfind(|entry| entry.since <= time)?;
        Some(ResumedFrom { id: found.restored, since: found.since, attempt: found.attempt })
    }

    /// Records the attempt of the steps saved after `resumed`.
    pub(crate) async fn joined(&mut self, resumed: &ResumedFrom, attempt: Attempt) -> Result<()> {
        let entry = self.list.iter_mut().rfind(|entry| entry.since == resumed.since);
        match entry {
            Some(entry) if entry.attempt != Some(attempt) => entry.attempt = Some(attempt),
            _ => return Ok(()),
        }
        self.write().await
    }

    async fn write(&mut self) -> Result<()> {
        write_list(&self.vault, &self.run, NOTE, &mut self.list, KEPT).await
    }
}

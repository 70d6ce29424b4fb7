//! Reads the drain records of a run's nodes from its remotes.

use std::collections::BTreeMap;

use futures::future::join_all;
use stepvault_core::Result;
use stepvault_core::clock::Clock;
use stepvault_core::drain::{DrainRecord, LeftStep, UnderWay, uploads_under_way};
use stepvault_core::ids::{RemoteName, StepId};

use crate::tier::catalog::latest_records;
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::visible_steps;

/// Returns the drain records on a remote, the latest first, at most 64. An unreadable record is skipped: it only
/// informs users, and no decision depends on it.
///
/// # Errors
/// When the remote is unreachable.
pub async fn drain_records(remote: &RunRemote) -> Result<Vec<DrainRecord>> {
    let (prefix, run) = (remote.keys.drains_prefix(), remote.keys.run());
    latest_records(remote, &prefix, |record: &DrainRecord| record.run == *run).await
}

/// Returns the steps newer than `newest` that nodes are uploading now, the newest first. A remote that does not answer is
/// left out.
pub async fn uploads_now(remotes: &[RunRemote], newest: Option<StepId>, clock: &dyn Clock) -> Vec<UnderWay> {
    let asked = join_all(remotes.iter().map(|remote| remote.answers_soon(drain_records(remote)))).await;
    let of_remote = |(remote, records): (&RunRemote, Result<Vec<DrainRecord>>)| {
        let mut records = records.unwrap_or_default();
        // The record of a drain names every remote, and is on each.
        for record in &mut records {
            record.left.retain(|left| left.remote == *remote.name());
        }
        records
    };
    let records: Vec<DrainRecord> = remotes.iter().zip(asked).flat_map(of_remote).collect();
    uploads_under_way(&records, newest, clock.now())
}

/// The steps that drains left, compared with what the remotes show now.
#[derive(Debug, Default)]
pub struct Drains {
    /// Each node's record, the latest first.
    pub records: Vec<DrainRecord>,
    /// The newest visible step of each reachable remote.
    newest: BTreeMap<RemoteName, Option<StepId>>,
}

impl Drains {
    /// Queries all remotes. A remote that does not answer is left out, and no step counts as missed on it.
    pub async fn ask(remotes: &[RunRemote]) -> Self {
        let mut drains = Self::default();
        let asked = join_all(remotes.iter().map(drain_records)).await;
        for record in asked.into_iter().filter_map(Result::ok).flatten() {
            // The same record is on every remote that was reachable then.
            if !drains.records.contains(&record) {
                drains.records.push(record);
            }
        }
        drains.records.sort_by_key(|record| std::cmp::Reverse(record.ended_at));
        if drains.records.is_empty() {
            return drains;
        }
        let listed = join_all(remotes.iter().map(visible_steps)).await;
        for (remote, visible) in remotes.iter().zip(listed) {
            if let Ok(visible) = visible {
                let newest = visible.into_keys().max();
                drains.newest.insert(remote.name().clone(), newest);
            }
        }
        drains
    }

    /// Whether a step that a drain left is still needed: once its remote has it or a newer one, nothing resumes from
    /// it.
    pub fn is_missed(&self, left: &LeftStep) -> bool {
        let newest = self.newest.get(&left.remote);
        newest.is_some_and(|newest| newest.is_none_or(|newest| newest < left.id))
    }
}

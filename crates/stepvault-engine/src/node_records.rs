//! Records that nodes leave on the remotes: what a drain left, steps given up for lack of space, and their starts.

use std::collections::BTreeMap;

use futures::future::join_all;
use stepvault_core::codec::{decode, encode};
use stepvault_core::drain::{DrainRecord, LeftStep, UnderWay, uploads_under_way};
use stepvault_core::given_up::{GivenUpRecord, GivenUpStep};
use stepvault_core::keys::{DRAINS, GIVEN_UP, STARTS};
use stepvault_core::starts::{Start, StartHistory, merged};
use stepvault_core::{Clock, NodeName, RemoteName, Result, RunName, StepId, Timestamp};
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;

use crate::tier::catalog::{latest_objects, latest_records};
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::visible_steps;

/// Returns the drain records on a remote, the latest first, at most 64. An unreadable record is skipped: it only
/// informs users, and no decision depends on it.
///
/// # Errors
/// When the remote is unreachable.
pub async fn drain_records(remote: &RunRemote) -> Result<Vec<DrainRecord>> {
    latest_records(remote, DRAINS, |record: &DrainRecord| record.run == *remote.keys.run()).await
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

/// The record's name in the vault.
const GIVEN_UP_NOTE: &str = "given-up.json";

/// Reads which steps of a run the vault gave up; `None` when there are none, or the record cannot be read.
///
/// # Errors
/// When the vault cannot be read.
pub fn read_given_up(vault: &Vault, run: &RunName) -> Result<Option<GivenUpRecord>> {
    let bytes = vault.read_note(run, GIVEN_UP_NOTE)?;
    Ok(bytes.and_then(|bytes| decode(&bytes, GIVEN_UP_NOTE).ok()))
}

/// Records in the vault that a step is given up. Blocks.
pub(crate) fn record_given_up(
    vault: &Vault,
    step: &SealedStep,
    durable_on: Vec<RemoteName>,
    now: Timestamp,
) -> Result<()> {
    let record = step.record();
    let mut recorded = read_given_up(vault, &record.run)?
        .unwrap_or_else(|| GivenUpRecord::new(record.run.clone(), record.node.clone()));
    recorded.add(GivenUpStep { id: record.id, bytes: record.data_bytes(), given_up_at: now, durable_on });
    vault.write_note(&record.run, GIVEN_UP_NOTE, &encode(&recorded)?)
}

/// Records on a remote what the vault gave up, for readers with a different vault.
///
/// # Errors
/// When the remote cannot be written to.
pub async fn write_given_up(remote: &RunRemote, record: &GivenUpRecord) -> Result<()> {
    remote.replace_record(&remote.keys.given_up(&record.node), record).await
}

/// Returns the records that the run's nodes wrote to its remotes, the latest first. Unreachable remotes and unreadable
/// records are skipped: the records only inform users, and no decision depends on them.
pub async fn read_given_up_on(remotes: &[RunRemote]) -> Vec<GivenUpRecord> {
    let mut records: Vec<GivenUpRecord> = Vec::new();
    let answers = join_all(remotes.iter().map(given_up_on)).await;
    for record in answers.into_iter().filter_map(Result::ok).flatten() {
        let known = records.iter_mut().find(|known| known.node == record.node);
        let latest = |record: &GivenUpRecord| record.steps.first().map(|step| step.given_up_at);
        match known {
            Some(known) if latest(known) < latest(&record) => *known = record,
            Some(_) => {}
            None => records.push(record),
        }
    }
    records
}

async fn given_up_on(remote: &RunRemote) -> Result<Vec<GivenUpRecord>> {
    latest_records(remote, GIVEN_UP, |record: &GivenUpRecord| record.run == *remote.keys.run()).await
}

/// Returns the starts of every node according to the remotes, and the errors of remotes that could not be read.
pub async fn read_starts(remotes: &[RunRemote]) -> (Vec<Start>, Vec<String>) {
    let mut starts = Vec::new();
    let mut faults = Vec::new();
    for (remote, read) in remotes.iter().zip(join_all(remotes.iter().map(starts_on)).await) {
        match read {
            Ok((found, unreadable)) => {
                starts = merged(found, starts);
                faults.extend(unreadable);
            }
            Err(error) => faults.push(format!("{}: {error}", remote.name())),
        }
    }
    (starts, faults)
}

async fn starts_on(remote: &RunRemote) -> Result<(Vec<Start>, Vec<String>)> {
    let objects = latest_objects(remote, STARTS).await?;
    let records = objects.iter().map(|object| remote.read_record::<StartHistory>(&object.key));
    let (mut starts, mut unreadable) = (Vec::new(), Vec::new());
    for record in join_all(records).await {
        match record {
            Ok(Some((history, _))) => starts = merged(starts, history.starts),
            Ok(None) => {}
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    Ok((starts, unreadable))
}

/// Writes a node's history to the remotes, replacing its earlier one; returns the errors.
pub async fn write_starts(remotes: &[RunRemote], node: &NodeName, starts: &[Start]) -> Vec<String> {
    let history = StartHistory::of(starts.to_vec());
    let writes = remotes.iter().map(|remote| write_starts_on(remote, node, &history));
    let written = join_all(writes).await;
    let faults = remotes.iter().zip(written);
    faults.filter_map(|(remote, written)| Some(format!("{}: {}", remote.name(), written.err()?))).collect()
}

/// Writes nothing where there is no marker: no step was ever uploaded there, or it is the wrong remote.
async fn write_starts_on(remote: &RunRemote, node: &NodeName, history: &StartHistory) -> Result<()> {
    if remote.marker().await?.is_none() {
        return Ok(());
    }
    remote.replace_record(&remote.keys.starts(node), history).await
}

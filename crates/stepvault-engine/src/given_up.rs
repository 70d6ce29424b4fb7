//! Steps that vaults of a run gave up for lack of space: recorded in the vault and on the remotes, and read by a
//! restore.

use futures::future::join_all;
use stepvault_core::Result;
use stepvault_core::codec::{decode, encode};
use stepvault_core::given_up::{GivenUpRecord, GivenUpStep};
use stepvault_core::ids::{RemoteName, RunName};
use stepvault_core::timestamp::Timestamp;
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;

use crate::tier::catalog::latest_records;
use crate::tier::run_remote::RunRemote;

/// The record's name in the vault.
const NOTE: &str = "given-up.json";

/// Reads which steps of a run the vault gave up; `None` when there are none, or the record cannot be read.
///
/// # Errors
/// When the vault cannot be read.
pub fn read_given_up(vault: &Vault, run: &RunName) -> Result<Option<GivenUpRecord>> {
    let Some(bytes) = vault.read_note(run, NOTE)? else {
        return Ok(None);
    };
    Ok(decode(&bytes, NOTE).ok())
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
    vault.write_note(&record.run, NOTE, &encode(&recorded)?)
}

/// Records on a remote what the vault gave up, for readers with a different vault.
///
/// # Errors
/// When the remote cannot be written to.
pub async fn write_given_up(remote: &RunRemote, record: &GivenUpRecord) -> Result<()> {
    let key = remote.keys.given_up(&record.node);
    remote.replace_record(&key, record).await
}

/// Returns the records that the run's nodes wrote to its remotes, the latest first. Unreachable remotes and unreadable
/// records are skipped: the records only inform users, and no decision depends on them.
pub async fn read_given_up_on(remotes: &[RunRemote]) -> Vec<GivenUpRecord> {
    let mut records: Vec<GivenUpRecord> = Vec::new();
    let answers = join_all(remotes.iter().map(records_on)).await;
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

async fn records_on(remote: &RunRemote) -> Result<Vec<GivenUpRecord>> {
    let (prefix, run) = (remote.keys.given_up_prefix(), remote.keys.run());
    latest_records(remote, &prefix, |record: &GivenUpRecord| record.run == *run).await
}

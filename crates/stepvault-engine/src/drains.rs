//! What drains of a run's nodes left behind, as its remotes know it.

use std::collections::BTreeMap;

use futures::future::join_all;
use stepvault_core::Result;
use stepvault_core::drain::{DrainRecord, LeftStep};
use stepvault_core::ids::{RemoteName, StepId};
use stepvault_core::keys::KeyKind;

use crate::catalog::{committed_ids, is_outage};
use crate::run_remote::RunRemote;

/// Most records that are read: nodes come and go under new names, and only the latest say something new.
const MOST_RECORDS: usize = 64;

/// The records of drains that stand on a remote, the latest written first, at most 64. One that cannot be read is passed
/// over: it is a word to people, and nothing goes by it.
///
/// # Errors
/// When the remote cannot be asked.
pub async fn drain_records(remote: &RunRemote) -> Result<Vec<DrainRecord>> {
    let mut listed = remote.list(&remote.keys.drains_prefix()).await?;
    listed.retain(|object| matches!(remote.keys.classify(&object.key), Some(KeyKind::Drain(_))));
    listed.sort_by_key(|object| std::cmp::Reverse(object.modified));
    let mut records = Vec::new();
    for object in listed.into_iter().take(MOST_RECORDS) {
        match remote.read_record::<DrainRecord>(&object.key).await {
            Ok(Some((record, _))) if record.run == *remote.keys.run() => records.push(record),
            Ok(_) => {}
            Err(error) if is_outage(&error) => return Err(error),
            Err(error) => tracing::debug!(%error, "a drain's record was passed over"),
        }
    }
    Ok(records)
}

/// What drains left of a run, held against what its remotes have committed since.
#[derive(Debug, Default)]
pub struct Drains {
    /// Each node's record, the latest first.
    pub records: Vec<DrainRecord>,
    /// By remote that could be asked, the newest step that it has committed.
    newest: BTreeMap<RemoteName, Option<StepId>>,
}

impl Drains {
    /// Asks all remotes. One that does not answer is left out, and nothing is said to be missed there.
    pub async fn ask(remotes: &[RunRemote]) -> Self {
        let mut drains = Self::default();
        let asked = join_all(remotes.iter().map(drain_records)).await;
        for record in asked.into_iter().filter_map(Result::ok).flatten() {
            // The same word stands on every remote that could be reached then.
            if !drains.records.contains(&record) {
                drains.records.push(record);
            }
        }
        drains
            .records
            .sort_by_key(|record| std::cmp::Reverse(record.ended_at));
        if drains.records.is_empty() {
            return drains;
        }
        let committed = join_all(remotes.iter().map(committed_ids)).await;
        for (remote, committed) in remotes.iter().zip(committed) {
            if let Ok(committed) = committed {
                let newest = committed.into_keys().max();
                drains.newest.insert(remote.name().clone(), newest);
            }
        }
        drains
    }

    /// Whether a step that a drain left is missed: nobody goes back to it once its remote has it, or a newer one.
    pub fn is_missed(&self, left: &LeftStep) -> bool {
        let newest = self.newest.get(&left.remote);
        newest.is_some_and(|newest| newest.is_none_or(|newest| newest < left.id))
    }
}

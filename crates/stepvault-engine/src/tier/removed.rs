//! The steps that were, or are being, removed from a remote: their tombstones, and the records of retired steps that
//! replace tombstones. Their identities are never reused (S9).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use stepvault_core::codec::FORMAT;
use stepvault_core::keys::{KeyKind, RETIRED, TOMBSTONES};
use stepvault_core::records::Tombstone;
use stepvault_core::retired::{RetiredRecord, RetiredSteps};
use stepvault_core::{Error, ErrorKind, Result, StepId};
use stepvault_remote::store::ObjectInfo;
use tokio::time::Instant;

use super::run_remote::RunRemote;
use crate::outage::is_outage;

/// The steps of a run that were, or are being, removed from a remote. Their identities are never reused (S9).
#[derive(Debug, Default)]
pub struct RemovedSteps {
    /// Those that still have a tombstone.
    pub tombstoned: BTreeSet<StepId>,
    /// The steps that only the record of retired steps still names.
    pub retired: RetiredSteps,
    /// The numbers of the records that hold the retired ones.
    pub(crate) retired_records: BTreeSet<u64>,
}

impl RemovedSteps {
    /// Whether the step is among them.
    pub fn contains(&self, id: StepId) -> bool {
        self.tombstoned.contains(&id) || self.retired.contains(id)
    }

    /// Returns the highest `count` of them, by attempt and step.
    pub fn newest(&self, count: usize) -> BTreeSet<StepId> {
        let tombstoned = self.tombstoned.iter().rev().take(count).copied();
        let all: BTreeSet<StepId> = tombstoned.chain(self.retired.newest(count)).collect();
        all.into_iter().rev().take(count).collect()
    }

    /// Returns the highest of them, by attempt and step.
    pub fn last(&self) -> Option<StepId> {
        self.tombstoned.last().copied().max(self.retired.last())
    }
}

/// Lists the steps that were, or are being, removed from a remote.
///
/// # Errors
/// When the remote is unreachable.
pub async fn removed_steps(remote: &RunRemote) -> Result<RemovedSteps> {
    // In this order: gc writes the record that replaces a tombstone before it deletes the tombstone.
    let tombstoned = tombstones(remote).await?;
    let (retired, retired_records) = retired_steps(remote).await?;
    Ok(RemovedSteps { tombstoned, retired, retired_records })
}

/// Returns the key of the record that marks a step as removed: its tombstone, or a record of retired steps.
///
/// # Errors
/// When the remote is unreachable.
pub async fn removal_record(remote: &RunRemote, id: StepId) -> Result<Option<String>> {
    if let Some(tombstone) = tombstone_of(remote, id).await? {
        return Ok(Some(tombstone));
    }
    let (retired, numbers) = retired_steps(remote).await?;
    let newest = numbers.last().map(|number| remote.keys.retired(*number));
    Ok(newest.filter(|_| retired.contains(id)))
}

async fn tombstone_of(remote: &RunRemote, id: StepId) -> Result<Option<String>> {
    let tombstone = remote.keys.tombstone(id);
    Ok(remote.store.head(&tombstone).await?.map(|_| tombstone))
}

/// Returns the steps in all records of retired steps, and the numbers of those records.
pub(crate) async fn retired_steps(remote: &RunRemote) -> Result<(RetiredSteps, BTreeSet<u64>)> {
    let select = |kind| match kind {
        KeyKind::Retired(number) => Some(number),
        _ => None,
    };
    let begun = Instant::now();
    let listed = remote.list_kind(&remote.keys.all(RETIRED), select).await?;
    let mut retired = RetiredSteps::default();
    let mut read = Vec::new();
    let mut numbers = BTreeSet::new();
    for (number, object) in listed {
        numbers.insert(number);
        let record = match remote.retired.record(&object) {
            Some(known) => Ok(Some(known)),
            None => remote.read_confirmed::<RetiredRecord>(&object.key).await,
        };
        match record {
            Ok(Some(record)) => {
                retired.extend(record.clone());
                read.push((object, record));
            }
            // Deleted since the listing: a later record holds the same.
            Ok(None) => {}
            Err(error) if is_outage(&error) => return Err(error),
            // Two records are kept, and a step whose objects are gone is not restored anyway.
            Err(error) => tracing::warn!("{error}"),
        }
    }
    remote.retired.replace(begun, read, &retired);
    Ok((retired, numbers))
}

/// Reads a tombstone, which has the step's name.
pub async fn read_tombstone(remote: &RunRemote, id: StepId) -> Result<Option<Tombstone>> {
    remote.read_confirmed(&remote.keys.tombstone(id)).await
}

/// Lists the tombstones on a remote: the steps that are being removed, and those removed recently.
pub(crate) async fn tombstones(remote: &RunRemote) -> Result<BTreeSet<StepId>> {
    let listed = remote.list_steps(TOMBSTONES).await?;
    Ok(listed.into_keys().collect())
}

/// Refuses an identity that retention or gc has used up on a remote: it is never reused.
///
/// # Errors
/// [`ErrorKind::Refused`] when the step was removed or is being removed.
pub(crate) async fn ensure_not_removed(remote: &RunRemote, id: StepId) -> Result<()> {
    refuse_removed(remote, id, removal_record(remote, id).await?).await
}

/// Refuses most of what [`ensure_not_removed`] refuses, for a request less: before an upload, whose commit is followed by
/// that check.
///
/// # Errors
/// As there.
pub(crate) async fn ensure_likely_not_removed(remote: &RunRemote, id: StepId) -> Result<()> {
    // It may miss a step that was retired within the last minute: this only spares needless work.
    let removal = match remote.retired.recent() {
        Some(retired) if !retired.contains(id) => tombstone_of(remote, id).await?,
        _ => removal_record(remote, id).await?,
    };
    refuse_removed(remote, id, removal).await
}

async fn refuse_removed(remote: &RunRemote, id: StepId, removal: Option<String>) -> Result<()> {
    let Some(key) = removal else {
        return Ok(());
    };
    let error = Error::new(ErrorKind::Refused, format!("cannot upload {id}"))
        .on(remote.describe(&key))
        .because("the step was removed from this remote before, and its identity is never reused")
        .hint("push it as a new attempt with --attempt");
    // gc also removes what was never durable.
    let tombstone = read_tombstone(remote, id).await?;
    let was_durable = tombstone.is_some_and(|tombstone| !tombstone.by_gc);
    Err(if was_durable { error.pruned() } else { error })
}

/// For so long a look for the removal of a step, or at the records of retired steps, is recent: another one may be spared
/// that only saves work. What a step's durability rests on is looked for again.
pub(crate) const RECENT_REMOVAL_CHECK: Duration = Duration::from_mins(1);

/// The records of retired steps of a remote that this process has read: they never change, and each check of a step's
/// removal needs them. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct RetiredMemory {
    inner: Arc<Mutex<Remembered>>,
}

#[derive(Debug, Default)]
struct Remembered {
    /// The records, each with the version of its object, by key. gc keeps two of them.
    records: BTreeMap<String, (String, RetiredRecord)>,
    /// When they were last listed, and what all of them held.
    listed: Option<(Instant, RetiredSteps)>,
}

impl RetiredMemory {
    /// Returns the record of this object if it was read before in this version.
    pub(crate) fn record(&self, object: &ObjectInfo) -> Option<RetiredRecord> {
        let remembered = self.inner.lock();
        let (version, record) = remembered.records.get(&object.key)?;
        (object.version.as_ref() == Some(version)).then(|| record.clone())
    }

    /// Replaces what is remembered by the records of a listing that began at `begun`, each with its object.
    pub(crate) fn replace(
        &self,
        begun: Instant,
        records: Vec<(ObjectInfo, RetiredRecord)>,
        all: &RetiredSteps,
    ) {
        let mut remembered = self.inner.lock();
        let known = |(object, record): (ObjectInfo, _)| Some((object.key, (object.version?, record)));
        remembered.records = records.into_iter().filter_map(known).collect();
        remembered.listed = Some((begun, all.clone()));
    }

    /// Returns the retired steps as they were listed less than a minute ago.
    pub(crate) fn recent(&self) -> Option<RetiredSteps> {
        let remembered = self.inner.lock();
        let (listed, retired) = remembered.listed.as_ref()?;
        (listed.elapsed() < RECENT_REMOVAL_CHECK).then(|| retired.clone())
    }
}

/// Returns the tombstone of a step.
pub(crate) fn tombstone(remote: &RunRemote, id: StepId, name: String, by_gc: bool) -> Tombstone {
    Tombstone { format: FORMAT, run: remote.keys.run().clone(), id, name, by_gc }
}

/// The local clock, for the local tier and for dry runs: pruning a remote uses the store's clock.
#[expect(clippy::disallowed_methods, reason = "a dry run writes nothing, so it has no store time to go by")]
pub(crate) fn local_now() -> SystemTime {
    SystemTime::now()
}

//! Remembers the records of retired steps of one remote. They never change, and each check of a step's removal needs them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stepvault_core::retired::{RetiredRecord, RetiredSteps};
use stepvault_remote::store::ObjectInfo;
use tokio::time::Instant;

/// For so long a look for the removal of a step, or at the records of retired steps, is recent: another one may be spared
/// that only saves work. What a step's durability rests on is looked for again.
pub(crate) const RECENT_REMOVAL_CHECK: Duration = Duration::from_mins(1);

/// The records of retired steps of a remote that this process has read. Cheap to clone.
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
        let remembered = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut remembered = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |(object, record): (ObjectInfo, _)| Some((object.key, (object.version?, record)));
        remembered.records = records.into_iter().filter_map(known).collect();
        remembered.listed = Some((begun, all.clone()));
    }

    /// Returns the retired steps as they were listed less than a minute ago.
    pub(crate) fn recent(&self) -> Option<RetiredSteps> {
        let remembered = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (listed, retired) = remembered.listed.as_ref()?;
        (listed.elapsed() < RECENT_REMOVAL_CHECK).then(|| retired.clone())
    }
}

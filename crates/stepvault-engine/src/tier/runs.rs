//! The runs below one URL, from one listing: no record is read.

use std::collections::{BTreeMap, BTreeSet};

use futures::TryStreamExt as _;
use stepvault_core::keys::{KeyKind, run_of};
use stepvault_core::{Result, RunName, StepId, Timestamp};
use stepvault_remote::store::RemoteStore;

/// The runs on a remote, and how much of it was listed.
#[derive(Debug, Default)]
pub struct Runs {
    /// By name.
    pub runs: BTreeMap<RunName, RunOnRemote>,
    /// How many objects were listed.
    pub objects: usize,
    /// Whether there may be more than was listed.
    pub is_cut_off: bool,
}

/// A run on a remote, as its keys tell.
#[derive(Debug, Default)]
pub struct RunOnRemote {
    /// The steps with a commit.
    pub steps: BTreeSet<StepId>,
    /// The length of all its objects in bytes, those of incomplete steps included.
    pub bytes: u64,
    /// When its last object was written, by the clock of the store.
    pub last_write: Option<Timestamp>,
}

/// Lists the runs on a remote from at most `max_objects` objects.
///
/// # Errors
/// When the store cannot be listed to that point: a partial listing decides nothing.
pub async fn list_runs(store: &dyn RemoteStore, max_objects: usize) -> Result<Runs> {
    let mut listing = store.list("");
    let mut found = Runs::default();
    while let Some(object) = listing.try_next().await? {
        if found.objects == max_objects {
            found.is_cut_off = true;
            break;
        }
        found.objects += 1;
        let Some((run, kind)) = run_of(&object.key) else { continue };
        let run = found.runs.entry(run).or_default();
        run.bytes += object.size_bytes;
        run.last_write = run.last_write.max(Some(Timestamp::from(object.modified)));
        if let KeyKind::Commit(id) = kind {
            run.steps.insert(id);
        }
    }
    Ok(found)
}

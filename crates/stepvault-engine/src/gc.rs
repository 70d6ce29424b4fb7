//! Deletes objects that no commit references: orphans of unfinished uploads and of interrupted removals.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::codec::{FORMAT, MAX_RECORD_BYTES};
use stepvault_core::keys::{KeyKind, ResumePoint, TOMBSTONES};
use stepvault_core::records::{GcRecord, Tombstone};
use stepvault_core::{Error, ErrorKind, Observer, Result, StepId};
use stepvault_remote::store::ObjectInfo;

use crate::outage::is_outage;
use crate::tier::catalog::{claimed_ids, commits, committed_ids, read_manifests};
use crate::tier::leases::{HeldLease, live_leases};
use crate::tier::removed::{RemovedSteps, local_now, removed_steps, tombstone};
use crate::tier::run_remote::RunRemote;
use crate::verify::steps_at_once;

/// What a gc found and did.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct GcReport {
    /// Orphans seen for the first time; the next gc deletes them if they still exist and are still orphans.
    pub marked: Vec<String>,
    /// Orphans removed.
    pub removed: Vec<String>,
    /// Bytes of the removed orphans.
    pub removed_bytes: u64,
    /// Multipart uploads that were aborted.
    pub aborted_uploads: u64,
    /// Orphans younger than the grace period.
    pub young: u64,
    /// Orphans that did not fit into the record of this gc: they are marked after those before them are deleted.
    pub unmarked: u64,
    /// Removed steps whose tombstones were replaced by one record of retired steps, because nothing else of them is
    /// left.
    pub retired_steps: u64,
    /// Committed steps with files that the store does not list under their keys. None of their objects is touched: the
    /// store may list such a file under a different name.
    pub unlisted_steps: Vec<StepId>,
    /// Objects that do not follow stepvault's layout; never touched.
    pub foreign: u64,
    /// Whether the store can list pending uploads.
    pub pending_uploads_listed: bool,
}

/// Runs gc once for a run on a remote. A dry run reports what would be deleted and writes nothing: it measures ages by
/// this machine's clock.
///
/// # Invariants
/// Only objects of stepvault's layout are deleted, older than `grace` by the store's clock, unreferenced in two gc runs
/// and unchanged between them (S7); nothing is deleted while a commit or manifest cannot be read (S8); a step without a
/// commit first gets a tombstone, for which its writer checks before it acknowledges (S9), and the tombstone is removed
/// if the writer was faster (S1).
///
/// # Errors
/// [`ErrorKind::Refused`] when the run has no marker or a record cannot be read; [`ErrorKind::Held`] while a prune or
/// another gc runs; [`ErrorKind::Denied`] without the right to delete, even if there was nothing to delete.
pub async fn run_gc(
    remote: &RunRemote,
    grace: Duration,
    dry_run: bool,
    observer: &Arc<dyn Observer>,
) -> Result<GcReport> {
    if remote.marker().await?.is_none() {
        return Err(Error::new(ErrorKind::Refused, "refusing gc on this remote")
            .on(remote.describe(&remote.keys.marker()))
            .because("the run has no marker on it: it may be the wrong remote")
            .hint("check the URL and the run's name; a push writes the marker"));
    }
    if dry_run {
        // A dry run writes nothing, so it has no store time to use.
        return gc_leased(remote, grace, dry_run, local_now(), observer).await;
    }
    let lease = HeldLease::on_run(remote).await?;
    let outcome = match lease.ensure_alone().await {
        Ok(()) => gc_leased(remote, grace, dry_run, lease.taken, observer).await,
        Err(held) => Err(held),
    };
    lease.end(outcome).await
}

async fn gc_leased(
    remote: &RunRemote,
    grace: Duration,
    dry_run: bool,
    now: SystemTime,
    observer: &Arc<dyn Observer>,
) -> Result<GcReport> {
    if !dry_run {
        remove_tombstones_of_kept(remote).await?;
    }
    let objects = remote.list(&remote.keys.prefix()).await?;
    let known = Known::read(remote, &objects).await?;
    let mut report = GcReport {
        pending_uploads_listed: remote.store.capabilities().lists_pending_uploads,
        unlisted_steps: known.unlisted.iter().copied().collect(),
        ..GcReport::default()
    };
    let mut orphans: Vec<&ObjectInfo> = Vec::new();
    for object in &objects {
        match known.judge(remote, object) {
            Judgement::Foreign => report.foreign += 1,
            Judgement::Referenced => {}
            Judgement::Orphan if is_young(object.modified, now, grace) => report.young += 1,
            Judgement::Orphan => orphans.push(object),
        }
    }
    // An unreadable record marks nothing: everything then waits for one more gc.
    let last: Option<GcRecord> = remote.read_usable_record(&remote.keys.gc_record()).await?;
    let before = last.map(|record| record.orphans).unwrap_or_default();
    let (deleted, next) = divide(orphans, &before, &mut report);
    report.removed = deleted.iter().map(|object| object.key.clone()).collect();
    report.removed_bytes = deleted.iter().map(|object| object.size_bytes).sum();
    let stale_uploads = stale_uploads(remote, now, grace).await?;
    report.aborted_uploads = stale_uploads.len() as u64;
    if dry_run {
        return Ok(report);
    }
    let tombstoned = known.tombstone(remote, &deleted).await?;
    // A writer that was faster than the tombstones has committed by now: check again before anything is deleted.
    let late = committed_ids(remote).await?;
    for id in tombstoned {
        if let Some(commit) = late.get(&id) {
            pardon(remote, id, commit).await?;
        }
    }
    let raced = |key: &str| {
        let is_new = |id| !known.committed.contains(&id) && !known.refused.contains(&id);
        step_of(remote, key).is_some_and(|id| late.contains_key(&id) && is_new(id))
    };
    report.removed.retain(|key| !raced(key));
    remote.delete(report.removed.clone()).await?;
    for (key, upload) in stale_uploads {
        remote.store.abort_upload(&key, &upload).await?;
    }
    remote.replace_record(&remote.keys.gc_record(), &next).await?;
    report.retired_steps = known.retire(remote, &objects, now, grace).await?;
    if report.removed_bytes > 0 {
        observer.warn(format!("{}: removed {} orphaned objects", remote.name(), report.removed.len()));
    }
    Ok(report)
}

/// Divides orphans: those that the previous gc has marked are returned to be deleted, and the others are marked in the
/// record of this gc, as far as it has room.
fn divide<'a>(
    orphans: Vec<&'a ObjectInfo>,
    before: &BTreeMap<String, String>,
    report: &mut GcReport,
) -> (Vec<&'a ObjectInfo>, GcRecord) {
    let mut marked = BTreeMap::new();
    let mut deleted = Vec::new();
    let mut room_bytes = MAX_RECORD_BYTES / 2;
    for object in orphans {
        if before.get(&object.key) == Some(&fingerprint(object)) {
            deleted.push(object);
            continue;
        }
        let entry_bytes = (object.key.len() + fingerprint(object).len()) as u64 * 2 + 8;
        let Some(left) = room_bytes.checked_sub(entry_bytes) else {
            report.unmarked += 1;
            continue;
        };
        room_bytes = left;
        report.marked.push(object.key.clone());
        marked.insert(object.key.clone(), fingerprint(object));
    }
    let next = GcRecord { format: FORMAT, orphans: marked };
    (deleted, next)
}

fn is_young(modified: SystemTime, now: SystemTime, grace: Duration) -> bool {
    now.duration_since(modified).map_or(true, |age| age < grace)
}

fn fingerprint(object: &ObjectInfo) -> String {
    object.version.clone().unwrap_or_else(|| format!("{} bytes", object.size_bytes))
}

async fn stale_uploads(
    remote: &RunRemote,
    now: SystemTime,
    grace: Duration,
) -> Result<Vec<(String, String)>> {
    let pending = remote.store.pending_uploads(&remote.keys.prefix()).await?;
    Ok(pending
        .into_iter()
        .filter(|upload| upload.initiated.is_some_and(|begun| !is_young(begun, now, grace)))
        .filter(|upload| remote.keys.classify(&upload.key).is_some())
        .map(|upload| (upload.key, upload.upload))
        .collect())
}

fn orphan_if(is_past: bool) -> Judgement {
    if is_past { Judgement::Orphan } else { Judgement::Referenced }
}

enum Judgement {
    Foreign,
    Referenced,
    Orphan,
}

/// The referenced objects, and the data needed to assign other objects to steps.
#[derive(Default)]
struct Known<'a> {
    committed: BTreeSet<StepId>,
    removed: RemovedSteps,
    /// Those of the listed keys that a commit or manifest names.
    referenced: HashSet<&'a str>,
    /// Steps that a writer has claimed: objects below their labels are stepvault's.
    claimed: BTreeSet<StepId>,
    /// Removed steps that were committed after their removal, and of which records are missing.
    refused: BTreeSet<StepId>,
    /// Committed steps with files that the store does not list under their keys.
    unlisted: BTreeSet<StepId>,
    live_leases: BTreeSet<String>,
}

impl<'a> Known<'a> {
    /// # Errors
    /// [`ErrorKind::Refused`] when a commit or manifest cannot be read: then nothing is known to be unreferenced.
    async fn read(remote: &RunRemote, listed: &'a [ObjectInfo]) -> Result<Self> {
        let refused = |error: &Error| {
            Error::new(ErrorKind::Refused, "refusing gc: a record cannot be read")
                .on(remote.store.url())
                .because(error)
                .hint("run 'stepvault verify' to see what is damaged, then restore or remove that step")
        };
        let listed: HashSet<&'a str> = listed.iter().map(|object| object.key.as_str()).collect();
        let removed = removed_steps(remote).await?;
        let mut known = Self { claimed: removed.tombstoned.clone(), removed, ..Self::default() };
        let mut missing = Vec::new();
        let commits = commits(remote).await?;
        let at_once = steps_at_once(commits.values().filter_map(|found| found.commit.as_deref().ok()));
        let read = stream::iter(commits).map(|(id, found)| async move {
            let commit = found.commit?;
            let manifests = read_manifests(remote, &commit).await;
            Ok((id, commit, manifests))
        });
        let mut read = pin!(read.buffered(at_once));
        while let Some(found) = read.next().await {
            let (id, commit, manifests) = found.map_err(|error| refused(&error))?;
            let manifests = match manifests {
                Ok(manifests) => manifests,
                Err(error) if is_outage(&error) => return Err(error),
                // A gc had deleted some of its objects when its writer committed, which found the tombstone and
                // acknowledged nothing (S9).
                Err(_) if known.removed.contains(id) => {
                    known.refused.insert(id);
                    known.claimed.insert(id);
                    continue;
                }
                Err(error) => return Err(refused(&error)),
            };
            known.committed.insert(id);
            let parts = commit.parts.iter().map(|part| remote.keys.part(id, &part.node));
            for key in parts.chain([remote.keys.commit(id)]) {
                known.referenced.extend(listed.get(key.as_str()));
            }
            let mut unlisted = HashSet::new();
            for manifest in &manifests {
                let keys = manifest.file_keys();
                for file in &manifest.files {
                    let key = keys.key(&file.path)?;
                    match listed.get(key.as_str()) {
                        Some(key) => drop(known.referenced.insert(key)),
                        // No object of the layout can be an imported file.
                        None if manifest.imported.is_some() => {}
                        None => drop(unlisted.insert(key)),
                    }
                }
            }
            if !unlisted.is_empty() && !known.removed.contains(id) {
                missing.push((id, commit.name.clone(), unlisted));
            }
            known.claimed.insert(id);
        }
        // Read after the commits: a step that was committed since the listing still has its claim, which is deleted
        // with the step. List again the steps committed since the listing.
        for (id, name, keys) in missing {
            let prefix = remote.keys.data_prefix(&name, id);
            let found: HashSet<String> =
                remote.list(&prefix).await?.into_iter().map(|object| object.key).collect();
            if !keys.is_subset(&found) {
                known.unlisted.insert(id);
            }
        }
        known.claimed.extend(claimed_ids(remote).await?.into_keys());
        let live = live_leases(remote).await?;
        known.live_leases = live.into_iter().map(|lease| lease.key).collect();
        Ok(known)
    }

    /// Replaces the tombstones of steps of which nothing is left by one record, so that listings do not grow with the
    /// number of steps ever removed. Returns how many were replaced.
    ///
    /// # Invariants
    /// A step's identity is never reused (S9): the record is written before its tombstone is deleted, writers check
    /// both, and two records are kept.
    async fn retire(
        &self,
        remote: &RunRemote,
        objects: &[ObjectInfo],
        now: SystemTime,
        grace: Duration,
    ) -> Result<u64> {
        let mut finished: BTreeSet<StepId> = BTreeSet::new();
        let mut left: BTreeSet<StepId> = BTreeSet::new();
        for object in objects {
            match remote.keys.classify(&object.key) {
                Some(KeyKind::Tombstone(id)) if !is_young(object.modified, now, grace) => {
                    finished.insert(id);
                }
                Some(KeyKind::Tombstone(_)) | None => {}
                Some(kind) => left.extend(kind.step_id()),
            }
        }
        finished.retain(|id| !left.contains(id) && self.removed.tombstoned.contains(id));
        if finished.is_empty() {
            return Ok(0);
        }
        let number = self.removed.retired_records.last().map_or(0, |last| last + 1);
        let record = self.removed.retired.with(remote.keys.run(), &finished);
        // Create-only: of two concurrent gc runs, the later one leaves this to the next run.
        if !remote.create_unless_taken(&remote.keys.retired(number), &record).await? {
            return Ok(0);
        }
        remote.delete(finished.iter().map(|id| remote.keys.tombstone(*id)).collect()).await?;
        let superseded = self.removed.retired_records.iter().filter(|old| *old + 1 < number);
        remote.delete(superseded.map(|old| remote.keys.retired(*old)).collect()).await?;
        Ok(finished.len() as u64)
    }

    fn judge(&self, remote: &RunRemote, object: &ObjectInfo) -> Judgement {
        if self.referenced.contains(object.key.as_str()) {
            return Judgement::Referenced;
        }
        // The store lists a file of this step under a different name, or has lost it: any other object of the step may
        // be that file.
        if step_of(remote, &object.key).is_some_and(|id| self.unlisted.contains(&id)) {
            return Judgement::Referenced;
        }
        match remote.keys.classify(&object.key) {
            None => Judgement::Foreign,
            Some(KeyKind::Commit(id)) if self.refused.contains(&id) => Judgement::Orphan,
            Some(
                KeyKind::Marker
                | KeyKind::GcRecord
                | KeyKind::Drain(_)
                | KeyKind::GivenUp(_)
                | KeyKind::Tombstone(_)
                | KeyKind::Retired(_)
                | KeyKind::Pin(_)
                | KeyKind::Starts(_)
                | KeyKind::Commit(_)
                // Attempts are numbered by these records: S9 holds while they exist.
                | KeyKind::Launch(_),
            ) => Judgement::Referenced,
            Some(KeyKind::Lease(..) | KeyKind::PruneLease(_)) => {
                orphan_if(!self.live_leases.contains(&object.key))
            }
            // Needed until a later launch has committed something.
            Some(
                KeyKind::Staged(attempt, _)
                | KeyKind::Follower(attempt, _)
                | KeyKind::Resume(ResumePoint { attempt, .. }),
            ) => orphan_if(self.committed.last().is_some_and(|newest| newest.attempt > attempt)),
            Some(KeyKind::Damaged(id)) => orphan_if(!self.committed.contains(&id)),
            // The claim of a committed step identifies its data; it is deleted with the step.
            Some(KeyKind::Claim(id)) if self.committed.contains(&id) => Judgement::Referenced,
            // The holder of a writer lease rewrites it continually, so it never looks the same in two gc runs.
            Some(
                KeyKind::Claim(_) | KeyKind::Part(..) | KeyKind::Probe(_) | KeyKind::WriterLease(_),
            ) => Judgement::Orphan,
            // Data that was never claimed was not written by stepvault.
            Some(KeyKind::Data { id, .. }) => {
                if self.claimed.contains(&id) || self.removed.retired.contains(id) {
                    Judgement::Orphan
                } else {
                    Judgement::Foreign
                }
            }
        }
    }

    /// Uses up the identities of steps that were never committed, so that a writer still uploading one detects it.
    /// Returns these steps.
    async fn tombstone(&self, remote: &RunRemote, deleted: &[&ObjectInfo]) -> Result<BTreeSet<StepId>> {
        let mut uncommitted = BTreeMap::new();
        for object in deleted {
            let Some(id) = step_of(remote, &object.key) else {
                continue;
            };
            if self.committed.contains(&id) || self.removed.contains(id) {
                continue;
            }
            let name: &mut Option<String> = uncommitted.entry(id).or_default();
            if let Some(KeyKind::Data { name: found, .. }) = remote.keys.classify(&object.key) {
                *name = Some(found);
            }
        }
        for (id, name) in &uncommitted {
            let (id, name) = (*id, name.clone().unwrap_or_else(|| id.label()));
            let tombstone = tombstone(remote, id, name, true);
            let key = remote.keys.tombstone(id);
            remote.create_record(&key, &tombstone).await?;
        }
        Ok(uncommitted.into_keys().collect())
    }
}

/// Returns the step that an object belongs to, if it can be determined.
fn step_of(remote: &RunRemote, key: &str) -> Option<StepId> {
    match remote.keys.classify(key)? {
        KeyKind::Part(id, _) | KeyKind::Claim(id) | KeyKind::Commit(id) | KeyKind::Data { id, .. } => {
            Some(id)
        }
        _ => None,
    }
}

/// Removes the tombstone of a step that was committed before it was tombstoned: its writer may have checked for the
/// tombstone before it existed and have acknowledged the step. Nothing of the step has been deleted then, because every
/// deleting process lists the commits after it has written the tombstone. A writer that committed later has seen the
/// tombstone.
async fn pardon(remote: &RunRemote, id: StepId, commit: &ObjectInfo) -> Result<()> {
    let key = remote.keys.tombstone(id);
    let Some(tombstone) = remote.store.head(&key).await? else {
        return Ok(());
    };
    if commit.modified <= tombstone.info.modified {
        remote.delete(vec![key]).await?;
    }
    Ok(())
}

/// Removes the tombstones left by a gc that was interrupted before its second check: see [`pardon`].
///
/// # Invariants
/// S1: a prune removes a step that keeps its tombstone, so that one answer must not hide the tombstone here.
///
/// # Errors
/// When the remote is unreachable.
pub(crate) async fn remove_tombstones_of_kept(remote: &RunRemote) -> Result<()> {
    let committed = committed_ids(remote).await?;
    for (id, listed) in remote.list_steps(TOMBSTONES).await? {
        // Strictly before: the gc may still be running, and of two events in the same second of the store's clock
        // the order is unknown.
        let was_committed = committed.get(&id).is_some_and(|commit| commit.modified < listed.modified);
        if !was_committed {
            continue;
        }
        let tombstone: Option<Tombstone> = remote.read_usable_record(&listed.key).await?;
        if tombstone.is_some_and(|tombstone| tombstone.by_gc) {
            remote.delete(vec![listed.key]).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "gc_tests.rs"]
mod tests;

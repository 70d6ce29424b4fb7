//! Sweeping away what no commit refers to: remains of uploads that never ended and of removals that were cut off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use stepvault_core::codec::FORMAT;
use stepvault_core::ids::StepId;
use stepvault_core::keys::KeyKind;
use stepvault_core::observe::{Event, Observer};
use stepvault_core::records::{Claim, Sweep, Tombstone};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::store::ObjectInfo;

use crate::catalog::{commits, leases, read_manifests, read_tombstone, tombstones};
use crate::leases::HeldLease;
use crate::prune::local_now;
use crate::run_remote::RunRemote;

/// What a sweep found and did.
#[derive(Debug, Default, Serialize)]
pub struct GcReport {
    /// Orphans seen for the first time; they go at the next sweep if they are still there and still orphans.
    pub marked: Vec<String>,
    /// Orphans removed.
    pub removed: Vec<String>,
    /// Bytes of those.
    pub removed_bytes: u64,
    /// Multipart uploads that were aborted.
    pub aborted_uploads: u64,
    /// Orphans younger than the grace period.
    pub young: u64,
    /// Objects that are none of ours; never touched.
    pub foreign: u64,
    /// Whether the store can list pending uploads at all.
    pub pending_uploads_listed: bool,
}

/// Sweeps a run on a remote once. A dry run says what would go, and writes nothing: it measures ages by this machine's
/// clock.
///
/// # Invariants
/// Only objects of our layout go, older than `grace` by the store's clock, unreferenced at two sweeps and unchanged
/// between them (S7); nothing goes while a commit or manifest cannot be read (S8); a step without a commit is
/// condemned by a tombstone first, which its writer asks for before it acknowledges (S9), and pardoned when the writer
/// was faster (S1).
///
/// # Errors
/// [`ErrorKind::Refused`] where the run has no marker or a record cannot be read; [`ErrorKind::Denied`] without the right
/// to delete, also where nothing had to go.
pub async fn sweep(
    remote: &RunRemote,
    grace: Duration,
    dry_run: bool,
    observer: &Arc<dyn Observer>,
) -> Result<GcReport> {
    if remote.marker().await?.is_none() {
        return Err(Error::new(ErrorKind::Refused, "will not sweep here")
            .on(remote.describe(&remote.keys.marker()))
            .because("the run has no marker on this remote: it may be the wrong place")
            .hint("check the URL and the run's name; a push writes the marker"));
    }
    if dry_run {
        // It writes nothing, so that it has no store's time to go by.
        return sweep_leased(remote, grace, dry_run, local_now(), observer).await;
    }
    let lease = HeldLease::on_run(remote).await?;
    let outcome = sweep_leased(remote, grace, dry_run, lease.taken(), observer).await;
    lease.end(outcome).await
}

async fn sweep_leased(
    remote: &RunRemote,
    grace: Duration,
    dry_run: bool,
    now: SystemTime,
    observer: &Arc<dyn Observer>,
) -> Result<GcReport> {
    if !dry_run {
        pardon_spared(remote).await?;
    }
    let objects = remote.list(&remote.keys.prefix()).await?;
    let known = Known::read(remote).await?;
    let mut report = GcReport {
        pending_uploads_listed: remote.store.abilities().lists_pending_uploads,
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
    let before = previous_sweep(remote).await?;
    let mut next = Sweep {
        format: FORMAT,
        orphans: BTreeMap::new(),
    };
    let mut doomed = Vec::new();
    for object in orphans {
        if before.get(&object.key) == Some(&fingerprint(object)) {
            doomed.push(object);
        } else {
            report.marked.push(object.key.clone());
            next.orphans.insert(object.key.clone(), fingerprint(object));
        }
    }
    report.removed = doomed.iter().map(|object| object.key.clone()).collect();
    report.removed_bytes = doomed.iter().map(|object| object.size_bytes).sum();
    let stale_uploads = stale_uploads(remote, now, grace).await?;
    report.aborted_uploads = stale_uploads.len() as u64;
    if dry_run {
        return Ok(report);
    }
    let condemned = known.condemn(remote, &doomed).await?;
    // A writer that was faster than the tombstones has committed by now: look again before anything goes.
    let late = crate::catalog::committed_ids(remote).await?;
    for id in condemned {
        if let Some(commit) = late.get(&id) {
            pardon(remote, id, commit).await?;
        }
    }
    let raced = |key: &str| {
        known
            .step_of(remote, key)
            .is_some_and(|id| late.contains_key(&id) && !known.committed.contains(&id))
    };
    report.removed.retain(|key| !raced(key));
    remote.delete(report.removed.clone()).await?;
    for (key, upload) in stale_uploads {
        remote.store.abort_upload(&key, &upload).await?;
    }
    remote.replace_record(&remote.keys.sweep(), &next).await?;
    if report.removed_bytes > 0 {
        observer.on_event(&Event::Warning {
            message: &format!(
                "{}: removed {} orphaned objects",
                remote.name(),
                report.removed.len()
            ),
        });
    }
    Ok(report)
}

/// Takes the tombstone of a step away that was committed before it was condemned: its writer may have looked for the
/// tombstone before it was there, and have acknowledged the step. Nothing of the step is gone then, because whoever
/// deletes lists the commits after the tombstone is there. A writer that committed later has seen the tombstone.
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

/// Takes away what a sweep left that was cut off between its tombstones and its second look: see [`pardon`].
///
/// # Errors
/// When the remote cannot be asked.
pub(crate) async fn pardon_spared(remote: &RunRemote) -> Result<()> {
    let committed = crate::catalog::committed_ids(remote).await?;
    for id in tombstones(remote).await? {
        let Some(commit) = committed.get(&id) else {
            continue;
        };
        match read_tombstone(remote, id).await {
            Ok(Some(tombstone)) if tombstone.by_sweep => {
                let condemned = remote.store.head(&remote.keys.tombstone(id)).await?;
                // Strictly before: the sweep may be at work still, and of two in one second of the store's clock nobody
                // knows which was first.
                if condemned.is_some_and(|head| commit.modified < head.info.modified) {
                    remote.delete(vec![remote.keys.tombstone(id)]).await?;
                }
            }
            Err(error) if crate::catalog::is_outage(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn is_young(modified: SystemTime, now: SystemTime, grace: Duration) -> bool {
    now.duration_since(modified).map_or(true, |age| age < grace)
}

fn fingerprint(object: &ObjectInfo) -> String {
    object
        .version
        .clone()
        .unwrap_or_else(|| format!("{} bytes", object.size_bytes))
}

/// What the last sweep marked. A record that cannot be read marks nothing: everything waits one sweep longer.
async fn previous_sweep(remote: &RunRemote) -> Result<BTreeMap<String, String>> {
    match remote.read_record::<Sweep>(&remote.keys.sweep()).await {
        Ok(Some((sweep, _))) => Ok(sweep.orphans),
        Err(error) if crate::catalog::is_outage(&error) => Err(error),
        Ok(None) | Err(_) => Ok(BTreeMap::new()),
    }
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
    if is_past {
        Judgement::Orphan
    } else {
        Judgement::Referenced
    }
}

enum Judgement {
    Foreign,
    Referenced,
    Orphan,
}

/// What is referenced, and how to tell which step an object without a commit belongs to.
struct Known {
    committed: BTreeSet<StepId>,
    tombstoned: BTreeSet<StepId>,
    referenced: BTreeSet<String>,
    /// Data of steps that were claimed, by directory name and attempt number.
    claimed: BTreeMap<(String, u32), StepId>,
    live_leases: BTreeSet<String>,
}

impl Known {
    /// # Errors
    /// [`ErrorKind::Refused`] when a commit or manifest cannot be read: then nothing is known to be unreferenced.
    async fn read(remote: &RunRemote) -> Result<Self> {
        let refused = |error: &Error| {
            Error::new(ErrorKind::Refused, "will not sweep: a record cannot be read")
                .on(remote.store.url())
                .because(error)
                .hint("'stepvault verify' names what is damaged; restore or remove that step first")
        };
        let mut known = Self {
            committed: BTreeSet::new(),
            tombstoned: tombstones(remote).await?.into_iter().collect(),
            referenced: BTreeSet::new(),
            claimed: BTreeMap::new(),
            live_leases: BTreeSet::new(),
        };
        for (id, found) in commits(remote).await?.by_step {
            let commit = found.commit.map_err(|error| refused(&error))?;
            let manifests = match read_manifests(remote, &commit).await {
                Ok(manifests) => manifests,
                Err(error) if crate::catalog::is_outage(&error) => return Err(error),
                Err(error) => return Err(refused(&error)),
            };
            known.committed.insert(id);
            known.referenced.insert(remote.keys.commit(id));
            for part in &commit.parts {
                known.referenced.insert(remote.keys.part(id, &part.node));
            }
            for file in manifests.iter().flat_map(|manifest| &manifest.files) {
                known
                    .referenced
                    .insert(remote.keys.data(&commit.name, id, &file.path)?);
            }
            known
                .claimed
                .insert((commit.name.clone(), id.attempt.number()), id);
        }
        for object in remote.list(&remote.keys.claims_prefix()).await? {
            let Some(KeyKind::Claim(id)) = remote.keys.classify(&object.key) else {
                continue;
            };
            match remote.read_record::<Claim>(&object.key).await {
                Ok(Some((claim, _))) => {
                    known.claimed.insert((claim.name, id.attempt.number()), id);
                }
                Err(error) if crate::catalog::is_outage(&error) => return Err(error),
                // Without a claim that can be read the data counts as foreign, and stays.
                Ok(None) | Err(_) => {}
            }
        }
        for id in known.tombstoned.clone() {
            if let Some(tombstone) = read_tombstone(remote, id).await? {
                known.claimed.insert((tombstone.name, id.attempt.number()), id);
            }
        }
        let found = leases(remote).await?;
        let now = found
            .iter()
            .map(|lease| lease.renewed)
            .max()
            .unwrap_or(SystemTime::UNIX_EPOCH);
        known.live_leases = found
            .into_iter()
            .filter(|lease| lease.is_live(now))
            .map(|lease| lease.key)
            .collect();
        Ok(known)
    }

    /// The step that an object belongs to, where that can be told.
    fn step_of(&self, remote: &RunRemote, key: &str) -> Option<StepId> {
        match remote.keys.classify(key)? {
            KeyKind::Part(id, _) | KeyKind::Claim(id) | KeyKind::Commit(id) => Some(id),
            KeyKind::Data { name, attempt, .. } => self.claimed.get(&(name, attempt)).copied(),
            _ => None,
        }
    }

    fn newest(&self) -> Option<StepId> {
        self.committed.last().copied()
    }

    fn judge(&self, remote: &RunRemote, object: &ObjectInfo) -> Judgement {
        if self.referenced.contains(&object.key) {
            return Judgement::Referenced;
        }
        match remote.keys.classify(&object.key) {
            None => Judgement::Foreign,
            Some(
                KeyKind::Marker
                | KeyKind::Sweep
                | KeyKind::Drain(_)
                | KeyKind::Tombstone(_)
                | KeyKind::Pin(_)
                | KeyKind::Starts(_)
                | KeyKind::Commit(_)
                // Attempts are numbered by them: S9 holds for as long as they stand.
                | KeyKind::Launch(_),
            ) => Judgement::Referenced,
            Some(KeyKind::Lease(..) | KeyKind::PruneLease(_)) => {
                if self.live_leases.contains(&object.key) {
                    Judgement::Referenced
                } else {
                    Judgement::Orphan
                }
            }
            // Of use until another launch has committed something, or this one has come further.
            Some(KeyKind::Staged(attempt, _)) => {
                orphan_if(self.newest().is_some_and(|newest| newest.attempt > attempt))
            }
            Some(KeyKind::Resume(point)) => orphan_if(match point.after {
                None => self.newest().is_some_and(|newest| newest.attempt > point.attempt),
                Some(after) => self.newest() > Some(after),
            }),
            Some(KeyKind::Unfit(id)) => orphan_if(!self.committed.contains(&id)),
            // The claim of a committed step is what tells its data; it goes with the step.
            Some(KeyKind::Claim(id)) if self.committed.contains(&id) => Judgement::Referenced,
            Some(KeyKind::Claim(_) | KeyKind::Part(..) | KeyKind::Probe(_)) => Judgement::Orphan,
            // Data that nobody ever claimed was not written by us.
            Some(KeyKind::Data { name, attempt, .. }) => {
                if self.claimed.contains_key(&(name, attempt)) {
                    Judgement::Orphan
                } else {
                    Judgement::Foreign
                }
            }
        }
    }

    /// Spends the names of steps that were never committed, so that a writer that is still at work on one finds out.
    /// Which ones.
    async fn condemn(&self, remote: &RunRemote, doomed: &[&ObjectInfo]) -> Result<BTreeSet<StepId>> {
        let names: BTreeMap<StepId, &String> =
            self.claimed.iter().map(|((name, _), id)| (*id, name)).collect();
        let uncommitted: BTreeSet<StepId> = doomed
            .iter()
            .filter_map(|object| self.step_of(remote, &object.key))
            .filter(|id| !self.committed.contains(id) && !self.tombstoned.contains(id))
            .collect();
        for id in uncommitted.iter().copied() {
            let name = names.get(&id).map_or_else(|| id.label(), |name| (*name).clone());
            let tombstone = Tombstone {
                format: FORMAT,
                run: remote.keys.run().clone(),
                id,
                name,
                by_sweep: true,
            };
            remote
                .create_record(&remote.keys.tombstone(id), &tombstone)
                .await?;
        }
        Ok(uncommitted)
    }
}

#[cfg(test)]
#[path = "gc_tests.rs"]
mod tests;

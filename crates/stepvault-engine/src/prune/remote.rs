//! Retention on a remote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use stepvault_core::codec::FORMAT;
use stepvault_core::commit::Commit;
use stepvault_core::ids::StepId;
use stepvault_core::keys::KeyKind;
use stepvault_core::manifest::PartManifest;
use stepvault_core::observe::{Event, Observer};
use stepvault_core::records::Tombstone;
use stepvault_core::retention::{
    Guards, KeepRules, LocalLimits, RetentionPlan, StepFacts, TierView, Verdict, Verified, abandoned_steps,
    plan,
};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, Result};

use super::removal::Removal;
use super::{PruneReport, local_now};
use crate::catalog::{committed_ids, leases, live_leases, pins, read_tombstone, removed_steps};
use crate::gc::pardon_spared;
use crate::leases::HeldLease;
use crate::run_remote::RunRemote;
use crate::step_state::visible_commits;
use crate::verify::{Depth, StepHealth, check_committed, check_remote, prove_committed};

/// Adds what to do about a step that is no longer listed and whose files could not all be deleted.
fn left_behind(error: Error) -> Error {
    let cause = error.hint_text().unwrap_or("correct the cause").to_owned();
    error.hint(format!(
        "{cause}; the step is no longer listed, but some of its files are left: `stepvault gc` deletes them in its \
         second run"
    ))
}

/// Inputs for pruning a remote.
#[derive(Debug, Clone)]
pub struct RemotePrune {
    /// The run on the remote.
    pub remote: RunRemote,
    /// The rules for remotes.
    pub rules: KeepRules,
    /// Maximum number of steps to delete at once.
    pub maximum_deletions: Option<u32>,
    /// Pins on other tiers; they also hold here.
    pub pinned_elsewhere: BTreeSet<StepId>,
    /// Receives progress and warnings.
    pub observer: Arc<dyn Observer>,
}

/// The steps on the remote, and the commits needed to remove them.
struct Found {
    view: TierView,
    commits: Vec<Commit>,
}

/// Plans which steps would go, and writes nothing. Ages are measured by this machine's clock.
pub async fn plan_remote(prune: &RemotePrune) -> Result<RetentionPlan> {
    let found = remote_view(prune, local_now(), None).await?;
    decide(prune, found).await.map(|(plan, _)| plan)
}

/// Plans by the store's clock and removes the steps that the plan drops: tombstone, commit, data, manifests, in this
/// order.
///
/// # Invariants
/// The commit is deleted before any data (S5); the plan's guards hold (S4, S8); a step that someone began to read after
/// it was planned is kept; its identity is never reused (S9).
///
/// # Errors
/// `Held` while another prune or gc runs; `Denied` without the right to delete, even if there was nothing to delete.
pub async fn prune_remote(prune: &RemotePrune) -> Result<PruneReport> {
    let lease = HeldLease::on_run(&prune.remote).await?;
    let outcome = prune_leased(prune, &lease).await;
    lease.end(outcome).await
}

async fn prune_leased(prune: &RemotePrune, lease: &HeldLease) -> Result<PruneReport> {
    lease.ensure_alone().await?;
    pardon_spared(&prune.remote).await?;
    let found = remote_view(prune, lease.taken(), Some(lease)).await?;
    let (plan, commits) = decide(prune, found).await?;
    let mut report = PruneReport {
        plan,
        removed: Vec::new(),
        given_up: Vec::new(),
        spared: Vec::new(),
    };
    if report.plan.refusal.is_none() {
        finish_tombstoned(prune, &mut report).await?;
        if !report.plan.deletions().is_empty() {
            // The steps that stay justify removing the others.
            let keys = commits.iter().map(|commit| prune.remote.keys.commit(commit.id));
            prune.remote.store.sync(&keys.collect::<Vec<_>>()).await?;
        }
    }
    let commits: BTreeMap<StepId, &Commit> = commits.iter().map(|commit| (commit.id, commit)).collect();
    let planned: Vec<StepId> = report
        .plan
        .deletions()
        .iter()
        .map(|decision| decision.id)
        .collect();
    for id in planned {
        let Some(commit) = commits.get(&id) else {
            continue;
        };
        let removal = removal(prune, id, &commit.name, Some(commit.data_bytes()));
        match removal.by(remove(prune, id, &commit.name)).await? {
            None => report.removed.push(id),
            Some(reason) => report.spared.push((id, reason)),
        }
    }
    Ok(report)
}

fn removal<'a>(prune: &'a RemotePrune, id: StepId, name: &str, bytes: Option<u64>) -> Removal<'a> {
    let remote = &prune.remote;
    Removal {
        observer: &prune.observer,
        tier: &remote.tier,
        id,
        location: remote.step_location(name, id),
        bytes,
    }
}

/// Lists the visible steps with all facts on which retention depends, and their commits.
async fn remote_view(prune: &RemotePrune, now: SystemTime, lease: Option<&HeldLease>) -> Result<Found> {
    let remote = &prune.remote;
    if remote.marker().await?.is_none() {
        // The marker is missing: never delete from an unknown place.
        return Ok(Found {
            view: empty_view(remote, now),
            commits: Vec::new(),
        });
    }
    let visible = visible_commits(remote).await?;
    let mut pinned = pins(remote).await?;
    pinned.extend(&prune.pinned_elsewhere);
    let leased: BTreeSet<StepId> = leases(remote)
        .await?
        .iter()
        .filter(|found| found.is_live(now))
        .filter_map(|found| found.id)
        .collect();
    let abandoned = abandoned_steps(visible.keys().copied());
    let mut view = empty_view(remote, now);
    let mut readable = Vec::new();
    for (id, found) in visible {
        match found.commit {
            Ok(commit) => {
                view.steps.push(StepFacts {
                    id,
                    name: commit.name.clone(),
                    created: Timestamp::from(found.object.modified),
                    written_at: commit.written_at,
                    bytes: commit.data_bytes(),
                    reclaimable_bytes: commit.data_bytes(),
                    best: commit.best.clone(),
                    metrics: commit.metrics.clone(),
                    pinned: pinned.contains(&id),
                    leased: leased.contains(&id),
                    verified: Verified::Yes,
                    durable_on: vec![remote.name().clone()],
                    retired_on: Vec::new(),
                    uploading: false,
                    unproven: None,
                    needs_other_nodes: commit.parts.len() > 1,
                    abandoned: abandoned.contains(&id),
                });
                readable.push(commit);
            }
            Err(error) => view.unreadable.push((found.object.key, error.to_string())),
        }
    }
    tracing::debug!(
        steps = view.steps.len(),
        leased = lease.is_some(),
        "examined a remote"
    );
    Ok(Found {
        view,
        commits: readable,
    })
}

fn empty_view(remote: &RunRemote, now: SystemTime) -> TierView {
    TierView {
        tier: remote.tier.clone(),
        steps: Vec::new(),
        unreadable: Vec::new(),
        now: Timestamp::from(now),
        free_bytes: None,
    }
}

/// Plans as if every step were sound, verifies those that the plan relies on, and plans again without the unsound ones,
/// until all that are relied on have been verified. Steps that are removed anyway are not checked.
async fn decide(prune: &RemotePrune, mut found: Found) -> Result<(RetentionPlan, Vec<Commit>)> {
    let guards = Guards {
        required_remotes: Vec::new(),
        maximum_deletions: prune.maximum_deletions,
    };
    let limits = LocalLimits::default();
    let mut listed: BTreeSet<StepId> = BTreeSet::new();
    let mut proved: Option<StepId> = None;
    loop {
        let plan = plan(&found.view, &prune.rules, &limits, &guards)?;
        if plan.refusal.is_some() || plan.deletions().is_empty() {
            return Ok((plan, found.commits));
        }
        // The step that is restored when all others are gone is verified by its bytes; for the rest, names and sizes
        // suffice.
        let newest_valid = found.view.newest_valid();
        if newest_valid != proved {
            proved = newest_valid;
            if let Some(id) = newest_valid {
                let health = prove_newest(prune, &found, id).await?;
                note_health(&mut found.view, id, &health);
            }
            continue;
        }
        let relied_on: Vec<StepId> = plan
            .decisions
            .iter()
            .filter(|decision| decision.verdict == Verdict::Keep && Some(decision.id) != proved)
            .map(|decision| decision.id)
            .filter(|id| listed.insert(*id))
            .collect();
        if relied_on.is_empty() {
            return Ok((plan, found.commits));
        }
        for id in relied_on {
            let Some(commit) = found.commits.iter().find(|commit| commit.id == id) else {
                continue;
            };
            let health = check_committed(&prune.remote, commit, Depth::Listed, &prune.observer).await?;
            note_health(&mut found.view, id, &health);
        }
    }
}

fn note_health(view: &mut TierView, id: StepId, health: &StepHealth) {
    if let Some(step) = view.steps.iter_mut().find(|step| step.id == id)
        && !health.is_sound()
    {
        step.verified = Verified::Damaged(health.faults.join("; "));
    }
}

/// S4: 'newest valid' means verified, not merely listed.
async fn prove_newest(prune: &RemotePrune, found: &Found, id: StepId) -> Result<StepHealth> {
    let Some(commit) = found.commits.iter().find(|commit| commit.id == id) else {
        return Ok(StepHealth::default());
    };
    prove_committed(&prune.remote, commit, &prune.observer).await
}

/// Removes one step; returns a reason if it was kept. The tombstone comes first: a reader that takes a lease after it
/// sees the step as removed, and a reader that took one before it is seen here.
async fn remove(prune: &RemotePrune, id: StepId, name: &str) -> Result<Option<String>> {
    let remote = &prune.remote;
    if pins(remote).await?.contains(&id) {
        return Ok(Some("it was pinned meanwhile".to_owned()));
    }
    let tombstone = Tombstone {
        format: FORMAT,
        run: remote.keys.run().clone(),
        id,
        name: name.to_owned(),
        by_gc: false,
    };
    remote
        .create_record(&remote.keys.tombstone(id), &tombstone)
        .await?;
    erase(prune, id).await
}

/// Deletes a tombstoned step, unless someone pinned or began to read it before the tombstone was written.
async fn erase(prune: &RemotePrune, id: StepId) -> Result<Option<String>> {
    let remote = &prune.remote;
    // A pinning process checks for the tombstone after it has written the pin, so this pin came first. Nothing is
    // deleted before the commit, so the step is whole, unless it was committed during a gc.
    if pins(remote).await?.contains(&id)
        && check_remote(remote, id, Depth::Listed, &prune.observer)
            .await?
            .is_sound()
    {
        remote.delete(vec![remote.keys.tombstone(id)]).await?;
        return Ok(Some("it was pinned meanwhile".to_owned()));
    }
    let step_leases = remote.list(&remote.keys.step_leases_prefix(id)).await?;
    if !step_leases.is_empty() {
        let live = live_leases(remote).await?;
        if live.iter().any(|lease| lease.id == Some(id)) {
            return Ok(Some("it is being restored; the next prune deletes it".to_owned()));
        }
    }
    let parts = part_records(remote, id).await?;
    remote.delete(vec![remote.keys.commit(id)]).await?;
    erase_uncommitted(prune, id, parts).await.map_err(left_behind)?;
    Ok(None)
}

/// Deletes the data and the records of a step whose commit is gone.
async fn erase_uncommitted(
    prune: &RemotePrune,
    id: StepId,
    parts: Vec<(String, Option<PartManifest>)>,
) -> Result<()> {
    let remote = &prune.remote;
    remote.delete(named_data(prune, id, &parts)?).await?;
    let mut keys: Vec<String> = parts.into_iter().map(|(key, _)| key).collect();
    keys.push(remote.keys.claim(id));
    // The pin of a process that was too late and got an error.
    keys.push(remote.keys.pin(id));
    remote.delete(keys).await
}

/// Returns the existing part manifests of a step, by key; empty if one cannot be read.
async fn part_records(remote: &RunRemote, id: StepId) -> Result<Vec<(String, Option<PartManifest>)>> {
    let mut parts = Vec::new();
    let select = |kind| matches!(kind, KeyKind::Part(found, _) if found == id).then_some(());
    for ((), object) in remote
        .list_kind(&remote.keys.step_parts_prefix(id), select)
        .await?
    {
        let manifest: Option<PartManifest> = remote.read_usable_record(&object.key).await?;
        let manifest = manifest.filter(|manifest| manifest.id == id);
        parts.push((object.key, manifest));
    }
    Ok(parts)
}

/// Returns the keys of the files in a step's manifests. Other objects below the step's label are not known to belong to
/// it, and are left to gc.
fn named_data(
    prune: &RemotePrune,
    id: StepId,
    parts: &[(String, Option<PartManifest>)],
) -> Result<Vec<String>> {
    let remote = &prune.remote;
    let mut keys = BTreeSet::new();
    for (key, manifest) in parts {
        let Some(manifest) = manifest else {
            prune.observer.on_event(&Event::Warning {
                message: &format!(
                    "{}: the record is unreadable; its files stay until gc deletes them",
                    remote.describe(key)
                ),
            });
            continue;
        };
        for file in &manifest.files {
            keys.insert(remote.keys.data(&manifest.name, id, &file.path)?);
        }
    }
    Ok(keys.into_iter().collect())
}

/// Resumes interrupted removals: the step is tombstoned or retired, but its commit still exists.
async fn finish_tombstoned(prune: &RemotePrune, report: &mut PruneReport) -> Result<()> {
    let remote = &prune.remote;
    let mut listed = committed_ids(remote).await?;
    let removed = removed_steps(remote).await?;
    listed.retain(|id, _| removed.contains(*id));
    // The process that wrote them may have been killed before they were durable, and the identities must stay used
    // (S9).
    let tombstones = listed.keys().filter(|id| removed.tombstoned.contains(id));
    let keys = tombstones.map(|id| remote.keys.tombstone(*id));
    remote.store.sync(&keys.collect::<Vec<_>>()).await?;
    for id in listed.into_keys() {
        let name = match read_tombstone(remote, id).await? {
            Some(tombstone) => tombstone.name,
            // The tombstone was deleted meanwhile, to keep the step.
            None if !removed.retired.contains(id) => continue,
            None => id.label(),
        };
        let removal = removal(prune, id, &name, None);
        match removal.by(erase(prune, id)).await? {
            None => report.removed.push(id),
            Some(reason) => report.spared.push((id, reason)),
        }
    }
    Ok(())
}

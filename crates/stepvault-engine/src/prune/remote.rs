//! Retention on a remote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use stepvault_core::codec::FORMAT;
use stepvault_core::commit::Commit;
use stepvault_core::ids::StepId;
use stepvault_core::keys::KeyKind;
use stepvault_core::observe::Observer;
use stepvault_core::records::Tombstone;
use stepvault_core::retention::{
    Guards, KeepRules, ListingState, LocalLimits, RetentionPlan, StepFacts, TierView, Verdict, Verified,
    abandoned_steps, plan,
};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};

use super::removal::Removal;
use super::{PruneReport, local_now};
use crate::catalog::{commits, leases, pins, read_tombstone, tombstones};
use crate::gc::pardon_spared;
use crate::leases::HeldLease;
use crate::run_remote::RunRemote;
use crate::verify::{Depth, StepHealth, check_committed, check_remote, prove_committed};

/// What a prune of a remote works with.
#[derive(Debug, Clone)]
pub struct RemotePrune {
    /// The run on the remote.
    pub remote: RunRemote,
    /// The rules for remotes.
    pub rules: KeepRules,
    /// Most steps to delete at once.
    pub maximum_deletions: Option<u32>,
    /// Pins that another tier knows of; they hold here too.
    pub pinned_elsewhere: BTreeSet<StepId>,
    /// Who listens.
    pub observer: Arc<dyn Observer>,
}

/// What stands on the remote, and the commits by which it can be removed.
struct Found {
    view: TierView,
    commits: Vec<Commit>,
}

/// Decides what would go, and writes nothing. Ages are measured by this machine's clock.
pub async fn plan_remote(prune: &RemotePrune) -> Result<RetentionPlan> {
    let found = look(prune, local_now(), None).await?;
    decide(prune, found).await.map(|(plan, _)| plan)
}

/// Decides by the store's clock and removes what the plan drops: tombstone, commit, data, manifests, in this order.
///
/// # Invariants
/// The commit goes before any data (S5); the guards of the plan hold (S4, S8); a step that somebody began to read
/// since it was planned is spared; the name is spent for good (S9).
///
/// # Errors
/// [`ErrorKind::Held`] while another prune is under way; [`ErrorKind::Denied`] without the right to delete, also where
/// nothing had to go.
pub async fn prune_remote(prune: &RemotePrune) -> Result<PruneReport> {
    let lease = HeldLease::on_run(&prune.remote).await?;
    let outcome = prune_leased(prune, &lease).await;
    lease.end(outcome).await
}

async fn prune_leased(prune: &RemotePrune, lease: &HeldLease) -> Result<PruneReport> {
    refuse_a_second_pruner(prune, lease).await?;
    pardon_spared(&prune.remote).await?;
    let found = look(prune, lease.taken(), Some(lease)).await?;
    let (plan, commits) = decide(prune, found).await?;
    let mut report = PruneReport {
        plan,
        removed: Vec::new(),
        spared: Vec::new(),
    };
    if report.plan.refusal.is_none() {
        finish_condemned(prune, &mut report).await?;
        if !report.plan.deletions().is_empty() {
            // What stays is why the others may go.
            let keys = commits.iter().map(|commit| prune.remote.keys.commit(commit.id));
            prune.remote.store.sync(&keys.collect::<Vec<_>>()).await?;
        }
    }
    let commits: BTreeMap<StepId, &Commit> = commits.iter().map(|commit| (commit.id, commit)).collect();
    let doomed: Vec<StepId> = report
        .plan
        .deletions()
        .iter()
        .map(|decision| decision.id)
        .collect();
    for id in doomed {
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
        place: remote.place(name, id),
        bytes,
    }
}

/// Two pruners at once do no harm, but each would plan on what the other is removing.
async fn refuse_a_second_pruner(prune: &RemotePrune, lease: &HeldLease) -> Result<()> {
    let others = leases(&prune.remote).await?;
    let other = others
        .iter()
        .filter(|other| other.id.is_none() && other.is_live(lease.taken()))
        // Of two that see each other, the one with the lower key goes on.
        .find(|other| other.key.as_str() < lease.key());
    match other {
        None => Ok(()),
        Some(other) => Err(Error::new(ErrorKind::Held, "another prune is under way")
            .on(prune.remote.store.url())
            .because(format!("holder {}", other.holder))
            .hint("wait for it; a lease left by a killed prune runs out by itself within two minutes")),
    }
}

async fn look(prune: &RemotePrune, now: SystemTime, lease: Option<&HeldLease>) -> Result<Found> {
    let remote = &prune.remote;
    if remote.marker().await?.is_none() {
        // Nothing of ours stands here, or the marker was removed: not a place to delete in.
        return Ok(Found {
            view: empty_view(remote, now),
            commits: Vec::new(),
        });
    }
    let listed = commits(remote).await?;
    let condemned: BTreeSet<StepId> = tombstones(remote).await?.into_iter().collect();
    let mut pinned: BTreeSet<StepId> = pins(remote).await?.into_iter().collect();
    pinned.extend(&prune.pinned_elsewhere);
    let leased: BTreeSet<StepId> = leases(remote)
        .await?
        .iter()
        .filter(|found| found.is_live(now))
        .filter_map(|found| found.id)
        .collect();
    let abandoned = abandoned_steps(listed.by_step.keys().copied());
    let mut view = empty_view(remote, now);
    let mut readable = Vec::new();
    for (id, found) in listed.by_step {
        if condemned.contains(&id) {
            continue;
        }
        match found.commit {
            Ok(commit) => {
                view.steps.push(StepFacts {
                    id,
                    name: commit.name.clone(),
                    created: Timestamp::from(found.object.modified),
                    written_at: commit.written_at,
                    bytes: commit.data_bytes(),
                    metrics: commit.metrics.clone(),
                    pinned: pinned.contains(&id),
                    leased: leased.contains(&id),
                    verified: Verified::Yes,
                    durable_on: vec![remote.name().clone()],
                    retired_on: Vec::new(),
                    uploading: false,
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
        "looked at a remote"
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
        listing: ListingState::Complete,
        now: Timestamp::from(now),
        free_bytes: None,
    }
}

/// Plans as if every step were sound, verifies those that the plan relies on, and plans again without the ones that
/// are not, until all that are relied on have been verified. Steps that go anyway are not looked at.
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
        // What people restore when all the others are gone is held against its bytes; for the rest, names and sizes
        // have to do.
        let newest_valid = newest_valid(&found.view);
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

fn newest_valid(view: &TierView) -> Option<StepId> {
    view.steps
        .iter()
        .filter(|step| step.verified == Verified::Yes)
        .map(|step| step.id)
        .max()
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

/// Removes one step; a reason when it was spared. The tombstone comes first: whoever takes a lease after it sees
/// the step as gone, and whoever took one before is seen here.
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
        by_sweep: false,
    };
    remote
        .create_record(&remote.keys.tombstone(id), &tombstone)
        .await?;
    erase(prune, id, name).await
}

/// Carries a condemned step out, unless somebody who came before the tombstone pinned it or still reads it.
async fn erase(prune: &RemotePrune, id: StepId, name: &str) -> Result<Option<String>> {
    let remote = &prune.remote;
    // Whoever pins asks for the tombstone after his pin is there: this one was first. Nothing goes before the commit,
    // so that the step is whole, unless it was committed over a sweep.
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
        let all = leases(remote).await?;
        let now = all
            .iter()
            .map(|lease| lease.renewed)
            .max()
            .unwrap_or(SystemTime::UNIX_EPOCH);
        if all.iter().any(|lease| lease.id == Some(id) && lease.is_live(now)) {
            return Ok(Some("it is being restored; it goes at the next prune".to_owned()));
        }
    }
    remote.delete(vec![remote.keys.commit(id)]).await?;
    let data = remote.list(&remote.keys.data_prefix(name, id)).await?;
    remote
        .delete(data.into_iter().map(|object| object.key).collect())
        .await?;
    let records = remote.list(&remote.keys.step_parts_prefix(id)).await?;
    let mut keys: Vec<String> = records
        .into_iter()
        .map(|object| object.key)
        .filter(|key| matches!(remote.keys.classify(key), Some(KeyKind::Part(found, _)) if found == id))
        .collect();
    keys.push(remote.keys.claim(id));
    // Of somebody who was too late, and was told so.
    keys.push(remote.keys.pin(id));
    remote.delete(keys).await?;
    Ok(None)
}

/// Goes on with removals that were cut off: their tombstone stands and their commit or data are still there.
async fn finish_condemned(prune: &RemotePrune, report: &mut PruneReport) -> Result<()> {
    let remote = &prune.remote;
    let listed = crate::catalog::committed_ids(remote).await?;
    let mut condemned = tombstones(remote).await?;
    condemned.retain(|id| listed.contains_key(id));
    // Whoever wrote them may have been killed before they were durable, and the names have to stay spent (S9).
    let keys = condemned.iter().map(|id| remote.keys.tombstone(*id));
    remote.store.sync(&keys.collect::<Vec<_>>()).await?;
    for id in condemned {
        let Some(tombstone) = read_tombstone(&prune.remote, id).await? else {
            continue;
        };
        let removal = removal(prune, id, &tombstone.name, None);
        match removal.by(erase(prune, id, &tombstone.name)).await? {
            None => report.removed.push(id),
            Some(reason) => report.spared.push((id, reason)),
        }
    }
    Ok(())
}

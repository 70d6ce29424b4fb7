//! Retention on a remote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use stepvault_core::commit::Commit;
use stepvault_core::retention::{
    Guards, KeepRules, LocalLimits, Needed, RetentionPlan, StepFacts, TierView, Verdict, Verified,
    abandoned_steps, plan,
};
use stepvault_core::words::count;
use stepvault_core::{Observer, Result, StepId, Timestamp};

use super::PruneReport;
use super::erasure::{Erasure, StepToRemove, Tombstones};
use crate::blocking::in_order;
use crate::gc::remove_tombstones_of_kept;
use crate::outage::is_outage;
use crate::tier::catalog::{PARALLEL_READS, committed_ids, pins, read_commit};
use crate::tier::leases::{HeldLease, leases};
use crate::tier::removed::{local_now, read_tombstone, removed_steps};
use crate::tier::run_remote::RunRemote;
use crate::tier::selective::{AwaitedSteps, awaited_steps};
use crate::tier::step_state::{amends, step_facts, visible_commits};
use crate::verify::{CommittedParts, Depth, StepHealth, steps_at_once};

/// Inputs for pruning a remote.
#[derive(Debug, Clone)]
pub struct RemotePrune {
    /// The run on the remote.
    pub remote: RunRemote,
    /// The rules for remotes.
    pub rules: KeepRules,
    /// Maximum number of steps to delete at once.
    pub maximum_deletions: Option<u32>,
    /// Whether the objects of imported steps are deleted with their records.
    pub manages_imported: bool,
    /// The run's selective remotes that get steps of this one: what they wait for stays.
    pub selective: Vec<RunRemote>,
    /// Pins on other tiers; they also hold here.
    pub pinned_elsewhere: BTreeSet<StepId>,
    /// Receives progress and warnings.
    pub observer: Arc<dyn Observer>,
}

/// The steps on the remote, and the commits needed to remove them, both sorted by step.
struct Found {
    view: TierView,
    commits: Vec<Arc<Commit>>,
    /// Those of the commits that were not read from the remote now.
    cached: BTreeSet<StepId>,
    awaited: AwaitedSteps,
}

impl Found {
    fn commit(&self, id: StepId) -> Option<&Commit> {
        let position = self.commits.binary_search_by_key(&id, |commit| commit.id).ok()?;
        self.commits.get(position).map(AsRef::as_ref)
    }

    fn step_mut(&mut self, id: StepId) -> Option<&mut StepFacts> {
        let position = self.view.steps.binary_search_by_key(&id, |step| step.id).ok()?;
        self.view.steps.get_mut(position)
    }

    /// Records what the check of a step has found.
    fn note_health(&mut self, id: StepId, health: &StepHealth) {
        if let Some(step) = self.step_mut(id)
            && !health.is_sound()
        {
            step.verified = Verified::Damaged(health.faults.join("; "));
        }
    }

    /// Replaces a commit by the one that was read now, and what follows from it.
    fn replace(&mut self, commit: Commit) {
        let id = commit.id;
        let before = self.commits.iter().rfind(|other| other.id < id).map(Arc::clone);
        if let Some(step) = self.step_mut(id) {
            step.amends = amends(&commit, before.as_deref());
            step.name.clone_from(&commit.name);
            step.bytes = commit.data_bytes();
            step.reclaimable_bytes = commit.data_bytes();
            step.best.clone_from(&commit.best);
            step.metrics.clone_from(&commit.metrics);
            step.elsewhere.needs_other_nodes = commit.parts.len() > 1;
        }
        if let Ok(position) = self.commits.binary_search_by_key(&id, |commit| commit.id) {
            self.commits[position] = Arc::new(commit);
        }
    }
}

/// Plans which steps would go, and writes nothing. Ages are measured by this machine's clock. If `verifies` is false, every
/// step counts as sound: no request is sent for a step, and a prune may remove fewer.
pub async fn plan_remote(prune: &RemotePrune, verifies: bool) -> Result<RetentionPlan> {
    let found = remote_view(prune, local_now(), None).await?;
    decide(prune, found, verifies).await.map(|(plan, _)| plan)
}

/// Plans by the store's clock and removes the steps that the plan drops: tombstone, commit, data, manifests, in this
/// order.
///
/// # Invariants
/// The commit is deleted before any data (S5); the plan's guards hold (S4, S8), also of
/// steps that a selective remote waits for; a step that someone began to read after
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
    remove_tombstones_of_kept(&prune.remote).await?;
    let found = remote_view(prune, lease.taken, Some(lease)).await?;
    let (plan, commits) = decide(prune, found, true).await?;
    let mut report = PruneReport { plan, removed: Vec::new(), given_up: Vec::new(), spared: Vec::new() };
    let mut erasure = Erasure {
        remote: &prune.remote,
        observer: &prune.observer,
        known_parts: commits.iter().map(|commit| commit.parts.len()).sum(),
        known_tombstones: 0,
        tombstones: Tombstones::Written,
        manages_imported: prune.manages_imported,
    };
    if report.plan.refusal.is_none() {
        erasure.known_tombstones = finish_tombstoned(prune, &erasure, &mut report).await?;
        if !report.plan.deletions().is_empty() {
            // The steps that stay justify removing the others.
            let keys = commits.iter().map(|commit| prune.remote.keys.commit(commit.id));
            prune.remote.store.sync(&keys.collect::<Vec<_>>()).await?;
        }
    }
    let commits: BTreeMap<StepId, &Arc<Commit>> = commits.iter().map(|commit| (commit.id, commit)).collect();
    let dropped = report.plan.deletions();
    let dropped = dropped.iter().filter_map(|decision| commits.get(&decision.id));
    let to_remove: Vec<StepToRemove> = dropped
        .map(|commit| {
            let location = prune.remote.location_of(commit);
            StepToRemove {
                id: commit.id,
                name: commit.name.clone(),
                location,
                bytes: Some(commit.data_bytes()),
            }
        })
        .collect();
    erasure.known_tombstones += to_remove.len();
    erasure.tombstones = Tombstones::ToWrite;
    erasure.remove(&to_remove, &mut report).await?;
    Ok(report)
}

/// Lists the visible steps with all facts on which retention depends, and their commits.
async fn remote_view(prune: &RemotePrune, now: SystemTime, lease: Option<&HeldLease>) -> Result<Found> {
    let remote = &prune.remote;
    if remote.marker().await?.is_none() {
        // The marker is missing: never delete from an unknown place.
        return Ok(Found {
            view: empty_view(remote, now),
            commits: Vec::new(),
            cached: BTreeSet::new(),
            awaited: AwaitedSteps::default(),
        });
    }
    // Pins and leases are listed again after the tombstones.
    let (visible, mut pinned, found_leases) =
        tokio::try_join!(visible_commits(remote), pins(remote), leases(remote))?;
    pinned.extend(&prune.pinned_elsewhere);
    let leased: BTreeSet<StepId> =
        found_leases.iter().filter(|found| found.is_live(now)).filter_map(|found| found.id).collect();
    let awaited = awaited_steps(remote, &visible, &prune.selective, Timestamp::from(now)).await;
    let abandoned = abandoned_steps(visible.keys().copied());
    let mut view = empty_view(remote, now);
    let mut readable = Vec::new();
    let mut cached = BTreeSet::new();
    for (id, found) in &visible {
        if found.is_cached {
            cached.insert(*id);
        }
        match &found.commit {
            Ok(commit) => {
                let mut facts = step_facts(remote.name(), &visible, found, commit, abandoned.contains(id));
                facts.needed =
                    Needed { pinned: pinned.contains(id), leased: leased.contains(id), uploading: false };
                view.steps.push(facts);
                readable.push(Arc::clone(commit));
            }
            Err(error) => view.unreadable.push((found.object.key.clone(), error.to_string())),
        }
    }
    tracing::debug!(steps = view.steps.len(), leased = lease.is_some(), "examined a remote");
    Ok(Found { view, commits: readable, cached, awaited })
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

/// Plans, if `verifies` by verified steps, and says of imported ones that their objects stay.
async fn decide(
    prune: &RemotePrune,
    mut found: Found,
    verifies: bool,
) -> Result<(RetentionPlan, Vec<Arc<Commit>>)> {
    let warnings = std::mem::take(&mut found.awaited.warnings);
    let (mut plan, commits) = decide_verified(prune, found, verifies).await?;
    plan.warnings.extend(warnings);
    let imported: BTreeSet<StepId> =
        commits.iter().filter(|commit| commit.is_imported()).map(|commit| commit.id).collect();
    let left = plan.deletions().into_iter().filter(|decision| imported.contains(&decision.id));
    let (steps, bytes) =
        left.fold((0, 0_u64), |(steps, bytes), step| (steps + 1, bytes.saturating_add(step.bytes)));
    if steps > 0 && !prune.manages_imported {
        plan.freed_bytes = plan.freed_bytes.saturating_sub(bytes);
        plan.warnings.push(format!(
            "{} of another program: only the records are removed, and the objects stay (manage-imported = true in the \
             run's configuration removes them too)",
            count(steps, "imported step")
        ));
    }
    Ok((plan, commits))
}

/// Plans as if every step were sound, verifies those that the plan relies on, and plans again without the unsound ones,
/// until all that are relied on have been verified; unless it `verifies`, the first plan counts. Steps that are removed
/// anyway are not checked.
async fn decide_verified(
    prune: &RemotePrune,
    mut found: Found,
    verifies: bool,
) -> Result<(RetentionPlan, Vec<Arc<Commit>>)> {
    let guards = Guards {
        required_remotes: Vec::new(),
        maximum_deletions: prune.maximum_deletions,
        awaited: std::mem::take(&mut found.awaited.by_step),
    };
    let limits = LocalLimits::default();
    let mut listed: BTreeSet<StepId> = BTreeSet::new();
    let mut proved: Option<StepId> = None;
    loop {
        let plan = plan(&found.view, &prune.rules, &limits, &guards)?;
        if !verifies || plan.refusal.is_some() || plan.deletions().is_empty() {
            return Ok((plan, found.commits));
        }
        // The step that is restored when all others are gone is verified by its bytes; for the rest, names and sizes
        // suffice.
        let newest_valid = found.view.newest_valid();
        if newest_valid != proved {
            proved = newest_valid;
            if let Some(id) = newest_valid {
                if read_again(prune, &mut found, &BTreeSet::from([id])).await? {
                    proved = None;
                    continue;
                }
                let health = match found.commit(id) {
                    Some(commit) => {
                        CommittedParts::all(&prune.remote, commit, &prune.observer).prove().await?
                    }
                    None => StepHealth::default(),
                };
                found.note_health(id, &health);
            }
            continue;
        }
        let relied_on: BTreeSet<StepId> = plan
            .decisions
            .iter()
            .filter(|decision| decision.verdict == Verdict::Keep && Some(decision.id) != proved)
            .map(|decision| decision.id)
            .filter(|id| listed.insert(*id))
            .collect();
        if relied_on.is_empty() {
            return Ok((plan, found.commits));
        }
        if read_again(prune, &mut found, &relied_on).await? {
            listed.clear();
            continue;
        }
        for (id, health) in check_listed(prune, &found.commits, &relied_on).await? {
            found.note_health(id, &health);
        }
    }
}

/// Reads those commits from the remote that the vault's cache supplied: a removal relies on what the remote holds now
/// (S4). Returns whether one differs or cannot be read, so that everything is planned again.
async fn read_again(prune: &RemotePrune, found: &mut Found, ids: &BTreeSet<StepId>) -> Result<bool> {
    let remote = &prune.remote;
    let cached: Vec<StepId> = found.cached.intersection(ids).copied().collect();
    let read = in_order(PARALLEL_READS, cached, |id| async move {
        match read_commit(remote, id).await {
            Err(error) if is_outage(&error) => Err(error),
            commit => Ok((id, commit)),
        }
    });
    let mut is_changed = false;
    let mut unreadable = BTreeSet::new();
    for (id, commit) in read.await? {
        found.cached.remove(&id);
        match commit {
            Ok(commit) if found.commit(id) == Some(&commit) => {}
            Ok(commit) => {
                found.replace(commit);
                is_changed = true;
            }
            Err(error) => {
                unreadable.insert(id);
                found.view.unreadable.push((remote.keys.commit(id), error.to_string()));
                is_changed = true;
            }
        }
    }
    found.view.steps.retain(|step| !unreadable.contains(&step.id));
    found.commits.retain(|commit| !unreadable.contains(&commit.id));
    Ok(is_changed)
}

/// Checks that the files of these steps are listed with their sizes, a few steps at once.
async fn check_listed(
    prune: &RemotePrune,
    commits: &[Arc<Commit>],
    ids: &BTreeSet<StepId>,
) -> Result<Vec<(StepId, StepHealth)>> {
    let relied_on: Vec<&Commit> =
        commits.iter().map(AsRef::as_ref).filter(|commit| ids.contains(&commit.id)).collect();
    let at_once = steps_at_once(relied_on.iter().copied());
    in_order(at_once, relied_on, |commit| async move {
        let parts = CommittedParts::all(&prune.remote, commit, &prune.observer);
        Ok((commit.id, parts.check(Depth::Listed).await?))
    })
    .await
}

/// Resumes interrupted removals: the step is tombstoned or retired, but its commit still exists. Returns the number of
/// tombstones in the run.
async fn finish_tombstoned(
    prune: &RemotePrune,
    erasure: &Erasure<'_>,
    report: &mut PruneReport,
) -> Result<usize> {
    let remote = &prune.remote;
    let mut listed = committed_ids(remote).await?;
    let removed = removed_steps(remote).await?;
    listed.retain(|id, _| removed.contains(*id));
    // The process that wrote them may have been killed before they were durable, and the identities must stay used
    // (S9).
    let tombstones = listed.keys().filter(|id| removed.tombstoned.contains(id));
    let keys = tombstones.map(|id| remote.keys.tombstone(*id));
    remote.store.sync(&keys.collect::<Vec<_>>()).await?;
    let is_retired = |id| removed.retired.contains(id);
    let named = in_order(PARALLEL_READS, listed.into_keys(), |id| async move {
        let name = match read_tombstone(remote, id).await? {
            Some(tombstone) => tombstone.name,
            // The tombstone was deleted meanwhile, to keep the step.
            None if !is_retired(id) => return Ok(None),
            None => id.label(),
        };
        let location = remote.step_location(&name, id);
        Ok(Some(StepToRemove { id, name, location, bytes: None }))
    });
    let to_remove: Vec<StepToRemove> = named.await?.into_iter().flatten().collect();
    erasure.remove(&to_remove, report).await?;
    Ok(removed.tombstoned.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use stepvault_core::RemoteName;
    use stepvault_core::codec::FORMAT;
    use stepvault_core::commit::CommittedPart;
    use stepvault_core::digest::{DigestAlgorithm, Sha256Digest};
    use stepvault_core::ids::{Attempt, NodeName, RunName, Step};
    use stepvault_core::manifest::Shape;
    use stepvault_core::observe::Tier;
    use stepvault_core::retention::Elsewhere;
    use stepvault_remote::store::ObjectInfo;

    use crate::tier::catalog::FoundCommit;

    use super::*;

    fn commit(name: &str, nodes: usize) -> Commit {
        let part = |rank: usize| CommittedPart {
            node: NodeName::new(format!("node-{rank}")).unwrap(),
            manifest_sha256: Sha256Digest::of(b""),
            manifest_bytes: 1,
            data_bytes: 10,
            digest: DigestAlgorithm::Sha256,
            file_count: 1,
            imported: None,
            trusted_files: 0,
        };
        Commit {
            format: FORMAT,
            run: RunName::new("run").unwrap(),
            id: StepId::new(Attempt::FIRST, Step::new(1).unwrap()),
            amends: nodes > 1,
            began: None,
            best: Vec::new(),
            name: name.to_owned(),
            shape: Shape::Directory,
            parts: (0..nodes).map(part).collect(),
            written_at: Timestamp::default(),
            metrics: BTreeMap::new(),
            unnumbered: false,
        }
    }

    /// S4: two jobs write one run, and the second has made its revision from a step of its own.
    #[test]
    fn a_revision_of_another_job_supersedes_nothing() {
        let first = commit("step", 1);
        for (node, supersedes) in [("node-0", true), ("foreign-3", false)] {
            let mut second = Commit { id: first.id.next_revision().unwrap(), amends: true, ..first.clone() };
            second.parts[0].node = NodeName::new(node).unwrap();
            let found = |commit: &Commit| FoundCommit {
                object: ObjectInfo {
                    key: String::new(),
                    size_bytes: 1,
                    modified: SystemTime::UNIX_EPOCH,
                    version: None,
                },
                commit: Ok(Arc::new(commit.clone())),
                is_cached: false,
            };
            let visible = [&first, &second].map(|commit| (commit.id, found(commit))).into();
            let remote = RemoteName::new("aws").unwrap();
            let facts = step_facts(&remote, &visible, &visible[&second.id], &second, false);
            assert_eq!(facts.amends, supersedes, "{node}");
        }
    }

    #[test]
    fn a_commit_that_was_read_again_replaces_all_that_follows_from_the_cached_one() {
        let cached = commit("before", 1);
        let facts = StepFacts {
            id: cached.id,
            amends: false,
            name: "before".to_owned(),
            created: Timestamp::default(),
            bytes: 10,
            reclaimable_bytes: 10,
            best: Vec::new(),
            metrics: BTreeMap::new(),
            verified: Verified::Yes,
            needed: Needed::default(),
            elsewhere: Elsewhere::default(),
            abandoned: false,
        };
        let view = TierView {
            tier: Tier::Local,
            steps: vec![facts],
            unreadable: Vec::new(),
            now: Timestamp::default(),
            free_bytes: None,
        };
        let mut found = Found {
            view,
            commits: vec![Arc::new(cached)],
            cached: BTreeSet::new(),
            awaited: AwaitedSteps::default(),
        };
        for nodes in [2, 1] {
            let now = commit("now", nodes);
            found.replace(now.clone());
            assert_eq!(found.commits, [Arc::new(now)]);
            let step = &found.view.steps[0];
            assert_eq!((step.name.as_str(), step.bytes), ("now", 10 * nodes as u64));
            let is_several = nodes > 1;
            assert_eq!((step.amends, step.elsewhere.needs_other_nodes), (is_several, is_several));
        }
    }
}

//! Retention on the local tier: lists the steps, decides which would go, and evicts them, each only after a proof that the
//! remotes hold it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use stepvault_core::codec::decode;
use stepvault_core::commit::Commit;
use stepvault_core::retention::{
    Decision, Elsewhere, Guards, KeepRules, LocalLimits, Needed, RetentionPlan, StepFacts, TierView,
    Unproven, Verdict, Verified, abandoned_steps, make_room, plan,
};
use stepvault_core::{
    Error, ErrorKind, Observer, Operation, OperationKind, RemoteName, Result, RunName, Sha256Digest, StepId,
    Tier, Timestamp, words,
};
use stepvault_local::sealed::SealedStep;
use stepvault_local::space;
use stepvault_local::vault::Vault;

use super::PruneReport;
use crate::blocking::{blocking, sealed_steps};
use crate::node_records::record_given_up;
use crate::observed::ObservedOperation;
use crate::outage::is_outage;
use crate::tier::catalog::pins;
use crate::tier::removed::{RemovedSteps, local_now, removal_record, removed_steps};
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::{durable_commit, is_durable_on};
use crate::verify::{CommittedParts, Depth, StepHealth, check_sealed};

/// Inputs for evicting steps of one run.
#[derive(Debug, Clone)]
pub struct LocalPrune {
    /// The local tier.
    pub vault: Vault,
    /// The run.
    pub run: RunName,
    /// The run on its remotes.
    pub remotes: Vec<RunRemote>,
    /// The rules for the local tier.
    pub rules: KeepRules,
    /// Its limits.
    pub limits: LocalLimits,
    /// Maximum number of steps to evict at once.
    pub maximum_deletions: Option<u32>,
    /// Steps that are being uploaded.
    pub uploading: BTreeSet<StepId>,
    /// Receives progress and warnings.
    pub observer: Arc<dyn Observer>,
}

impl LocalPrune {
    /// Returns the guards that apply when `removed` steps are already gone.
    fn guards(&self, removed: usize) -> Guards {
        let required = self.remotes.iter().filter(|remote| remote.settings.required);
        let removed = u32::try_from(removed).unwrap_or(u32::MAX);
        Guards {
            required_remotes: required.map(|remote| remote.name().clone()).collect(),
            maximum_deletions: self.maximum_deletions.map(|most| most.saturating_sub(removed)),
            ..Guards::default()
        }
    }
}

/// Plans which sealed steps would go, before any remote is asked whether it still has them. Gives no step up.
pub async fn plan_local(prune: &LocalPrune) -> Result<RetentionPlan> {
    let view = local_view(prune).await?;
    plan(&view, &prune.rules, &prune.limits, &prune.guards(0))
}

/// Lists the sealed steps with all facts on which retention depends.
async fn local_view(prune: &LocalPrune) -> Result<TierView> {
    let scan = sealed_steps(&prune.vault, &prune.run).await?;
    let (vault, run) = (prune.vault.clone(), prune.run.clone());
    let mut pinned: BTreeSet<StepId> =
        blocking(move || vault.pins(&run)).await?.into_iter().map(|pin| pin.id).collect();
    let mut retired: Vec<(RemoteName, RemovedSteps)> = Vec::new();
    for remote in &prune.remotes {
        // An unreachable remote adds nothing: fewer steps are then known to be durable, and more are kept.
        if let Ok(ids) = pins(remote).await {
            pinned.extend(ids);
        }
        if let Ok(removed) = removed_steps(remote).await {
            retired.push((remote.name().clone(), removed));
        }
    }
    let abandoned = abandoned_steps(scan.steps.iter().map(SealedStep::id));
    let mut steps = Vec::new();
    for step in &scan.steps {
        steps.push(facts(prune, step, &pinned, &retired, abandoned.contains(&step.id())).await?);
    }
    let free_bytes = free(prune.vault.root()).await?;
    Ok(TierView {
        tier: Tier::Local,
        steps,
        unreadable: scan
            .faults
            .iter()
            .map(|(path, error)| (path.display().to_string(), error.to_string()))
            .collect(),
        now: Timestamp::from(local_now()),
        free_bytes: Some(free_bytes),
    })
}

async fn facts(
    prune: &LocalPrune,
    step: &SealedStep,
    pinned: &BTreeSet<StepId>,
    retired: &[(RemoteName, RemovedSteps)],
    abandoned: bool,
) -> Result<StepFacts> {
    let record = step.record();
    let health = check_sealed(step, Depth::Listed, &prune.observer).await?;
    let (copy, remotes) = (step.clone(), prune.remotes.clone());
    let (created, durable_on, reclaimable_bytes) = blocking(move || {
        let mut durable_on = Vec::new();
        for remote in &remotes {
            if is_durable_on(&copy, remote)? {
                durable_on.push(remote.name().clone());
            }
        }
        // The seal is written once; the directory's own time changes with every record of an upload.
        let seal = copy.directory().join("seal.json");
        let sealed_at = std::fs::symlink_metadata(seal).and_then(|metadata| metadata.modified());
        let created = sealed_at.map_or(copy.record().written_at, Timestamp::from);
        Ok((created, durable_on, copy.reclaimable_bytes()))
    })
    .await?;
    Ok(StepFacts {
        id: record.id,
        amends: record.origin.amends,
        name: record.name.clone(),
        created,
        bytes: record.data_bytes(),
        reclaimable_bytes,
        best: record.origin.best.clone(),
        metrics: record.metrics.clone(),
        verified: if health.is_sound() { Verified::Yes } else { Verified::Damaged(health.faults.join("; ")) },
        needed: Needed {
            pinned: pinned.contains(&record.id),
            leased: false,
            uploading: prune.uploading.contains(&record.id),
        },
        elsewhere: Elsewhere {
            durable_on,
            retired_on: retired
                .iter()
                .filter(|(_, removed)| removed.contains(record.id))
                .map(|(name, _)| name.clone())
                .collect(),
            unproven: None,
            needs_other_nodes: record.is_one_of_several(),
        },
        abandoned,
    })
}

// Applies local retention to all runs that share a vault: plans, proves, removes, and plans again without the steps
// that were kept.

/// Applies retention to one run's local tier. The caller holds the vault's lock. Gives no step up.
///
/// # Errors
/// When the vault cannot be read, or a copy cannot be removed.
///
/// # Invariants
/// See [`prune_local_runs`].
pub async fn prune_local(prune: &LocalPrune) -> Result<PruneReport> {
    let limits = LocalLimits { give_up_undurable: false, ..prune.limits };
    let claim_everything = async |_: &RunName, _: StepId, _: Verdict| Some(());
    let mut reports = prune_local_runs(std::slice::from_ref(prune), &limits, 0, claim_everything).await?;
    reports.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Failed, "cannot prune the local tier")))
}

/// Applies retention to the local tiers of several runs in one vault, whose lock the caller holds; returns one result
/// for each, in order. `limits` apply to all of them together, `uploads_below_bytes` as in [`make_room`]. `claim`
/// reserves a step for as long as its return value lives, or refuses.
///
/// A planned removal that is not carried out frees no space: everything is planned again without it, until the plan is
/// carried out. Each round keeps at least one more step, so there are at most as many rounds as steps.
///
/// # Errors
/// When the free space of the vault's disk cannot be determined.
///
/// # Invariants
/// A copy is evicted only after its data, on the remotes that the plan relied on, was proved to exist now (S6). Steps
/// are given up only when all durable ones are gone, and each is recorded in the vault first.
pub async fn prune_local_runs<P>(
    prunes: &[LocalPrune],
    limits: &LocalLimits,
    uploads_below_bytes: u64,
    claim: impl AsyncFn(&RunName, StepId, Verdict) -> Option<P>,
) -> Result<Vec<Result<PruneReport>>> {
    let Some(first) = prunes.first() else {
        return Ok(Vec::new());
    };
    let root = first.vault.root().to_owned();
    let mut tiers = Vec::with_capacity(prunes.len());
    for prune in prunes {
        tiers.push(local_view(prune).await.map(|view| LocalTier::new(prune, view)));
    }
    let mut free_bytes = free(&root).await?;
    let mut may_give_up = true;
    loop {
        let limits = LocalLimits { give_up_undurable: limits.give_up_undurable && may_give_up, ..*limits };
        let mut plans = plan_all(&mut tiers);
        make_room(&mut plans, &limits, Some(free_bytes), uploads_below_bytes);
        let mut is_changed = false;
        let kinds: [fn(&RetentionPlan) -> Vec<&Decision>; 2] =
            [RetentionPlan::deletions, RetentionPlan::given_up];
        'planned: for decisions in kinds {
            if is_changed {
                break;
            }
            for (tier, plan) in tiers.iter_mut().filter(|tier| tier.is_ok()).zip(&plans) {
                for decision in decisions(plan) {
                    match with(tier, async |tier| tier.carry_out(decision, &claim).await).await {
                        Some(Removal::Done { frees_nothing }) => {
                            free_bytes = free_bytes.saturating_add(decision.reclaimable_bytes);
                            if frees_nothing {
                                (may_give_up, is_changed) = (false, true);
                                break 'planned;
                            }
                        }
                        Some(Removal::Spared) => is_changed = true,
                        None => {
                            is_changed = true;
                            break;
                        }
                    }
                }
            }
        }
        if !is_changed {
            let mut plans = plans.into_iter();
            let report = |tier: Result<LocalTier<'_>>| {
                let tier = tier?;
                let missing = || Error::new(ErrorKind::Failed, "cannot plan local retention");
                Ok(tier.report(plans.next().ok_or_else(missing)?))
            };
            return Ok(tiers.into_iter().map(report).collect());
        }
    }
}

/// Plans each run; a run that cannot be planned is excluded from here on.
fn plan_all(tiers: &mut [Result<LocalTier<'_>>]) -> Vec<RetentionPlan> {
    let mut plans = Vec::new();
    for tier in tiers {
        let Ok(there) = &*tier else { continue };
        match there.plan() {
            Ok(plan) => plans.push(plan),
            Err(error) => *tier = Err(error),
        }
    }
    plans
}

/// Runs `work` on a run; returns `None` if it failed, and excludes the run.
async fn with<'a, T>(
    tier: &mut Result<LocalTier<'a>>,
    work: impl AsyncFnOnce(&mut LocalTier<'a>) -> Result<T>,
) -> Option<T> {
    let Ok(there) = tier else { return None };
    match work(there).await {
        Ok(done) => Some(done),
        Err(error) => {
            *tier = Err(error);
            None
        }
    }
}

async fn free(root: &Path) -> Result<u64> {
    let root = root.to_owned();
    blocking(move || Ok(space::free(&root)?.free_bytes)).await
}

/// The outcome of a planned removal.
enum Removal {
    /// The step is gone.
    Done {
        /// Whether it was given up and the disk gained hardly any space, because the trainer's files share its blocks.
        frees_nothing: bool,
    },
    /// It is kept.
    Spared,
}

/// One run on the local tier, and its outcome so far.
struct LocalTier<'a> {
    prune: &'a LocalPrune,
    /// The steps that are still in it.
    view: TierView,
    unanswered: Unanswered,
    removed: Vec<StepId>,
    given_up: Vec<StepId>,
    spared: Vec<(StepId, String)>,
    carried_out: Vec<Decision>,
}

impl<'a> LocalTier<'a> {
    fn new(prune: &'a LocalPrune, view: TierView) -> Self {
        Self {
            prune,
            view,
            unanswered: Unanswered::new(),
            removed: Vec::new(),
            given_up: Vec::new(),
            spared: Vec::new(),
            carried_out: Vec::new(),
        }
    }

    fn plan(&self) -> Result<RetentionPlan> {
        let gone = self.removed.len() + self.given_up.len();
        // The limits apply to all runs together.
        let no_limits = LocalLimits::default();
        plan(&self.view, &self.prune.rules, &no_limits, &self.prune.guards(gone))
    }

    fn report(self, mut plan: RetentionPlan) -> PruneReport {
        plan.add_carried_out(self.carried_out);
        PruneReport { plan, removed: self.removed, given_up: self.given_up, spared: self.spared }
    }

    /// Removes a step as planned: evicts it if the remotes are proved to hold it, or gives it up.
    async fn carry_out<P>(
        &mut self,
        decision: &Decision,
        claim: &impl AsyncFn(&RunName, StepId, Verdict) -> Option<P>,
    ) -> Result<Removal> {
        let (id, gives_up) = (decision.id, decision.verdict == Verdict::GiveUp);
        let (vault, run) = (self.prune.vault.clone(), self.prune.run.clone());
        let Some(step) = blocking(move || vault.step(&run, id)).await? else {
            self.is_gone(decision);
            return Ok(Removal::Done { frees_nothing: false });
        };
        let Some(_claim) = claim(&self.prune.run, id, decision.verdict).await else {
            if gives_up {
                self.spare(id, "its upload could not be interrupted", |facts| facts.reclaimable_bytes = 0);
            } else {
                self.spare(id, "it is being uploaded", |facts| facts.needed.uploading = true);
            }
            return Ok(Removal::Spared);
        };
        if gives_up {
            return self.give_up(decision, &step).await;
        }
        if let Err(unproven) = prove_elsewhere(self.prune, &step, &mut self.unanswered).await {
            let reason = unproven.reason().to_owned();
            self.spare(id, &reason, |facts| facts.elsewhere.unproven = Some(unproven));
            return Ok(Removal::Spared);
        }
        if self.remove(&step).await? {
            self.removed.push(id);
        }
        self.is_gone(decision);
        Ok(Removal::Done { frees_nothing: false })
    }

    /// Gives a step up: records it, removes it and warns.
    async fn give_up(&mut self, decision: &Decision, step: &SealedStep) -> Result<Removal> {
        let id = decision.id;
        let before = free(self.prune.vault.root()).await?;
        // Record it before the removal, as a kill in between would leave no record; afterwards only if the removal
        // frees the space for the record.
        let recorded = self.record_given_up(step).await;
        let removed = self.remove(step).await?;
        if recorded.is_err()
            && let Err(error) = self.record_given_up(step).await
        {
            tracing::warn!(%error, %id, "cannot record in the vault that a step was given up");
        }
        let reasons = decision.reasons.get(1..).unwrap_or_default().join(", ");
        let message = format!(
            "{}: gave up {id}, {}: the disk has no room for the trainer's next checkpoint, and no durable step is \
             left to evict \
             ({reasons}; local.give-up-undurable = false keeps such steps)",
            self.prune.run,
            words::bytes(step.record().data_bytes())
        );
        self.prune.observer.warn(&message);
        if removed {
            self.given_up.push(id);
        }
        self.spared.retain(|(spared, _)| *spared != id);
        self.is_gone(decision);
        let mut frees_nothing = false;
        if step.has_reflinks() {
            let root = self.prune.vault.root().to_owned();
            let after = blocking(move || space::free_after_sync(&root)).await?.free_bytes;
            frees_nothing = after.saturating_sub(before) < decision.reclaimable_bytes / 2;
        }
        if frees_nothing {
            let message = format!(
                "{}: giving up {id} freed hardly any space, because the trainer still has files that share its \
                 blocks; no further step is given up for now",
                self.prune.run
            );
            self.prune.observer.warn(&message);
        }
        Ok(Removal::Done { frees_nothing })
    }

    async fn record_given_up(&self, step: &SealedStep) -> Result<()> {
        let facts = self.view.steps.iter().find(|facts| facts.id == step.id());
        let is_lost = |facts: &&StepFacts| matches!(facts.elsewhere.unproven, Some(Unproven::Lost(_)));
        let durable_on: Vec<RemoteName> = facts
            .filter(|facts| !is_lost(facts))
            .map(|facts| facts.elsewhere.durable_on.clone())
            .unwrap_or_default();
        let (vault, step, now) = (self.prune.vault.clone(), step.clone(), self.view.now);
        blocking(move || record_given_up(&vault, &step, durable_on, now)).await
    }

    /// Removes the copy; returns false when it no longer existed.
    async fn remove(&self, step: &SealedStep) -> Result<bool> {
        let (vault, run, id) = (self.prune.vault.clone(), self.prune.run.clone(), step.id());
        let location = step.directory().display().to_string();
        let removal = ObservedOperation::start(
            self.prune.observer.as_ref(),
            Operation {
                kind: OperationKind::Removal,
                run: &self.prune.run,
                tier: &Tier::Local,
                id,
                location: &location,
                files: 0,
                bytes: Some(step.record().data_bytes()),
            },
        );
        let evicted = blocking(move || vault.evict(&run, id)).await;
        match &evicted {
            Ok(true) => removal.finished(0),
            Ok(false) => removal.skipped("it no longer exists"),
            Err(error) => removal.failed(error),
        }
        evicted
    }

    fn is_gone(&mut self, decision: &Decision) {
        self.view.steps.retain(|facts| facts.id != decision.id);
        self.carried_out.push(decision.clone());
    }

    fn spare(&mut self, id: StepId, reason: &str, note: impl FnOnce(&mut StepFacts)) {
        tracing::info!(run = %self.prune.run, %id, reason, "keeping the local copy");
        self.spared.push((id, reason.to_owned()));
        if let Some(facts) = self.view.steps.iter_mut().find(|facts| facts.id == id) {
            note(facts);
        }
    }
}

// Checks that the remotes hold a step, right before its local copy is removed.

/// Maximum number of a step's faults that are reported.
const MAX_FAULTS: usize = 3;

/// What one remote holds of a step.
enum Held {
    /// The commit and all that this node sealed of the step.
    Yes,
    /// Nothing: retention removed the step from it, on purpose.
    Retired,
    /// The step was never durable on it.
    Never,
    /// Less than it acknowledged: this is missing or damaged.
    Lost(String),
}

/// Remotes that did not answer: they are not queried again for other steps of the same round.
type Unanswered = BTreeMap<RemoteName, String>;

/// Proves that the copies on which the step's eviction relies exist: on every remote that has acknowledged the step,
/// reads the commit and checks that the files sealed by this node are listed with their sizes and have the store's
/// checksums, if it keeps any. This takes one LIST and a HEAD for each file; no data is read back.
///
/// # Invariants
/// S4 and S6: the last local copy is removed only if its data is on the remotes, not only a commit.
async fn prove_elsewhere(
    prune: &LocalPrune,
    step: &SealedStep,
    unanswered: &mut Unanswered,
) -> std::result::Result<(), Unproven> {
    let mut is_held = false;
    for remote in &prune.remotes {
        let may_be_away = !remote.settings.required;
        let cannot_be_asked = |why: &str| format!("{} is unreachable: {why}", remote.name());
        if let Some(why) = unanswered.get(remote.name()) {
            if may_be_away {
                continue;
            }
            return Err(Unproven::Unanswered(cannot_be_asked(why)));
        }
        match held_on(prune, step, remote).await {
            Ok(Held::Yes | Held::Retired) => is_held = true,
            Ok(Held::Never) => {}
            Ok(Held::Lost(why)) => return Err(Unproven::Lost(why)),
            Err(error) => {
                if error.kind() == ErrorKind::Unreachable {
                    unanswered.insert(remote.name().clone(), error.to_string());
                    if may_be_away {
                        continue;
                    }
                }
                return Err(Unproven::Unanswered(cannot_be_asked(&error.to_string())));
            }
        }
    }
    if is_held {
        return Ok(());
    }
    Err(Unproven::Unanswered("no remote confirms that it holds the step".to_owned()))
}

/// Returns what a remote holds of a step.
///
/// # Errors
/// When the remote is unreachable.
async fn held_on(prune: &LocalPrune, step: &SealedStep, remote: &RunRemote) -> Result<Held> {
    let name = remote.name();
    let known = match durable_commit(step, remote) {
        Ok(Some(known)) => known,
        Ok(None) => return Ok(Held::Never),
        Err(error) => return Ok(Held::Lost(error.to_string())),
    };
    let key = remote.keys.commit(step.id());
    let Some(bytes) = remote.read_small(&key).await? else {
        // Retention removes a step on purpose.
        return Ok(match removal_record(remote, step.id()).await? {
            Some(_) => Held::Retired,
            None => Held::Lost(format!("its commit is missing on {name}")),
        });
    };
    if Sha256Digest::of(&bytes) != known {
        return Ok(Held::Lost(format!("its commit on {name} is not the one that was acknowledged")));
    }
    let health = match part_health(prune, step, remote, &bytes).await {
        Ok(health) => health,
        Err(error) if is_outage(&error) => return Err(error),
        Err(error) => {
            return Ok(Held::Lost(format!("its data on {name} cannot be checked: {error}")));
        }
    };
    if health.is_sound() {
        return Ok(Held::Yes);
    }
    let mut faults = health.faults;
    let more = faults.len().saturating_sub(MAX_FAULTS);
    faults.truncate(MAX_FAULTS);
    let more = match more {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Ok(Held::Lost(format!("its data on {name} is not what was uploaded: {}{more}", faults.join("; "))))
}

async fn part_health(
    prune: &LocalPrune,
    step: &SealedStep,
    remote: &RunRemote,
    commit: &[u8],
) -> Result<StepHealth> {
    let key = remote.keys.commit(step.id());
    let commit: Commit = decode(commit, &remote.describe(&key))?;
    // Each node answers for its own part, and only that part is evicted here.
    let node = &step.record().node;
    let part = commit.parts.iter().find(|part| part.node == *node).ok_or_else(|| {
        Error::new(ErrorKind::Damaged, "the commit lacks this node's part").on(remote.describe(&key))
    })?;
    let part = CommittedParts::all(remote, &commit, &prune.observer).only(part);
    part.check(Depth::Checksums).await
}

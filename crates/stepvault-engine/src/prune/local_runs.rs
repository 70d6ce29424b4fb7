//! Applies local retention to all runs that share a vault: plans, proves, removes, and plans again without the steps
//! that were kept.

use std::path::Path;

use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::observe::{Operation, OperationKind, Tier};
use stepvault_core::retention::{
    Decision, LocalLimits, RetentionPlan, StepFacts, TierView, Unproven, Verdict, make_room, plan,
};
use stepvault_core::{Error, ErrorKind, Result, words};
use stepvault_local::sealed::SealedStep;
use stepvault_local::space;

use super::PruneReport;
use super::local::{LocalPrune, local_view};
use super::proof::{Unanswered, prove_elsewhere};
use crate::blocking::blocking;
use crate::given_up::record_given_up;
use crate::observed::ObservedOperation;

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
        for (tier, plan) in tiers.iter_mut().filter(|tier| tier.is_ok()).zip(&plans) {
            for decision in plan.deletions() {
                match with(tier, async |tier| tier.evict(decision, &claim).await).await {
                    Some(true) => free_bytes = free_bytes.saturating_add(decision.reclaimable_bytes),
                    Some(false) => is_changed = true,
                    None => {
                        is_changed = true;
                        break;
                    }
                }
            }
        }
        if is_changed {
            continue;
        }
        for (tier, plan) in tiers.iter_mut().filter(|tier| tier.is_ok()).zip(&plans) {
            for decision in plan.given_up() {
                match with(tier, async |tier| tier.give_up(decision, &claim).await).await {
                    Some(GivenUp::Gone { frees_nothing }) => {
                        free_bytes = free_bytes.saturating_add(decision.reclaimable_bytes);
                        if frees_nothing {
                            (may_give_up, is_changed) = (false, true);
                            break;
                        }
                    }
                    Some(GivenUp::Spared) => is_changed = true,
                    None => {
                        is_changed = true;
                        break;
                    }
                }
            }
            if !may_give_up {
                break;
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

/// The outcome of giving a step up.
enum GivenUp {
    /// The step was removed.
    Gone {
        /// Whether the disk gained hardly any space, because the trainer's files share the step's blocks.
        frees_nothing: bool,
    },
    /// Another task holds it.
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

    /// Evicts a step that the remotes are proved to hold; returns false when it is kept.
    async fn evict<P>(
        &mut self,
        decision: &Decision,
        claim: &impl AsyncFn(&RunName, StepId, Verdict) -> Option<P>,
    ) -> Result<bool> {
        let id = decision.id;
        let Some(step) = self.sealed(id).await? else {
            self.is_gone(decision);
            return Ok(true);
        };
        let Some(_claim) = claim(&self.prune.run, id, Verdict::Drop).await else {
            self.spare(id, "it is being uploaded", |facts| facts.needed.uploading = true);
            return Ok(false);
        };
        if let Err(unproven) = prove_elsewhere(self.prune, &step, &mut self.unanswered).await {
            let reason = unproven.reason().to_owned();
            self.spare(id, &reason, |facts| facts.elsewhere.unproven = Some(unproven));
            return Ok(false);
        }
        if self.remove(&step).await? {
            self.removed.push(id);
        }
        self.is_gone(decision);
        Ok(true)
    }

    /// Gives a step up: records it, removes it and warns.
    async fn give_up<P>(
        &mut self,
        decision: &Decision,
        claim: &impl AsyncFn(&RunName, StepId, Verdict) -> Option<P>,
    ) -> Result<GivenUp> {
        let id = decision.id;
        let Some(step) = self.sealed(id).await? else {
            self.is_gone(decision);
            return Ok(GivenUp::Gone { frees_nothing: false });
        };
        let Some(_claim) = claim(&self.prune.run, id, Verdict::GiveUp).await else {
            self.spare(id, "its upload could not be interrupted", |facts| {
                facts.reclaimable_bytes = 0;
            });
            return Ok(GivenUp::Spared);
        };
        let before = free(self.prune.vault.root()).await?;
        // Record it before the removal, as a kill in between would leave no record; afterwards only if the removal
        // frees the space for the record.
        let recorded = self.record_given_up(&step).await;
        let removed = self.remove(&step).await?;
        if recorded.is_err()
            && let Err(error) = self.record_given_up(&step).await
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
        let frees_nothing =
            step.has_reflinks() && self.gained(before).await? < decision.reclaimable_bytes / 2;
        if frees_nothing {
            let message = format!(
                "{}: giving up {id} freed hardly any space, because the trainer still has files that share its \
                 blocks; no further step is given up for now",
                self.prune.run
            );
            self.prune.observer.warn(&message);
        }
        Ok(GivenUp::Gone { frees_nothing })
    }

    async fn gained(&self, before: u64) -> Result<u64> {
        let root = self.prune.vault.root().to_owned();
        let after = blocking(move || Ok(space::free_after_sync(&root)?.free_bytes)).await?;
        Ok(after.saturating_sub(before))
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

    async fn sealed(&self, id: StepId) -> Result<Option<SealedStep>> {
        let (vault, run) = (self.prune.vault.clone(), self.prune.run.clone());
        blocking(move || vault.step(&run, id)).await
    }

    /// Removes the copy; returns false when it no longer existed.
    async fn remove(&self, step: &SealedStep) -> Result<bool> {
        let (vault, run, id) = (self.prune.vault.clone(), self.prune.run.clone(), step.id());
        let location = step.directory().display().to_string();
        let removal = ObservedOperation::start(
            self.prune.observer.as_ref(),
            Operation {
                kind: OperationKind::Removal,
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

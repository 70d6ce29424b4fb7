//! Retention on the local tier: lists the steps, and decides which would go.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepvault_core::Result;
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::observe::{Observer, Tier};
use stepvault_core::retention::{
    Elsewhere, Guards, KeepRules, LocalLimits, Needed, RetentionPlan, StepFacts, TierView, Verified,
    abandoned_steps, plan,
};
use stepvault_core::timestamp::Timestamp;
use stepvault_local::sealed::SealedStep;
use stepvault_local::space;
use stepvault_local::vault::Vault;

use crate::blocking::{blocking, sealed_steps};
use crate::tier::catalog::pins;
use crate::tier::removed::{RemovedSteps, removed_steps};
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::is_durable_on;
use crate::tombstones::local_now;
use crate::verify::{Depth, check_sealed};

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
    pub(super) fn guards(&self, removed: usize) -> Guards {
        let required = self.remotes.iter().filter(|remote| remote.settings.required);
        let removed = u32::try_from(removed).unwrap_or(u32::MAX);
        Guards {
            required_remotes: required.map(|remote| remote.name().clone()).collect(),
            maximum_deletions: self.maximum_deletions.map(|most| most.saturating_sub(removed)),
        }
    }
}

/// Plans which sealed steps would go, before any remote is asked whether it still has them. Gives no step up.
pub async fn plan_local(prune: &LocalPrune) -> Result<RetentionPlan> {
    let view = local_view(prune).await?;
    plan(&view, &prune.rules, &prune.limits, &prune.guards(0))
}

/// Lists the sealed steps with all facts on which retention depends.
pub(super) async fn local_view(prune: &LocalPrune) -> Result<TierView> {
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
    let root = prune.vault.root().to_owned();
    let free_bytes = blocking(move || space::free(&root)).await?.free_bytes;
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

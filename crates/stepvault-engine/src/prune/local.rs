//! Retention on the local tier: eviction of what is safe elsewhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::observe::{Observer, Tier};
use stepvault_core::retention::{
    Guards, KeepRules, ListingState, LocalLimits, RetentionPlan, StepFacts, TierView, Verified,
    abandoned_steps, plan,
};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{ErrorKind, Result};
use stepvault_local::sealed::{SealedStep, UploadState};
use stepvault_local::space;
use stepvault_local::vault::Vault;

use super::removal::Removal;
use super::{PruneReport, local_now};
use crate::blocking::blocking;
use crate::catalog::{pins, tombstones};
use crate::run_remote::RunRemote;
use crate::verify::{Depth, check_sealed};

/// What an eviction of one run works with.
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
    /// Most steps to evict at once.
    pub maximum_deletions: Option<u32>,
    /// Who listens.
    pub observer: Arc<dyn Observer>,
}

/// Decides which sealed steps would go.
pub async fn plan_local(prune: &LocalPrune) -> Result<RetentionPlan> {
    let view = look(prune).await?;
    let required = prune.remotes.iter().filter(|remote| remote.settings.required);
    let guards = Guards {
        required_remotes: required.map(|remote| remote.name().clone()).collect(),
        maximum_deletions: prune.maximum_deletions,
    };
    plan(&view, &prune.rules, &prune.limits, &guards)
}

/// Carries a plan out. The caller holds the vault's lock.
///
/// # Invariants
/// A copy goes only after the commit on every required remote that the plan relied on has been read back again, now,
/// and found to be the one that was acknowledged (S6).
pub async fn evict_planned(prune: &LocalPrune, plan: RetentionPlan) -> Result<PruneReport> {
    let mut report = PruneReport {
        plan,
        removed: Vec::new(),
        spared: Vec::new(),
    };
    for id in report
        .plan
        .deletions()
        .iter()
        .map(|decision| decision.id)
        .collect::<Vec<_>>()
    {
        let (vault, run) = (prune.vault.clone(), prune.run.clone());
        let Some(step) = blocking(move || vault.step(&run, id)).await? else {
            continue;
        };
        if let Some(reason) = why_not_safe(prune, &step).await {
            report.spared.push((id, reason));
            continue;
        }
        let (vault, run) = (prune.vault.clone(), prune.run.clone());
        let removal = Removal {
            observer: &prune.observer,
            tier: &Tier::Local,
            id,
            place: step.directory().display().to_string(),
            bytes: Some(step.record().data_bytes()),
        };
        let evicted = removal.by(async {
            let is_gone = blocking(move || vault.evict(&run, id)).await?;
            Ok((!is_gone).then(|| "it is not there any more".to_owned()))
        });
        if evicted.await?.is_none() {
            report.removed.push(id);
        }
    }
    Ok(report)
}

async fn look(prune: &LocalPrune) -> Result<TierView> {
    let (vault, run) = (prune.vault.clone(), prune.run.clone());
    let scan = blocking(move || vault.steps(&run)).await?;
    let (vault, run) = (prune.vault.clone(), prune.run.clone());
    let mut pinned: BTreeSet<StepId> = blocking(move || vault.pins(&run))
        .await?
        .into_iter()
        .map(|pin| pin.id)
        .collect();
    let mut retired: Vec<(RemoteName, BTreeSet<StepId>)> = Vec::new();
    for remote in &prune.remotes {
        // A remote that cannot be asked adds nothing: then fewer steps are known to be safe, and more are kept.
        if let Ok(ids) = pins(remote).await {
            pinned.extend(ids);
        }
        if let Ok(ids) = tombstones(remote).await {
            retired.push((remote.name().clone(), ids.into_iter().collect()));
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
        listing: ListingState::Complete,
        now: Timestamp::from(local_now()),
        free_bytes: Some(free_bytes),
    })
}

async fn facts(
    prune: &LocalPrune,
    step: &SealedStep,
    pinned: &BTreeSet<StepId>,
    retired: &[(RemoteName, BTreeSet<StepId>)],
    abandoned: bool,
) -> Result<StepFacts> {
    let record = step.record();
    let health = check_sealed(step, Depth::Listed, &prune.observer).await?;
    let (copy, remotes) = (step.clone(), prune.remotes.clone());
    let (created, durable_on) = blocking(move || {
        let mut durable_on = Vec::new();
        for remote in &remotes {
            if durable_commit(&copy, remote)?.is_some() {
                durable_on.push(remote.name().clone());
            }
        }
        // The seal is written once; the directory's own time moves with every record of an upload.
        let seal = copy.directory().join("seal.json");
        let sealed_at = std::fs::symlink_metadata(seal).and_then(|metadata| metadata.modified());
        let created = sealed_at.map_or(copy.record().written_at, Timestamp::from);
        Ok((created, durable_on))
    })
    .await?;
    Ok(StepFacts {
        id: record.id,
        name: record.name.clone(),
        created,
        written_at: record.written_at,
        bytes: record.data_bytes(),
        metrics: record.metrics.clone(),
        pinned: pinned.contains(&record.id),
        leased: false,
        verified: if health.is_sound() {
            Verified::Yes
        } else {
            Verified::Damaged(health.faults.join("; "))
        },
        durable_on,
        retired_on: retired
            .iter()
            .filter(|(_, ids)| ids.contains(&record.id))
            .map(|(name, _)| name.clone())
            .collect(),
        uploading: false,
        abandoned,
    })
}

/// The digest of the commit that was read back on a remote; `None` when the step is not durable there, or was so at
/// another URL.
fn durable_commit(step: &SealedStep, remote: &RunRemote) -> Result<Option<Sha256Digest>> {
    let state = step.remote_state(remote.name())?;
    Ok(state
        .filter(|state| state.state == UploadState::Durable && state.url == remote.store.url())
        .and_then(|state| state.commit_sha256))
}

/// Asks the remotes once more, right before the copy goes.
async fn why_not_safe(prune: &LocalPrune, step: &SealedStep) -> Option<String> {
    let mut held_somewhere = false;
    for remote in &prune.remotes {
        let known = match durable_commit(step, remote) {
            Ok(Some(known)) => known,
            Ok(None) => continue,
            Err(error) => return Some(error.to_string()),
        };
        match remote.read_small(&remote.keys.commit(step.id())).await {
            Ok(Some(bytes)) if Sha256Digest::of(&bytes) == known => held_somewhere = true,
            Ok(Some(_)) => {
                return Some(format!(
                    "its commit on {} is not the one that was acknowledged",
                    remote.name()
                ));
            }
            Ok(None) => match remote.store.head(&remote.keys.tombstone(step.id())).await {
                // Retention removed it there, on purpose.
                Ok(Some(_)) => held_somewhere = true,
                Ok(None) => return Some(format!("its commit is missing on {}", remote.name())),
                Err(error) => return Some(error.to_string()),
            },
            Err(error) if error.kind() == ErrorKind::Unreachable && !remote.settings.required => {}
            Err(error) => return Some(format!("{} cannot be asked: {error}", remote.name())),
        }
    }
    (!held_somewhere).then(|| "no remote confirms that it has it".to_owned())
}

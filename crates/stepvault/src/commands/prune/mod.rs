//! `prune`: retention, looked at or carried out.

mod document;

use std::collections::BTreeSet;

use clap::Args;
use stepvault_core::Result;
use stepvault_core::ids::StepId;
use stepvault_core::observe::Tier;
use stepvault_core::retention::{KeepRules, RetentionPlan};
use stepvault_engine::blocking::blocking;
use stepvault_engine::catalog::pins;
use stepvault_engine::prune::{
    LocalPrune, PruneReport, RemotePrune, evict_planned, plan_local, plan_remote, prune_remote,
};
use stepvault_engine::run_remote::RunRemote;
use stepvault_local::vault::Vault;

use super::Session;
use super::keep::KeepArguments;
use crate::arguments::values::TierChoice;
use crate::context::{DefaultVault, Settings, Tiers};
use crate::exit_code::ExitCode;
use document::{PruneDocument, exit_code};

/// Remove the steps that no rule keeps
///
/// The newest valid step, pins, steps that are being read, and local copies that are not durable elsewhere stay
/// whatever the rules say. Without any rule every step stays.
#[derive(Debug, Args)]
pub(crate) struct PruneArguments {
    /// Print each step with keep or drop and the reason, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Which tiers: local, remote, all, or a remote's name
    #[arg(long, value_name = "TIER", default_value_t)]
    tier: TierChoice,
    /// Remove at most so many steps from a tier; the rest waits for the next time
    #[arg(long, value_name = "N")]
    max_delete: Option<u32>,
    #[command(flatten)]
    keep: KeepArguments,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &PruneArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let tiers = Tiers::open(&settings, DefaultVault::None, &session.output).await?;
    tiers.require_any()?;
    let remotes = tiers.all_remotes(&settings).await?;
    let mut results: Vec<(Tier, Result<PruneReport>)> = Vec::new();
    // Remotes first: a local copy may go because its step was retired on purpose everywhere else.
    for remote in tiers
        .remotes
        .iter()
        .filter(|remote| arguments.tier.takes(&remote.tier))
    {
        let rules = arguments.keep.over(&tiers.run.keep_remote);
        let limit = Limit {
            maximum_deletions: arguments.max_delete,
            dry_run: arguments.dry_run,
        };
        let result = prune_remote_tier(&tiers, &remotes, remote, rules, limit, session).await;
        results.push((remote.tier.clone(), result));
    }
    if let Some(vault) = tiers.vault.clone().filter(|_| arguments.tier.takes(&Tier::Local)) {
        let prune = LocalPrune {
            vault,
            run: tiers.run_name().clone(),
            remotes,
            rules: arguments.keep.over(&tiers.run.keep_local),
            limits: tiers.limits,
            maximum_deletions: arguments.max_delete,
            observer: tiers.observer(),
        };
        results.push((Tier::Local, prune_vault(&prune, arguments.dry_run).await));
    }
    tiers.progress.finish();
    let code = exit_code(&results);
    for (_, result) in &results {
        if let Err(error) = result {
            session.output.error_beside_report(error);
        }
    }
    session
        .output
        .result(&PruneDocument::new(tiers.run_name(), arguments.dry_run, results))?;
    Ok(code)
}

/// How far to go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// Most steps to remove.
    pub(super) maximum_deletions: Option<u32>,
    /// Only plan.
    pub(super) dry_run: bool,
}

/// Plans one remote, and carries the plan out unless it is a dry run. A pin on any tier holds here too.
pub(super) async fn prune_remote_tier(
    tiers: &Tiers,
    all_remotes: &[RunRemote],
    remote: &RunRemote,
    rules: KeepRules,
    limit: Limit,
    session: &Session,
) -> Result<PruneReport> {
    let mut pinned_elsewhere: BTreeSet<StepId> = tiers.pinned_locally().await?;
    for other in all_remotes.iter().filter(|other| other.name() != remote.name()) {
        match pins(other).await {
            Ok(ids) => pinned_elsewhere.extend(ids),
            // Pins stand on every tier; one that is down must not keep the others from being pruned.
            Err(error) => session
                .output
                .warn(&format!("pins on {} could not be read: {error}", other.name())),
        }
    }
    let prune = RemotePrune {
        remote: remote.clone(),
        rules,
        maximum_deletions: limit.maximum_deletions,
        pinned_elsewhere,
        observer: tiers.observer(),
    };
    if limit.dry_run {
        return Ok(planned(plan_remote(&prune).await?));
    }
    prune_remote(&prune).await
}

async fn prune_vault(prune: &LocalPrune, dry_run: bool) -> Result<PruneReport> {
    if dry_run {
        return Ok(planned(plan_local(prune).await?));
    }
    let vault: Vault = prune.vault.clone();
    let _lock = blocking(move || vault.lock()).await?;
    let plan = plan_local(prune).await?;
    evict_planned(prune, plan).await
}

fn planned(plan: RetentionPlan) -> PruneReport {
    PruneReport {
        plan,
        removed: Vec::new(),
        spared: Vec::new(),
    }
}

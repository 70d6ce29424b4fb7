//! `prune`: plans retention and carries it out.

pub(super) mod document;

use std::collections::BTreeSet;

use clap::Args;
use stepvault_core::Result;
use stepvault_core::ids::StepId;
use stepvault_core::observe::Tier;
use stepvault_core::retention::{KeepRules, RetentionPlan};
use stepvault_engine::blocking::blocking;
use stepvault_engine::prune::{
    LocalPrune, PruneReport, RemotePrune, plan_local, plan_remote, prune_local, prune_remote,
};
use stepvault_engine::tier::catalog::pins;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::vault::Vault;

use super::keep::KeepArguments;
use crate::arguments::values::TierChoice;
use crate::context::Tiers;
use crate::exit_code::ExitCode;
use crate::session::Session;
use document::{PruneDocument, exit_code};

/// Delete the steps that no keep rule selects
///
/// The newest valid step, on a remote also the best step that it names, pinned steps, steps that are being read, and
/// local copies that are not durable elsewhere are always kept. Without any rule every step is kept.
#[derive(Debug, Args)]
pub(crate) struct PruneArguments {
    /// Print each step with keep or drop and the reason, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Tiers: local, remote, all, or a remote's name
    #[arg(long, value_name = "TIER", default_value_t)]
    tier: TierChoice,
    /// Delete at most N steps from a tier; later prunes delete the rest
    #[arg(long, value_name = "N")]
    max_delete: Option<u32>,
    #[command(flatten)]
    keep: KeepArguments,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &PruneArguments) -> Result<ExitCode> {
    let (settings, tiers) = Tiers::load(session).await?;
    let remotes = tiers.all_remotes(&settings).await?;
    let mut results: Vec<(Tier, Result<PruneReport>)> = Vec::new();
    // Remotes first: a local copy may be removed because its step was removed from every remote on purpose.
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
            uploading: BTreeSet::new(),
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

/// Limits of a prune.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// Maximum number of steps to delete.
    pub(super) maximum_deletions: Option<u32>,
    /// Whether to plan only.
    pub(super) dry_run: bool,
}

/// Plans one remote, and carries out the plan unless it is a dry run. Pins on other tiers apply here too.
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
            // Every tier holds the pins; an unreachable one must not prevent pruning the others.
            Err(error) => session
                .output
                .warn(&format!("cannot read the pins on {}: {error}", other.name())),
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
    prune_local(prune).await
}

fn planned(plan: RetentionPlan) -> PruneReport {
    PruneReport {
        plan,
        removed: Vec::new(),
        given_up: Vec::new(),
        spared: Vec::new(),
    }
}

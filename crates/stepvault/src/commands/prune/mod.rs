//! `prune`: plans retention and carries it out.

pub(super) mod document;

use std::collections::BTreeSet;

use clap::Args;
use stepvault_core::Result;
use stepvault_core::ids::StepId;
use stepvault_core::observe::Tier;
use stepvault_core::retention::RetentionPlan;
use stepvault_engine::blocking::blocking;
use stepvault_engine::prune::{
    LocalPrune, PruneReport, RemotePrune, plan_local, plan_remote, prune_local, prune_remote,
};
use stepvault_engine::tier::catalog::pins;
use stepvault_engine::tier::run_remote::RunRemote;

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
    let tiers = Tiers::load(session).await?;
    let results = execute(&tiers, arguments).await?;
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

/// Plans each selected tier, and carries out its plan unless this is a dry run.
pub(super) async fn execute(
    tiers: &Tiers,
    arguments: &PruneArguments,
) -> Result<Vec<(Tier, Result<PruneReport>)>> {
    let remotes = tiers.all_remotes().await?;
    let mut results = Vec::new();
    // Remotes first: a local copy may be removed because its step was removed from every remote on purpose.
    let selected = tiers.remotes.iter();
    for remote in selected.filter(|remote| arguments.tier.takes(&remote.tier)) {
        let result = prune_remote_tier(tiers, &remotes, remote, arguments).await;
        results.push((remote.tier.clone(), result));
    }
    if let Some(vault) = tiers.vault.clone().filter(|_| arguments.tier.takes(&Tier::Local)) {
        let prune = LocalPrune {
            vault,
            run: tiers.run_name().clone(),
            remotes,
            rules: arguments.keep.over(&tiers.run.keep_local),
            limits: tiers.settings.config.local.limits,
            maximum_deletions: arguments.max_delete,
            uploading: BTreeSet::new(),
            observer: tiers.observer(),
        };
        results.push((Tier::Local, prune_vault(&prune, arguments.dry_run).await));
    }
    Ok(results)
}

/// Prunes one remote. Pins on other tiers apply here too.
async fn prune_remote_tier(
    tiers: &Tiers,
    all_remotes: &[RunRemote],
    remote: &RunRemote,
    arguments: &PruneArguments,
) -> Result<PruneReport> {
    let mut pinned_elsewhere: BTreeSet<StepId> = tiers.pinned_locally().await?;
    for other in all_remotes.iter().filter(|other| other.name() != remote.name()) {
        match pins(other).await {
            Ok(ids) => pinned_elsewhere.extend(ids),
            // Every tier holds the pins; an unreachable one must not prevent pruning the others.
            Err(error) => tiers
                .output
                .warn(&format!("cannot read the pins on {}: {error}", other.name())),
        }
    }
    let prune = RemotePrune {
        remote: remote.clone(),
        rules: arguments.keep.over(&tiers.run.keep_remote),
        maximum_deletions: arguments.max_delete,
        pinned_elsewhere,
        observer: tiers.observer(),
    };
    if arguments.dry_run {
        return Ok(planned(plan_remote(&prune).await?));
    }
    prune_remote(&prune).await
}

async fn prune_vault(prune: &LocalPrune, dry_run: bool) -> Result<PruneReport> {
    if dry_run {
        return Ok(planned(plan_local(prune).await?));
    }
    let vault = prune.vault.clone();
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

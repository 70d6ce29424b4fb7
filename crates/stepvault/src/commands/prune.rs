//! `prune`: retention, looked at or carried out.

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;
use stepvault_core::ids::StepId;
use stepvault_core::observe::Tier;
use stepvault_core::retention::{KeepRules, RefusalKind, RetentionPlan, Verdict};
use stepvault_core::{Error, Result};
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
use crate::output::json::ErrorInfo;
use crate::output::{Report, human, table};

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

#[derive(Serialize)]
struct PruneDocument {
    run: String,
    dry_run: bool,
    tiers: Vec<PrunedTier>,
}

#[derive(Serialize)]
struct PrunedTier {
    tier: String,
    plan: Option<RetentionPlan>,
    removed: Vec<StepId>,
    /// Steps that the plan drops and that stayed in the end.
    spared: Vec<SparedStep>,
    error: Option<ErrorInfo>,
}

#[derive(Serialize)]
struct SparedStep {
    #[serde(flatten)]
    id: StepId,
    reason: String,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &PruneArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let tiers = Tiers::open(&settings, DefaultVault::None, &session.output).await?;
    tiers.require_any()?;
    let remotes = tiers.all_remotes(&settings).await?;
    let mut results: Vec<(Tier, Result<PruneReport>)> = Vec::new();
    // Remotes first: a local copy may go because its step was retired on purpose everywhere else.
    for remote in tiers.remotes.iter().filter(|remote| arguments.tier.takes(&remote.tier)) {
        let rules = arguments.keep.over(&tiers.run.keep_remote);
        let limit = Limit { maximum_deletions: arguments.max_delete, dry_run: arguments.dry_run };
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
    let run = tiers.run_name().to_string();
    let tiers = results.into_iter().map(|(tier, result)| PrunedTier::new(&tier, result)).collect();
    session.output.result(&PruneDocument { run, dry_run: arguments.dry_run, tiers })?;
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
            Err(error) => session.output.warn(&format!("pins on {} could not be read: {error}", other.name())),
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
    PruneReport { plan, removed: Vec::new(), spared: Vec::new() }
}

/// A plan that is refused fails, except for an empty vault: on a fresh node there is nothing to do.
fn exit_code(results: &[(Tier, Result<PruneReport>)]) -> ExitCode {
    let refused = results.iter().any(|(tier, result)| {
        let refusal = result.as_ref().ok().and_then(|report| report.plan.refusal.as_ref());
        refusal.is_some_and(|refusal| *tier != Tier::Local || refusal.kind != RefusalKind::ListingEmpty)
    });
    match results {
        _ if refused => ExitCode::Failed,
        // The only tier's own kind says more than 'failed'.
        [(_, Err(error))] => ExitCode::from(error.kind()),
        several => ExitCode::of_tiers(several.iter().map(|(_, result)| result.as_ref().map(|_| ()))),
    }
}

impl PrunedTier {
    fn new(tier: &Tier, result: Result<PruneReport>) -> Self {
        let tier = tier.to_string();
        match result {
            Ok(report) => Self {
                tier,
                plan: Some(report.plan),
                removed: report.removed,
                spared: report.spared.into_iter().map(|(id, reason)| SparedStep { id, reason }).collect(),
                error: None,
            },
            Err(error) => {
                let error = Some(ErrorInfo::from(&error as &Error));
                Self { tier, plan: None, removed: Vec::new(), spared: Vec::new(), error }
            }
        }
    }

    fn human(&self, dry_run: bool) -> String {
        let Some(plan) = &self.plan else {
            let why = self.error.as_ref().map_or("", |error| error.message.as_str());
            return format!("{}: not pruned: {why}", self.tier);
        };
        let mut lines = Vec::new();
        if let Some(refusal) = &plan.refusal {
            lines.push(format!("{}: nothing is removed: {}", self.tier, refusal.reason));
        }
        if !plan.decisions.is_empty() {
            let mut rows = table::table(&["tier", "step", "attempt", "size", "", "why"], &[1, 2, 3]);
            for decision in plan.decisions.iter().rev() {
                rows.add_row([
                    self.tier.clone(),
                    decision.id.step.to_string(),
                    decision.id.attempt.to_string(),
                    human::bytes(decision.bytes),
                    if decision.verdict == Verdict::Keep { "keep" } else { "drop" }.to_owned(),
                    decision.reasons.join("; "),
                ]);
            }
            lines.push(table::text(&rows));
        }
        lines.extend(plan.warnings.iter().map(|warning| format!("{}: {warning}", self.tier)));
        lines.extend(self.spared.iter().map(|spared| format!("{}: kept {}: {}", self.tier, spared.id, spared.reason)));
        lines.push(if dry_run {
            let drops = plan.deletions().len() as u64;
            format!("{}: would remove {}, {}", self.tier, human::count(drops, "step"), human::bytes(plan.freed_bytes))
        } else {
            format!("{}: removed {}", self.tier, human::count(self.removed.len() as u64, "step"))
        });
        lines.join("\n")
    }
}

impl Report for PruneDocument {
    fn human(&self) -> String {
        if self.tiers.is_empty() {
            return "no tier to prune".to_owned();
        }
        self.tiers.iter().map(|tier| tier.human(self.dry_run)).collect::<Vec<_>>().join("\n\n")
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::ErrorKind;
    use stepvault_core::retention::{Guards, ListingState, LocalLimits, TierView, plan};
    use stepvault_core::timestamp::Timestamp;

    use super::*;

    fn empty(tier: &Tier, listing: ListingState) -> (Tier, Result<PruneReport>) {
        let view = TierView {
            tier: tier.clone(),
            steps: Vec::new(),
            unreadable: Vec::new(),
            listing,
            now: Timestamp::default(),
            free_bytes: None,
        };
        let plan = plan(&view, &KeepRules::default(), &LocalLimits::default(), &Guards::default()).unwrap();
        (tier.clone(), Ok(planned(plan)))
    }

    #[test]
    fn a_refused_plan_fails_and_an_empty_vault_does_not() {
        let remote = Tier::Remote("main".parse().unwrap());
        let failed = ListingState::Failed("reset".to_owned());
        assert_eq!(exit_code(&[empty(&Tier::Local, ListingState::Complete)]), ExitCode::Done);
        assert_eq!(exit_code(&[empty(&remote, ListingState::Complete)]), ExitCode::Failed);
        assert_eq!(exit_code(&[empty(&Tier::Local, failed)]), ExitCode::Failed);
        let held = Err(Error::new(ErrorKind::Held, "cannot lock the vault"));
        assert_eq!(exit_code(&[(Tier::Local, held)]), ExitCode::Held);
        assert_eq!(exit_code(&[]), ExitCode::Done);
    }

    #[test]
    fn a_refusal_is_said_in_words() {
        let remote = Tier::Remote("main".parse().unwrap());
        let (tier, result) = empty(&remote, ListingState::Complete);
        assert_eq!(
            PrunedTier::new(&tier, result).human(true),
            "main: nothing is removed: no step is listed on 'main'\nmain: would remove 0 steps, 0 B"
        );
    }
}

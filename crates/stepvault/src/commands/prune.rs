//! `prune`: plans retention and carries it out.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::config::RunSettings;
use stepvault_core::document::ErrorInfo;
use stepvault_core::retention::{BestRule, KeepRules, RefusalKind, RetentionPlan, Verdict};
use stepvault_core::{Result, StepId, Tier};
use stepvault_engine::prune::{
    LocalPrune, PruneReport, RemotePrune, plan_local, plan_remote, prune_local, prune_remote,
};
use stepvault_engine::tier::catalog::pins;
use stepvault_engine::{RunRemote, blocking};

use super::inventory::attempt_text;
use crate::arguments::values::{TierChoice, best_rule, duration};
use crate::context::Tiers;
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use crate::session::Session;

/// Delete the steps that no keep rule selects
///
/// The newest valid step, on a remote also the best step that it names, pinned steps, steps that are being read, and
/// local copies that are not durable elsewhere are always kept, and steps for which a selective remote waits. Without any
/// rule every step is kept.
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
    /// Whether a dry run takes every step for sound.
    #[arg(skip)]
    assumes_sound: bool,
}

/// Keep rules. Each replaces the configured rule of the same name; a step is kept if any rule selects it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Keep rules (each replaces the configured one)")]
pub(crate) struct KeepArguments {
    /// Keep the newest N steps
    #[arg(long = "keep-last", value_name = "N")]
    last: Option<u32>,
    /// Keep steps whose number is a multiple of N
    #[arg(long = "keep-every-steps", value_name = "N")]
    every_steps: Option<u64>,
    /// Keep steps that reached the tier within this time, such as 36h
    #[arg(long = "keep-within", value_name = "DURATION", value_parser = duration)]
    within: Option<Duration>,
    /// Keep the newest step of each of the last N hours that have one
    #[arg(long = "keep-hourly", value_name = "N")]
    hourly: Option<u32>,
    /// Keep the newest step of each of the last N days that have one
    #[arg(long = "keep-daily", value_name = "N")]
    daily: Option<u32>,
    /// Keep the newest step of each of the last N weeks that have one
    #[arg(long = "keep-weekly", value_name = "N")]
    weekly: Option<u32>,
    /// Keep the best N steps by a metric; repeatable: `eval_loss:2:lowest`
    #[arg(long = "keep-best", value_name = "METRIC:N:lowest|highest", value_parser = best_rule)]
    best: Vec<BestRule>,
}

impl PruneArguments {
    /// Returns those that plan every tier by these rules, and change nothing.
    pub(super) fn dry_run(keep: KeepArguments) -> Self {
        Self { dry_run: true, tier: TierChoice::default(), max_delete: None, keep, assumes_sound: false }
    }

    /// Returns those that plan every tier by the configured rules, as if every step were sound: no step is read.
    pub(super) fn overview() -> Self {
        Self { assumes_sound: true, ..Self::dry_run(KeepArguments::default()) }
    }

    /// Returns the rules for a run on a remote.
    fn rules_for(&self, run: &RunSettings, remote: &RunRemote) -> KeepRules {
        self.keep.over(&run.keep_on(&remote.settings))
    }

    /// Checks the rules for a run.
    ///
    /// # Errors
    /// As for [`KeepRules::check`].
    pub(super) fn check(&self, run: &RunSettings) -> Result<()> {
        let mut configured = [&run.keep_local, &run.keep_remote].into_iter();
        configured.try_for_each(|configured| self.keep.over(configured).check())
    }
}

impl KeepArguments {
    /// Returns these rules, completed with the configured ones.
    fn over(&self, configured: &KeepRules) -> KeepRules {
        // Round up: a fraction of a second must not become a rule that keeps nothing.
        let seconds = |length: Duration| length.as_secs() + u64::from(length.subsec_nanos() > 0);
        KeepRules {
            last: self.last.or(configured.last),
            every_steps: self.every_steps.or(configured.every_steps),
            within_seconds: self.within.map(seconds).or(configured.within_seconds),
            hourly: self.hourly.or(configured.hourly),
            daily: self.daily.or(configured.daily),
            weekly: self.weekly.or(configured.weekly),
            best: if self.best.is_empty() { configured.best.clone() } else { self.best.clone() },
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct PruneDocument {
    /// The run.
    run: String,
    /// Whether this is only a plan.
    dry_run: bool,
    /// One entry for each tier, remotes first.
    tiers: Vec<PrunedTier>,
}

#[derive(Serialize, JsonSchema)]
struct PrunedTier {
    /// `local` or the remote's name.
    tier: String,
    /// The decisions; null if no plan could be made.
    plan: Option<RetentionPlan>,
    /// The steps that were removed; empty in a dry run.
    removed: Vec<StepId>,
    /// Steps that the plan drops but that were kept.
    spared: Vec<SparedStep>,
    /// Why pruning failed; null if it did not.
    error: Option<ErrorInfo>,
}

#[derive(Serialize, JsonSchema)]
struct SparedStep {
    #[serde(flatten)]
    id: StepId,
    /// Why it was kept.
    reason: String,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &PruneArguments) -> Result<ExitCode> {
    let tiers = Tiers::load(session).await?;
    arguments.check(&tiers.run)?;
    let results = execute(&tiers, arguments).await?;
    tiers.progress.finish();
    let code = exit_code(&results);
    session.output.errors_beside_report(results.iter().map(|(_, result)| result));
    let pruned = results.into_iter().map(|(tier, result)| PrunedTier::new(&tier, result));
    session.output.result(&PruneDocument {
        run: tiers.run_name().to_string(),
        dry_run: arguments.dry_run,
        tiers: pruned.collect(),
    })?;
    Ok(code)
}

/// Plans each selected tier, and carries out its plan unless this is a dry run.
pub(super) async fn execute(
    tiers: &Tiers,
    arguments: &PruneArguments,
) -> Result<Vec<(Tier, Result<PruneReport>)>> {
    let mut remotes = tiers.all_remotes().await?;
    let mut results = Vec::new();
    // Remotes first: a local copy may be removed because its step was removed from every remote on purpose.
    // A selective remote without rules has nothing to prune, and may have no step yet.
    let has_rules = |remote: &RunRemote| !arguments.rules_for(&tiers.run, remote).is_unset();
    let selected = tiers.remotes.iter().filter(|remote| !remote.settings.is_selective() || has_rules(remote));
    for remote in selected.filter(|remote| arguments.tier.takes(&remote.tier)) {
        let result = prune_remote_tier(tiers, &remotes, remote, arguments).await;
        results.push((remote.tier.clone(), result));
    }
    // A local copy is needed whatever selective remotes hold.
    remotes.retain(|remote| !remote.settings.is_selective());
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
            Err(error) => tiers.output.warn(&format!("cannot read the pins on {}: {error}", other.name())),
        }
    }
    let selective = all_remotes.iter().filter(|other| other.settings.is_fed_by(remote.name()));
    let prune = RemotePrune {
        remote: remote.clone(),
        rules: arguments.rules_for(&tiers.run, remote),
        selective: selective.cloned().collect(),
        manages_imported: tiers.run.manage_imported,
        maximum_deletions: arguments.max_delete,
        pinned_elsewhere,
        observer: tiers.observer(),
    };
    if arguments.dry_run {
        return Ok(planned(plan_remote(&prune, !arguments.assumes_sound).await?));
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
    PruneReport { plan, removed: Vec::new(), given_up: Vec::new(), spared: Vec::new() }
}

/// Returns the exit code. A refused plan is a failure, except for an empty vault: a fresh node has nothing to prune.
fn exit_code(results: &[(Tier, Result<PruneReport>)]) -> ExitCode {
    let refused = results.iter().any(|(tier, result)| {
        let refusal = result.as_ref().ok().and_then(|report| report.plan.refusal.as_ref());
        refusal.is_some_and(|refusal| *tier != Tier::Local || refusal.kind != RefusalKind::ListingEmpty)
    });
    if refused { ExitCode::Failed } else { ExitCode::of_any_tiers(results) }
}

impl PrunedTier {
    fn new(tier: &Tier, result: Result<PruneReport>) -> Self {
        let error = result.as_ref().err().map(ErrorInfo::from);
        let (plan, removed, spared) = match result {
            Ok(report) => (Some(report.plan), report.removed, report.spared),
            Err(_) => (None, Vec::new(), Vec::new()),
        };
        let spared = spared.into_iter();
        Self {
            tier: tier.to_string(),
            spared: spared.map(|(id, reason)| SparedStep { id, reason }).collect(),
            removed,
            plan,
            error,
        }
    }

    fn human(&self, dry_run: bool) -> String {
        let Some(plan) = &self.plan else {
            // The error itself stands beside the report.
            return format!("{}: nothing was pruned", self.tier);
        };
        let mut lines = Vec::new();
        if let Some(refusal) = &plan.refusal {
            lines.push(format!("{}: nothing is removed: {}", self.tier, refusal.reason));
        }
        if !plan.decisions.is_empty() {
            let rows = plan.decisions.iter().rev().map(|decision| {
                [
                    self.tier.clone(),
                    decision.id.step.to_string(),
                    attempt_text(decision.id),
                    human::bytes(decision.bytes),
                    if decision.verdict == Verdict::Keep { "keep" } else { "drop" }.to_owned(),
                    decision.reasons.join("; "),
                ]
            });
            let headings = ["tier", "step", "attempt", "size", "", "why"];
            lines.push(table::text(&headings, &[1, 2, 3], rows));
        }
        let warnings = plan.warnings.iter();
        lines.extend(warnings.map(|warning| format!("{}: {warning}", self.tier)));
        for SparedStep { id, reason } in &self.spared {
            lines.push(format!("{}: kept {id}: {reason}", self.tier));
        }
        lines.push(if dry_run {
            let drops = human::count(plan.deletions().len() as u64, "step");
            let freed = human::bytes(plan.freed_bytes);
            format!("{}: would remove {drops}, {freed}", self.tier)
        } else {
            let removed = human::count(self.removed.len() as u64, "step");
            format!("{}: removed {removed}", self.tier)
        });
        lines.join("\n")
    }
}

impl Report for PruneDocument {
    fn human(&self) -> String {
        if self.tiers.is_empty() {
            return "no tier to prune".to_owned();
        }
        let tiers = self.tiers.iter();
        tiers.map(|tier| tier.human(self.dry_run)).join("\n\n")
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::retention::{Guards, KeepRules, LocalLimits, TierView, plan};
    use stepvault_core::timestamp::Timestamp;
    use stepvault_core::{Error, ErrorKind};

    use super::*;

    fn empty(tier: &Tier, unreadable: &[(String, String)]) -> (Tier, Result<PruneReport>) {
        let view = TierView {
            tier: tier.clone(),
            steps: Vec::new(),
            unreadable: unreadable.to_vec(),
            now: Timestamp::default(),
            free_bytes: None,
        };
        let plan = plan(&view, &KeepRules::default(), &LocalLimits::default(), &Guards::default()).unwrap();
        (
            tier.clone(),
            Ok(PruneReport { plan, removed: Vec::new(), given_up: Vec::new(), spared: Vec::new() }),
        )
    }

    #[test]
    fn a_refused_plan_fails_and_an_empty_vault_does_not() {
        let remote = Tier::Remote("main".parse().unwrap());
        let unreadable = [("a.json".to_owned(), "not JSON".to_owned())];
        assert_eq!(exit_code(&[empty(&Tier::Local, &[])]), ExitCode::Done);
        assert_eq!(exit_code(&[empty(&remote, &[])]), ExitCode::Failed);
        assert_eq!(exit_code(&[empty(&Tier::Local, &unreadable)]), ExitCode::Failed);
        let held = Err(Error::new(ErrorKind::Held, "cannot lock the vault"));
        assert_eq!(exit_code(&[(Tier::Local, held)]), ExitCode::Held);
        assert_eq!(exit_code(&[]), ExitCode::Done);
    }

    #[test]
    fn a_refusal_is_said_in_words() {
        let remote = Tier::Remote("main".parse().unwrap());
        let (tier, result) = empty(&remote, &[]);
        assert_eq!(
            PrunedTier::new(&tier, result).human(true),
            "main: nothing is removed: no step is listed on 'main'\nmain: would remove 0 steps, 0 B"
        );
    }
    #[test]
    fn a_given_rule_replaces_its_own_and_no_other() {
        let configured = KeepRules { last: Some(5), daily: Some(7), ..KeepRules::default() };
        let given = KeepArguments {
            last: Some(1),
            within: Some(Duration::from_millis(1500)),
            ..KeepArguments::default()
        };
        let rules = given.over(&configured);
        assert_eq!((rules.last, rules.daily, rules.within_seconds), (Some(1), Some(7), Some(2)));
        assert_eq!(KeepArguments::default().over(&configured), configured);
    }
}

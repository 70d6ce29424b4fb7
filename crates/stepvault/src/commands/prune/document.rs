//! The decisions and results of a prune, for people and programs.

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::Result;
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::observe::Tier;
use stepvault_core::retention::{RefusalKind, RetentionPlan, Verdict};
use stepvault_engine::prune::PruneReport;

use crate::commands::inventory::attempt_text;
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use stepvault_core::document::ErrorInfo;

#[derive(Serialize, JsonSchema)]
pub(in crate::commands) struct PruneDocument {
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

impl PruneDocument {
    /// Builds the document from the result of each tier.
    pub(super) fn new(run: &RunName, dry_run: bool, results: Vec<(Tier, Result<PruneReport>)>) -> Self {
        let tiers = results.into_iter();
        Self {
            run: run.to_string(),
            dry_run,
            tiers: tiers
                .map(|(tier, result)| PrunedTier::new(&tier, result))
                .collect(),
        }
    }
}

/// Returns the exit code. A refused plan is a failure, except for an empty vault: a fresh node has nothing to prune.
pub(super) fn exit_code(results: &[(Tier, Result<PruneReport>)]) -> ExitCode {
    let refused = results.iter().any(|(tier, result)| {
        let refusal = result
            .as_ref()
            .ok()
            .and_then(|report| report.plan.refusal.as_ref());
        refusal.is_some_and(|refusal| *tier != Tier::Local || refusal.kind != RefusalKind::ListingEmpty)
    });
    if refused {
        ExitCode::Failed
    } else {
        ExitCode::of_any_tiers(results)
    }
}

impl PrunedTier {
    fn new(tier: &Tier, result: Result<PruneReport>) -> Self {
        let error = result.as_ref().err().map(ErrorInfo::from);
        let report = result.ok();
        let spared = report.iter().flat_map(|report| report.spared.clone());
        Self {
            tier: tier.to_string(),
            spared: spared.map(|(id, reason)| SparedStep { id, reason }).collect(),
            removed: report
                .as_ref()
                .map_or_else(Vec::new, |report| report.removed.clone()),
            plan: report.map(|report| report.plan),
            error,
        }
    }

    fn human(&self, dry_run: bool) -> String {
        let Some(plan) = &self.plan else {
            let why = self.error.as_ref().map_or("", |error| error.message.as_str());
            return format!("{}: prune failed: {why}", self.tier);
        };
        let mut lines = Vec::new();
        if let Some(refusal) = &plan.refusal {
            lines.push(format!("{}: nothing is removed: {}", self.tier, refusal.reason));
        }
        if !plan.decisions.is_empty() {
            let mut rows = table::table(&["tier", "step", "attempt", "size", "", "why"], &[1, 2, 3]);
            for decision in plan.decisions.iter().rev() {
                let is_kept = decision.verdict == Verdict::Keep;
                rows.add_row([
                    self.tier.clone(),
                    decision.id.step.to_string(),
                    attempt_text(decision.id),
                    human::bytes(decision.bytes),
                    if is_kept { "keep" } else { "drop" }.to_owned(),
                    decision.reasons.join("; "),
                ]);
            }
            lines.push(table::text(&rows));
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
        let plan = plan(
            &view,
            &KeepRules::default(),
            &LocalLimits::default(),
            &Guards::default(),
        )
        .unwrap();
        (
            tier.clone(),
            Ok(PruneReport {
                plan,
                removed: Vec::new(),
                given_up: Vec::new(),
                spared: Vec::new(),
            }),
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
}

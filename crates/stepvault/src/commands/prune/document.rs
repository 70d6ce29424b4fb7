//! The decisions and results of a prune, for people and programs.

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
        let tiers = results
            .into_iter()
            .map(|(tier, result)| PrunedTier::new(&tier, result))
            .collect();
        Self {
            run: run.to_string(),
            dry_run,
            tiers,
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
    match results {
        _ if refused => ExitCode::Failed,
        // With a single tier, the kind of its error is more specific than `Failed`.
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
                spared: report
                    .spared
                    .into_iter()
                    .map(|(id, reason)| SparedStep { id, reason })
                    .collect(),
                error: None,
            },
            Err(error) => {
                let error = Some(ErrorInfo::from(&error));
                Self {
                    tier,
                    plan: None,
                    removed: Vec::new(),
                    spared: Vec::new(),
                    error,
                }
            }
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
                rows.add_row([
                    self.tier.clone(),
                    decision.id.step.to_string(),
                    attempt_text(decision.id),
                    human::bytes(decision.bytes),
                    if decision.verdict == Verdict::Keep {
                        "keep"
                    } else {
                        "drop"
                    }
                    .to_owned(),
                    decision.reasons.join("; "),
                ]);
            }
            lines.push(table::text(&rows));
        }
        lines.extend(
            plan.warnings
                .iter()
                .map(|warning| format!("{}: {warning}", self.tier)),
        );
        lines.extend(
            self.spared
                .iter()
                .map(|spared| format!("{}: kept {}: {}", self.tier, spared.id, spared.reason)),
        );
        lines.push(if dry_run {
            let drops = plan.deletions().len() as u64;
            format!(
                "{}: would remove {}, {}",
                self.tier,
                human::count(drops, "step"),
                human::bytes(plan.freed_bytes)
            )
        } else {
            format!(
                "{}: removed {}",
                self.tier,
                human::count(self.removed.len() as u64, "step")
            )
        });
        lines.join("\n")
    }
}

impl Report for PruneDocument {
    fn human(&self) -> String {
        if self.tiers.is_empty() {
            return "no tier to prune".to_owned();
        }
        self.tiers
            .iter()
            .map(|tier| tier.human(self.dry_run))
            .collect::<Vec<_>>()
            .join("\n\n")
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

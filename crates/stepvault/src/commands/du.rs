//! `du`: shows the space of each run on each tier, and what a prune would free.

use std::collections::BTreeSet;

use clap::Args;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::document::ErrorInfo;
use stepvault_core::{Error, ErrorKind, Result, RunName, Tier};
use stepvault_engine::prune::PruneReport;

use super::inventory::FailedTier;
use super::prune::{self, KeepArguments, PruneArguments};
use crate::context::{DefaultVault, Settings, Tiers, all_runs};
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use crate::session::Session;

/// Show the space of each run on each tier, and what 'prune' would free
///
/// Counts the files of sealed and of committed steps; 'runs' counts every object. Without --run, all runs of the vault and
/// of the remotes. The keep rules are those of 'prune': the configured ones, unless others are given. Nothing is changed.
#[derive(Debug, Args)]
pub(crate) struct DuArguments {
    #[command(flatten)]
    keep: KeepArguments,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct DuDocument {
    /// Each run on each tier that has a step of it, by name.
    runs: Vec<UsedSpace>,
    /// Bytes of all steps on all tiers.
    bytes: u64,
    /// Bytes of the steps that a prune would remove.
    prunable_bytes: u64,
    /// Remotes whose runs could not be listed.
    failed: Vec<FailedTier>,
}

/// A run on a tier.
#[derive(Serialize, JsonSchema)]
struct UsedSpace {
    /// The run.
    run: String,
    /// `local` or the remote's name.
    tier: String,
    /// Number of its steps.
    steps: usize,
    /// Bytes of all files of its steps.
    bytes: u64,
    /// Number of steps that a prune would remove.
    prunable_steps: usize,
    /// Bytes of all files of these steps.
    prunable_bytes: u64,
    /// Why a prune would remove nothing whatever the rules are; null if it may.
    refusal: Option<String>,
    /// Why the tier could not be read; null if it was.
    error: Option<ErrorInfo>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: DuArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let (names, failed) = match settings.named_run() {
        Some(run) => (BTreeSet::from([run.clone()]), Vec::new()),
        None => all_runs(&settings, usize::MAX).await?,
    };
    for (_, error) in &failed {
        session.output.error_beside_report(error);
    }
    let plan = PruneArguments::dry_run(arguments.keep);
    let (mut used, mut outcomes) = (Vec::new(), Vec::new());
    for name in names {
        let settings = settings.clone().with_run(name.clone());
        let tiers = Tiers::open(&settings, DefaultVault::here(), &session.output).await?;
        plan.check(&tiers.run)?;
        let planned = prune::execute(&tiers, &plan).await?;
        tiers.progress.finish();
        session.output.errors_beside_report(planned.iter().map(|(_, result)| result));
        for (tier, result) in planned {
            used.extend(UsedSpace::of(&name, &tier, &result));
            outcomes.push(result.map(drop));
        }
    }
    outcomes.extend(failed.iter().map(|(_, error)| Err(error.clone())));
    if outcomes.is_empty() && settings.all_remotes().is_empty() && settings.local_directory().is_none() {
        return Err(Error::new(ErrorKind::Usage, "no tier selected")
            .because("none is given or configured")
            .hint("give --remote URL or --local DIR, or a configuration with --config FILE"));
    }
    let code = ExitCode::of_tiers(outcomes.iter().map(Result::as_ref));
    let is_none = used.is_empty() && code == ExitCode::Done;
    session.output.result(&DuDocument {
        bytes: used.iter().map(|used| used.bytes).sum(),
        prunable_bytes: used.iter().map(|used| used.prunable_bytes).sum(),
        runs: used,
        failed: FailedTier::all(&failed),
    })?;
    Ok(if is_none { ExitCode::NotFound } else { code })
}

impl UsedSpace {
    /// Returns `None` for a tier without a step of the run.
    fn of(run: &RunName, tier: &Tier, planned: &Result<PruneReport>) -> Option<Self> {
        let mut used = Self {
            run: run.to_string(),
            tier: tier.to_string(),
            steps: 0,
            bytes: 0,
            prunable_steps: 0,
            prunable_bytes: 0,
            refusal: None,
            error: planned.as_ref().err().map(ErrorInfo::from),
        };
        let Ok(PruneReport { plan, .. }) = planned else { return Some(used) };
        used.steps = plan.decisions.len();
        used.bytes = plan.decisions.iter().map(|decision| decision.bytes).sum();
        (used.prunable_steps, used.prunable_bytes) = (plan.deletions().len(), plan.freed_bytes);
        used.refusal = plan.refusal.as_ref().map(|refusal| refusal.reason.clone());
        (used.steps > 0).then_some(used)
    }
}

impl Report for DuDocument {
    fn human(&self) -> String {
        if self.runs.is_empty() {
            return "no tier holds a step".to_owned();
        }
        let headings = ["run", "tier", "steps", "size", "a prune frees"];
        let row = |used: &UsedSpace| {
            let (steps, size) = match &used.error {
                None => (used.steps.to_string(), human::bytes(used.bytes)),
                Some(_) => ("?".to_owned(), "?".to_owned()),
            };
            let freed = human::bytes(used.prunable_bytes);
            let freed = match used.prunable_steps {
                0 => "-".to_owned(),
                steps => format!("{freed} ({})", human::count(steps as u64, "step")),
            };
            [used.run.clone(), used.tier.clone(), steps, size, freed]
        };
        let table = table::text(&headings, &[2, 3, 4], self.runs.iter().map(row));
        let refused = self.runs.iter().filter_map(|used| {
            let reason = used.refusal.as_ref()?;
            Some(format!("{} on {}: a prune removes nothing: {reason}", used.run, used.tier))
        });
        let total = match self.prunable_bytes {
            0 => format!("{} in all", human::bytes(self.bytes)),
            freed => {
                format!("{} in all, of which a prune frees {}", human::bytes(self.bytes), human::bytes(freed))
            }
        };
        std::iter::once(table).chain(refused).chain([total]).join("\n")
    }
}

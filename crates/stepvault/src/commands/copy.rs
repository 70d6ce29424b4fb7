//! `copy`: copies the steps of a run from one remote to another.

use std::slice;

use clap::Args;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::document::{ErrorInfo, StepIdMembers};
use stepvault_core::{Error, ErrorKind, Result, RunName, Step, StepId};
use stepvault_engine::blocking;
use stepvault_engine::copy::{
    CopyChoice, CopyContext, CopyOutcome, CopyPlan, CopyReport, PlannedCopy, copy_steps, plan_copy,
};
use stepvault_engine::tier::runs::list_runs;
use stepvault_engine::upload::CommonStore;
use stepvault_remote::open::open_with;

use super::inventory::attempt_text;
use super::list::short_time;
use crate::arguments::values::checked;
use crate::context::{DefaultVault, Settings, Tiers, given_remotes};
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use crate::progress::{Progress, Style};
use crate::session::Session;

/// Copy the steps of a run from one remote to another
///
/// They are the same steps there: every byte is verified, and each step becomes visible when it is complete. Steps that
/// the target has are not copied again. Run the same command again to continue after an interruption, with the same
/// vault: without --local or a configured vault it is .stepvault in the working directory.
#[derive(Debug, Args)]
pub(crate) struct CopyArguments {
    /// Source: a URL, NAME=URL, or the name of a remote that is configured or given with --remote
    #[arg(long, value_name = "NAME|URL")]
    from: String,
    /// Target: likewise
    #[arg(long, value_name = "NAME|URL")]
    to: String,
    /// Copy every run of the source
    #[arg(long, conflicts_with = "step")]
    all_runs: bool,
    /// Copy only the step with this number; repeatable
    #[arg(long, value_name = "N", value_parser = checked::<Step>)]
    step: Vec<Step>,
    /// Copy only the steps that the run's keep rules for remotes select
    #[arg(long)]
    keep_rules: bool,
    /// Print what would be copied, and copy nothing
    #[arg(long)]
    dry_run: bool,
}

/// The result of a copy.
#[derive(Serialize, JsonSchema)]
pub(super) struct CopyDocument {
    /// The name of the remote that was copied from.
    from: String,
    /// The name of the remote that was copied to.
    to: String,
    /// Whether this is only a plan.
    dry_run: bool,
    /// One entry for each run.
    runs: Vec<CopiedRun>,
}

/// A run.
#[derive(Serialize, JsonSchema)]
struct CopiedRun {
    /// The run.
    run: String,
    /// The steps, the newest first.
    steps: Vec<CopiedStep>,
    /// Bytes of the steps that are copied.
    bytes: u64,
    /// Those of the bytes that the store copied itself; 0 in a dry run.
    copied_bytes: u64,
    /// Those of the bytes that were read from the vault instead of the source, for a selective remote; 0 in a dry run.
    vault_bytes: u64,
    /// How many requests are sent to the source, at most; 0 unless this is a plan.
    source_requests: u64,
    /// How many requests are sent to the target, at most; 0 unless this is a plan.
    target_requests: u64,
    /// Why the run could not be copied; null if it could.
    error: Option<ErrorInfo>,
}

/// A step of the source.
#[derive(Serialize, JsonSchema)]
struct CopiedStep {
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// Name of the step's directory or file; empty if its commit cannot be read.
    name: String,
    /// Number of its files.
    files: u64,
    /// Bytes of its files.
    bytes: u64,
    /// What became of it.
    state: CopyState,
    /// The time from which it may be copied, if it waits for it; otherwise null.
    due_at: Option<String>,
    /// Why it was skipped; null if it was not.
    reason: Option<String>,
    /// Why it failed; null if it did not.
    error: Option<ErrorInfo>,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "lowercase")]
enum CopyState {
    /// It would be copied.
    Copy,
    /// It was copied.
    Copied,
    /// The target had it already.
    Present,
    /// It is selected, and will be copied once it is old enough.
    Planned,
    /// It was left out.
    Skipped,
    /// It could not be copied.
    Failed,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &CopyArguments) -> Result<ExitCode> {
    let fault = |why: &str, hint: &str| {
        Error::new(ErrorKind::Usage, "cannot tell what to copy").because(why).hint(hint)
    };
    if arguments.all_runs && session.global.run.is_some() {
        return Err(fault("--run and --all-runs are given", "give one of them"));
    }
    let (given, _) = given_remotes(&session.global)?;
    let remotes = [&arguments.from, &arguments.to].map(|side| named_among(&given, side).to_owned());
    let settings = Settings::load_of_remotes(session, remotes.to_vec())?.introduced(session);
    let runs =
        if arguments.all_runs { runs_of(session, &settings).await? } else { vec![settings.run()?.name] };
    if settings.all_remotes().len() != 2 {
        return Err(fault("--from and --to are one remote", "name two remotes that are in different places"));
    }
    let choice = |tiers: &Tiers| chosen(tiers, arguments);
    let mut results = Vec::new();
    let document = copy_runs(session, &settings, runs, arguments.dry_run, choice, &mut results).await;
    session.output.errors_beside_report(results.iter().map(|(_, result)| result));
    session.output.result(&document)?;
    Ok(ExitCode::of_any_tiers(&results))
}

/// The outcome of each run or step, with its name.
pub(super) type Results = Vec<(String, Result<()>)>;

/// Copies these runs, or plans it, between the two remotes that the settings name. What failed is added to `results`.
pub(super) async fn copy_runs(
    session: &Session,
    settings: &Settings,
    runs: Vec<RunName>,
    dry_run: bool,
    choice: impl Fn(&Tiers) -> Result<CopyChoice>,
    results: &mut Results,
) -> CopyDocument {
    let mut copied = Vec::new();
    for run in runs {
        let copy = copy_run(session, settings.clone().with_run(run.clone()), dry_run, &choice).await;
        let run = match copy {
            Ok(report) => {
                let failed = report.steps.iter().map(|step| {
                    let result = step.result.as_ref().map(drop).map_err(Clone::clone);
                    (step.step.id.to_string(), result)
                });
                results.extend(failed);
                CopiedRun::of(&run, report, dry_run)
            }
            Err(error) => {
                let failed = CopiedRun::failed(&run, &error);
                results.push((run.to_string(), Err(error)));
                failed
            }
        };
        copied.push(run);
    }
    let names = settings.all_remotes();
    let name = |side: usize| names.get(side).map(|remote| remote.name.to_string()).unwrap_or_default();
    CopyDocument { from: name(0), to: name(1), dry_run, runs: copied }
}

/// Returns the NAME=URL of the given remotes that has this name, or the text itself.
fn named_among<'a>(given: &'a [String], side: &'a str) -> &'a str {
    let has_name = |remote: &&String| remote.split_once('=').is_some_and(|(name, _)| name == side);
    given.iter().find(has_name).map_or(side, String::as_str)
}

/// Returns the runs that have a step on the source.
pub(super) async fn runs_of(session: &Session, settings: &Settings) -> Result<Vec<RunName>> {
    let remotes = settings.all_remotes();
    let Some(from) = remotes.first() else { return Ok(Vec::new()) };
    let progress = Progress::start(slice::from_ref(from), Style::of(&session.output), &session.output);
    let store = open_with(from, progress.observer(), settings.open_options()).await?;
    let listed = list_runs(&*store, usize::MAX).await;
    progress.finish();
    let with_steps = listed?.runs.into_iter().filter(|(_, run)| !run.steps.is_empty());
    let runs: Vec<RunName> = with_steps.map(|(name, _)| name).collect();
    if runs.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "the source has no run")
            .on(&from.url)
            .hint("check the URL and its prefix"));
    }
    Ok(runs)
}

/// Copies one run, or plans it.
async fn copy_run(
    session: &Session,
    settings: Settings,
    dry_run: bool,
    choice: impl Fn(&Tiers) -> Result<CopyChoice>,
) -> Result<CopyReport> {
    let vault = if dry_run { DefaultVault::here() } else { DefaultVault::created_here()? };
    let tiers = Tiers::open(&settings, vault, &session.output).await?;
    let copied = match choice(&tiers) {
        Ok(choice) => copy_between(&tiers, choice, dry_run).await,
        Err(error) => Err(error),
    };
    tiers.progress.finish();
    copied
}

/// Returns which steps the arguments select.
fn chosen(tiers: &Tiers, arguments: &CopyArguments) -> Result<CopyChoice> {
    let rules = &tiers.run.keep_remote;
    if arguments.keep_rules && rules.is_unset() {
        return Err(Error::new(ErrorKind::Usage, "cannot apply --keep-rules")
            .because("no keep rule for remotes is configured")
            .hint("set one in [keep.remote] or in the run's table, or copy every step"));
    }
    Ok(if arguments.keep_rules {
        CopyChoice::Kept(rules.clone())
    } else if arguments.step.is_empty() {
        CopyChoice::All
    } else {
        CopyChoice::Numbers(arguments.step.iter().copied().collect())
    })
}

async fn copy_between(tiers: &Tiers, choice: CopyChoice, dry_run: bool) -> Result<CopyReport> {
    let missing = |what| Error::new(ErrorKind::Usage, what);
    let [from, to] = &tiers.remotes[..] else { return Err(missing("no two remotes")) };
    if from.identity_url() == to.identity_url() {
        return Err(Error::new(ErrorKind::Usage, "cannot copy a run to where it is").on(from.identity_url()));
    }
    let options = tiers.settings.open_options();
    let context = CopyContext {
        common: CommonStore::open(&from.settings, &to.settings, tiers.observer(), options).await?,
        from: from.clone(),
        to: to.clone(),
        budget: tiers.budget.clone(),
        observer: tiers.observer(),
        choice,
    };
    if dry_run {
        return plan_copy(&context).await.map(CopyPlan::as_report);
    }
    let vault = tiers.vault.as_ref().ok_or_else(|| missing("no local vault"))?;
    let cleaned = vault.clone();
    blocking(move || match cleaned.lock() {
        Ok(lock) => cleaned.clean_leftovers(&lock).map(drop),
        // An agent that holds it has cleaned the vault.
        Err(error) if error.kind() == ErrorKind::Held => Ok(()),
        Err(error) => Err(error),
    })
    .await?;
    context.begin(vault).await?;
    let plan = plan_copy(&context).await?;
    copy_steps(&context, vault, plan).await
}

impl CopiedRun {
    fn of(run: &RunName, report: CopyReport, dry_run: bool) -> Self {
        let CopyReport { copied_bytes, vault_bytes, .. } = report;
        let is_copied = |result: &Result<CopyOutcome>| matches!(result, Ok(CopyOutcome::Copied));
        let copied = || report.steps.iter().filter(|step| is_copied(&step.result)).map(|step| &step.step);
        let bytes = copied().map(|step| step.bytes).sum();
        let requests = copied().filter(|_| dry_run).map(PlannedCopy::requests);
        let (source_requests, target_requests) =
            requests.fold((0, 0), |(source, target), (more, others)| (source + more, target + others));
        let steps = report.steps.into_iter().map(|step| CopiedStep::of(step.step, step.result, dry_run));
        Self {
            run: run.to_string(),
            steps: steps.collect(),
            bytes,
            copied_bytes,
            vault_bytes,
            source_requests,
            target_requests,
            error: None,
        }
    }

    fn failed(run: &RunName, error: &Error) -> Self {
        Self { error: Some(ErrorInfo::from(error)), ..Self::of(run, CopyReport::default(), false) }
    }

    fn human(&self, document: &CopyDocument) -> String {
        let mut lines = Vec::new();
        if !self.steps.is_empty() {
            let rows = self.steps.iter().map(|step| {
                let why = step.reason.clone().or_else(|| Some(step.error.as_ref()?.message.clone()));
                let due = || Some(format!("from {} on", short_time(step.due_at.as_ref()?)));
                let why = why.or_else(due);
                [
                    self.run.clone(),
                    step.id.step.to_string(),
                    attempt_text(step.id),
                    human::bytes(step.bytes),
                    step.state.to_string(),
                    why.unwrap_or_default(),
                ]
            });
            lines.push(table::text(&["run", "step", "attempt", "size", "", "why"], &[1, 2, 3], rows));
        }
        lines.push(if self.error.is_some() {
            format!("{}: nothing was copied", self.run)
        } else {
            self.summary(document)
        });
        lines.join("\n")
    }

    fn summary(&self, CopyDocument { from, to, dry_run, .. }: &CopyDocument) -> String {
        let of = |state| self.steps.iter().filter(|step| step.state == state).count() as u64;
        let (run, bytes) = (&self.run, human::bytes(self.bytes));
        let mut phrases = vec![if *dry_run {
            format!(
                "{run}: would copy {}, {bytes}, from {from} to {to}, with at most {} to {from} and {} to {to}",
                human::count(of(CopyState::Copy), "step"),
                human::count(self.source_requests, "request"),
                human::count(self.target_requests, "request"),
            )
        } else {
            let copied = human::count(of(CopyState::Copied), "step");
            format!("{run}: copied {copied}, {bytes}, from {from} to {to}")
        }];
        if self.copied_bytes > 0 {
            phrases.push(format!("{} copied in the store", human::bytes(self.copied_bytes)));
        }
        if self.vault_bytes > 0 {
            phrases.push(format!("{} read from the vault", human::bytes(self.vault_bytes)));
        }
        let others = [
            (CopyState::Present, "there already"),
            (CopyState::Planned, "planned"),
            (CopyState::Skipped, "skipped"),
            (CopyState::Failed, "failed"),
        ];
        let others = others.into_iter().filter(|(state, _)| of(*state) > 0);
        phrases.extend(others.map(|(state, words)| format!("{} {words}", of(state))));
        phrases.join("; ")
    }
}

impl CopiedStep {
    fn of(step: PlannedCopy, result: Result<CopyOutcome>, dry_run: bool) -> Self {
        let error = result.as_ref().err().map(ErrorInfo::from);
        let due_at = match &result {
            Ok(CopyOutcome::Planned(due_at)) => Some(due_at.to_rfc3339()),
            _ => None,
        };
        let (state, reason) = match result {
            Ok(CopyOutcome::Copied) if dry_run => (CopyState::Copy, None),
            Ok(CopyOutcome::Copied) => (CopyState::Copied, None),
            Ok(CopyOutcome::Present) => (CopyState::Present, None),
            Ok(CopyOutcome::Planned(_)) => (CopyState::Planned, None),
            Ok(CopyOutcome::Skipped(reason)) => (CopyState::Skipped, Some(reason)),
            Err(_) => (CopyState::Failed, None),
        };
        let PlannedCopy { id, name, files, bytes, .. } = step;
        Self { id, name, files, bytes, state, due_at, reason, error }
    }
}

impl Report for CopyDocument {
    fn human(&self) -> String {
        self.runs.iter().map(|run| run.human(self)).join("\n\n")
    }
}

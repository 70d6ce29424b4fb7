//! What the page shows: the documents of `status`, `list`, `prune --dry-run` and `restore --plan` for each run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::document::{ErrorInfo, StepIdMembers};
use stepvault_core::forecast::{STEPS_THAT_COUNT, Taken, next_step};
use stepvault_core::retention::{Decision, RefusalKind, Verdict};
use stepvault_core::{Clock as _, Error, ErrorKind, Result, RunName, StepId, Timestamp};
use stepvault_engine::restore::{RestoreRequest, SkippedStep, Target, plan};
use stepvault_local::SystemClock;
use tokio::time::Instant;

use crate::commands::inventory::{FailedTier, IncompleteOn, Inventory, ListedStep, LocalState, PlannedOn};
use crate::commands::list::mark_planned;
use crate::commands::prune::{KeepArguments, PruneArguments, execute};
use crate::commands::restore::restore_context;
use crate::commands::runs::{ListedRun, RunsDocument};
use crate::commands::starts::demoted_steps;
use crate::commands::status::{self, StatusDocument};
use crate::context::{DefaultVault, Settings, Tiers};
use crate::output::{Output, Report};
use crate::progress::{Progress, Style};

/// Maximum number of runs with details, the ones written last.
const MAX_RUNS: usize = 32;
/// Maximum number of steps of a run, the newest.
const MAX_STEPS: usize = 10_000;
/// Maximum number of steps with the reasons why they are kept, the newest.
const MAX_REASONS: usize = 500;
/// Maximum number of deletions of a tier.
const MAX_DELETIONS: usize = 100;
/// Maximum number of removed steps that are remembered for each run.
const MAX_REMOVED: usize = 200;

/// Everything that the page shows.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct DashboardDocument {
    /// When it was made, in UTC.
    at: String,
    /// Seconds between two listings of the remotes while somebody watches.
    refresh_seconds: u64,
    /// The configured runs, or those of the remotes; at most 32, the ones written last.
    runs: Vec<RunView>,
    /// Runs on the remotes that are not among those above.
    others: Vec<ListedRun>,
    /// Remotes whose runs could not be listed.
    failed: Vec<FailedTier>,
}

impl Report for DashboardDocument {
    fn human(&self) -> String {
        self.runs.iter().map(|run| run.run.as_str()).join("\n")
    }
}

/// One run.
#[derive(Debug, Serialize, JsonSchema)]
struct RunView {
    /// The run.
    run: String,
    /// Why its tiers cannot be opened or read; null if they can.
    error: Option<ErrorInfo>,
    /// The vault and its agent, as `status --json` prints them; null without a vault.
    status: Option<StatusDocument>,
    #[serde(flatten)]
    listing: Listing,
    /// Expected bytes of the next step; null without steps.
    next_step_bytes: Option<u64>,
}

/// What a listing of all tiers has shown.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
struct Listing {
    /// When the tiers were listed, in UTC; null before the first time.
    listed_at: Option<String>,
    /// The run's remotes, in the configured order.
    remotes: Vec<String>,
    /// Those of them that get only the steps that rules select.
    selective: Vec<String>,
    /// The steps on all tiers, the newest first, at most 10,000.
    steps: Vec<StepView>,
    /// Number of older steps that are left out.
    omitted_steps: u64,
    /// Steps that were removed while the page was watched, the latest last.
    removed: Vec<RemovedStep>,
    /// What retention removes next, by tier.
    retention: Vec<NextDeletions>,
    /// What a restore would take; null if it would take nothing.
    restore: Option<RestoreView>,
    /// Why a restore would fail; null if it would not.
    restore_error: Option<ErrorInfo>,
    /// Times that contradict the order of the steps, as text.
    time_warnings: Vec<String>,
    /// Tiers that could not be listed.
    failed: Vec<FailedTier>,
}

/// One step.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct StepView {
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// The newest modification time of its files, in UTC; omitted if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    written_at: Option<String>,
    /// Bytes of its files; omitted if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// The state of the local copy; omitted if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<LocalState>,
    /// The remotes that have committed it.
    remotes: Vec<String>,
    /// Remotes on which it is incomplete; omitted when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    incomplete: Vec<IncompleteOn>,
    /// The selective remotes to which it will be copied; omitted when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    planned: Vec<PlannedOn>,
    /// Whether it is pinned; omitted if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pinned: bool,
    /// Whether a later attempt started at or before it; omitted if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    abandoned: bool,
    /// Metrics by name; omitted when there are none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metrics: BTreeMap<String, f64>,
    /// Why retention keeps it on the first tier that holds it, for the newest 500; omitted when there is no reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kept: Vec<String>,
    /// Errors of records that cannot be read; omitted when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<String>,
}

/// A step that no tier holds any more.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct RemovedStep {
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// When that was noticed, in UTC.
    noticed_at: String,
}

/// What retention removes next from one tier.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct NextDeletions {
    /// `local` or the remote's name.
    tier: String,
    /// Number of the steps.
    steps: u64,
    /// Their bytes.
    freed_bytes: u64,
    /// The first 100 of them, in the order of deletion.
    deletions: Vec<NextDeletion>,
    /// Why nothing is removed at all; null if steps may be removed.
    refusal: Option<String>,
    /// Why there is no plan; null if there is one.
    error: Option<ErrorInfo>,
}

/// A step that retention removes next.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct NextDeletion {
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// Why, as text.
    reasons: Vec<String>,
}

/// What a restore would take.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct RestoreView {
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// The tiers to read from, in order.
    tiers: Vec<String>,
    /// Bytes of its files.
    bytes: u64,
    /// Newer steps that are skipped, the newest first.
    skipped: Vec<SkippedStep>,
}

/// Collects the document, and keeps what is expensive to find out.
#[derive(Debug)]
pub(super) struct Collector {
    settings: Settings,
    refresh: Duration,
    runs: BTreeMap<RunName, KnownRun>,
    others: Option<(Instant, RunsDocument)>,
}

/// What is known of a run.
#[derive(Debug, Default)]
struct KnownRun {
    tiers: Option<Tiers>,
    listing: Listing,
    listed: Option<Instant>,
    ids: BTreeSet<StepId>,
}

impl Collector {
    pub(super) fn new(settings: Settings, refresh: Duration) -> Self {
        Self { settings, refresh, runs: BTreeMap::new(), others: None }
    }

    /// Returns the present state. The remotes are listed at most once in each interval.
    pub(super) async fn collect(&mut self) -> DashboardDocument {
        let (names, others, failed) = self.names().await;
        self.runs.retain(|name, _| names.contains(name));
        let mut runs = Vec::with_capacity(names.len());
        for name in names {
            let known = self.runs.entry(name.clone()).or_default();
            runs.push(known.view(&self.settings, &name, self.refresh).await);
        }
        DashboardDocument {
            at: SystemClock.now().to_rfc3339(),
            refresh_seconds: self.refresh.as_secs(),
            runs,
            others,
            failed,
        }
    }

    /// Returns the runs to show in detail, the others, and the remotes that could not be listed.
    async fn names(&mut self) -> (Vec<RunName>, Vec<ListedRun>, Vec<FailedTier>) {
        if let Some(run) = self.settings.named_run() {
            return (vec![run.clone()], Vec::new(), Vec::new());
        }
        let mut names: Vec<RunName> = self.settings.config.runs.iter().map(|run| run.name.clone()).collect();
        let is_due = self.others.as_ref().is_none_or(|(at, _)| at.elapsed() >= self.refresh);
        if is_due {
            let (remotes, output) = (self.settings.all_remotes(), quiet());
            let progress = Progress::start(&remotes, Style::Silent, &output);
            let (listed, _) = RunsDocument::list(&self.settings, &remotes, &progress).await;
            self.others = Some((Instant::now(), listed));
        }
        let Some((_, listed)) = &self.others else { return (names, Vec::new(), Vec::new()) };
        let mut others = listed.runs.clone();
        others.retain(|other| !names.iter().any(|name| name.as_str() == other.run));
        if names.is_empty() {
            others.sort_by(|left, right| right.last_write_at.cmp(&left.last_write_at));
            for other in &others {
                let name = RunName::new(other.run.as_str()).ok();
                names.extend(name.filter(|name| !names.contains(name)));
            }
            names.truncate(MAX_RUNS);
            others.retain(|other| !names.iter().any(|name| name.as_str() == other.run));
        }
        (names, others, listed.failed.clone())
    }
}

/// Warnings are shown on the page.
fn quiet() -> Output {
    Output::new(false, true)
}

impl KnownRun {
    async fn view(&mut self, settings: &Settings, run: &RunName, refresh: Duration) -> RunView {
        let mut view = RunView {
            run: run.to_string(),
            error: None,
            status: None,
            listing: Listing::default(),
            next_step_bytes: None,
        };
        if let Err(error) = self.look(settings, run, refresh, &mut view).await {
            view.error = Some(ErrorInfo::from(&error));
            // They are opened anew.
            self.tiers = None;
        }
        view.listing = self.listing.clone();
        let newest = view.listing.steps.iter().take(STEPS_THAT_COUNT).rev();
        let sizes: Vec<Taken> =
            newest.map(|step| Taken { bytes: step.bytes.unwrap_or_default(), ..Taken::default() }).collect();
        view.next_step_bytes = next_step(&sizes).map(|forecast| forecast.taken.bytes);
        view
    }

    async fn look(
        &mut self,
        settings: &Settings,
        run: &RunName,
        refresh: Duration,
        view: &mut RunView,
    ) -> Result<()> {
        if self.tiers.as_ref().is_none_or(|tiers| tiers.vault.is_none()) {
            let settings = settings.clone().with_run(run.clone());
            let opened = Tiers::open(&settings, DefaultVault::here(), &quiet()).await?;
            opened.require_any()?;
            self.tiers = Some(opened);
        }
        let Some(tiers) = &self.tiers else { return Ok(()) };
        if let Some(vault) = &tiers.vault {
            view.status = Some(status::document(tiers, vault).await?.0);
        }
        if self.listed.is_none_or(|at| at.elapsed() >= refresh) {
            self.listing = self.listing.after(tiers, &mut self.ids).await?;
            self.listed = Some(Instant::now());
        }
        Ok(())
    }
}

impl Listing {
    /// Lists all tiers and plans from what they hold. `ids` are the steps at the last time.
    async fn after(&self, tiers: &Tiers, ids: &mut BTreeSet<StepId>) -> Result<Self> {
        let mut inventory = Inventory::gather(tiers, None).await?;
        mark_planned(tiers, &mut inventory).await;
        let now = SystemClock.now().to_rfc3339();
        let found: BTreeSet<StepId> = inventory.steps.iter().map(|step| step.id).collect();
        let mut removed = self.removed.clone();
        if inventory.failed.is_empty() {
            let gone = ids.difference(&found);
            removed.extend(gone.map(|id| RemovedStep { id: *id, noticed_at: now.clone() }));
            removed.drain(..removed.len().saturating_sub(MAX_REMOVED));
            *ids = found;
        }
        let time_warnings = inventory.warnings();
        let failed = FailedTier::all(&inventory.failed);
        let all = inventory.steps.len();
        let mut steps: Vec<StepView> =
            inventory.steps.into_iter().take(MAX_STEPS).map(StepView::of).collect();
        let retention = retention(tiers, &mut steps).await?;
        let (restore, restore_error) = match would_restore(tiers).await {
            Ok(restore) => (restore, None),
            Err(error) => (None, Some(ErrorInfo::from(&error))),
        };
        Ok(Self {
            listed_at: Some(now),
            remotes: tiers.remotes.iter().map(|remote| remote.name().to_string()).collect(),
            selective: tiers
                .remotes
                .iter()
                .filter(|remote| remote.settings.selection.is_some())
                .map(|remote| remote.name().to_string())
                .collect(),
            omitted_steps: (all - steps.len()) as u64,
            steps,
            removed,
            retention,
            restore,
            restore_error,
            time_warnings,
            failed,
        })
    }
}

impl StepView {
    fn of(step: ListedStep) -> Self {
        Self {
            id: step.id,
            written_at: step.written_at.map(Timestamp::to_rfc3339),
            bytes: step.bytes,
            local: step.local,
            remotes: step.remotes,
            incomplete: step.incomplete,
            planned: step.planned,
            pinned: step.pinned,
            abandoned: step.abandoned,
            metrics: step.metrics,
            kept: Vec::new(),
            faults: step.faults,
        }
    }
}

/// Plans retention on each tier, and notes in the newest steps why they are kept.
async fn retention(tiers: &Tiers, steps: &mut [StepView]) -> Result<Vec<NextDeletions>> {
    let planned = execute(tiers, &PruneArguments::dry_run(KeepArguments::default())).await?;
    let mut next = Vec::with_capacity(planned.len());
    let mut explained = BTreeSet::new();
    for (tier, planned) in planned {
        let mut deletions = NextDeletions {
            tier: tier.to_string(),
            steps: 0,
            freed_bytes: 0,
            deletions: Vec::new(),
            refusal: None,
            error: planned.as_ref().err().map(ErrorInfo::from),
        };
        if let Ok(report) = planned {
            let dropped = report.plan.deletions();
            deletions.steps = dropped.len() as u64;
            deletions.freed_bytes = report.plan.freed_bytes;
            let first = dropped.iter().take(MAX_DELETIONS);
            let first = first.map(|drop| NextDeletion { id: drop.id, reasons: drop.reasons.clone() });
            deletions.deletions = first.collect();
            // From a tier without steps there is nothing to remove.
            let refusal = report.plan.refusal.as_ref();
            let refusal = refusal.filter(|refusal| refusal.kind != RefusalKind::ListingEmpty);
            deletions.refusal = refusal.map(|refusal| refusal.reason.clone());
            let decisions: BTreeMap<StepId, &Decision> =
                report.plan.decisions.iter().map(|decision| (decision.id, decision)).collect();
            for step in steps.iter_mut().take(MAX_REASONS) {
                // The first tier that holds a step says why it stays.
                let Some(decision) = decisions.get(&step.id).filter(|_| explained.insert(step.id)) else {
                    continue;
                };
                if decision.verdict == Verdict::Keep {
                    step.kept.clone_from(&decision.reasons);
                }
            }
        }
        next.push(deletions);
    }
    Ok(next)
}

/// Returns what a restore on this node would take; `None` if there is no step.
async fn would_restore(tiers: &Tiers) -> Result<Option<RestoreView>> {
    // Nothing is put there: a plan does not compare the target.
    let target = Target::As(PathBuf::from("step"));
    let request = RestoreRequest {
        demoted: demoted_steps(tiers).await,
        ..RestoreRequest::newest(tiers.run_name().clone(), target)
    };
    match plan(&restore_context(tiers), &request).await {
        Ok(plan) => Ok(Some(RestoreView {
            id: plan.id,
            tiers: plan.sources.iter().map(ToString::to_string).collect(),
            bytes: plan.data_bytes(),
            skipped: plan.skipped,
        })),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::clone(&error)),
    }
}

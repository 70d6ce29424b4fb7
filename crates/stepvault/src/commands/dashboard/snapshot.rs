//! What the page shows: the documents of `status`, `list`, `prune --dry-run` and `restore --plan` for each run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use stepvault_core::document::{ErrorInfo, StepIdMembers};
use stepvault_core::forecast::{STEPS_THAT_COUNT, Taken, next_step};
use stepvault_core::retention::{Decision, RefusalKind, Verdict};
use stepvault_core::starts::{Start, demoted};
use stepvault_core::{Clock as _, Error, ErrorKind, Result, RunName, StepId, Timestamp};
use stepvault_engine::RunRemote;
use stepvault_engine::restore::{RestoreRequest, SkippedStep, Target, plan};
use stepvault_local::SystemClock;
use tokio::time::Instant;

use crate::commands::inventory::{
    FailedTier, IncompleteOn, Inventory, ListedStep, LocalState, MAX_REMOVED, PlannedOn,
};
use crate::commands::list::mark_planned;
use crate::commands::prune::{PruneArguments, execute};
use crate::commands::restore::restore_context;
use crate::commands::runs::{ListedRun, RunsDocument};
use crate::commands::starts::{StartStatus, known_starts, latest_of_nodes};
use crate::commands::status::{self, StatusDocument};
use crate::context::{DefaultVault, Settings, Tiers, open_vault};
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
/// Number of parts whose commits stay in memory, over all runs, each of some 150 bytes. Commits that find no room are read
/// at each listing.
const MAX_PARTS: usize = 1 << 20;
/// What retention removes and a restore takes is planned anew so often, even if nothing has changed but the time.
const PLAN_INTERVAL: Duration = Duration::from_mins(2);

/// Everything that the page shows.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct DashboardDocument {
    #[serde(flatten)]
    pub(super) overview: Overview,
    /// The configured runs, or those of the remotes; at most 32, the ones written last.
    pub(super) runs: Vec<RunView>,
}

/// What concerns no single run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Overview {
    /// The number of this content; each content of a process has a higher one than those before it.
    pub(super) version: u64,
    /// When it was made, in UTC.
    at: String,
    /// Seconds between two listings of the remotes while somebody watches.
    refresh_seconds: u64,
    /// Runs on the remotes that are not shown in detail.
    others: Vec<ListedRun>,
    /// Remotes whose runs could not be listed.
    failed: Vec<FailedTier>,
}

impl Report for DashboardDocument {
    fn human(&self) -> String {
        self.runs.iter().map(|run| run.state.run.as_str()).join("\n")
    }
}

/// One run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunView {
    #[serde(flatten)]
    pub(super) state: RunState,
    /// The steps on all tiers, the newest first, at most 10,000.
    #[serde(serialize_with = "serialize_steps")]
    pub(super) steps: Arc<Vec<StepView>>,
}

/// All of a run but its steps.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunState {
    /// The run.
    pub(super) run: String,
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
    /// Number of older steps that are left out.
    omitted_steps: u64,
    /// Steps that were removed, by the records of the remotes and by what was seen to go; the newest first, at most 200.
    removed: Vec<RemovedStep>,
    /// What retention removes next, by tier.
    retention: Vec<NextDeletions>,
    /// What a restore would take; null if it would take nothing.
    restore: Option<RestoreView>,
    /// Why a restore would fail; null if it would not.
    restore_error: Option<ErrorInfo>,
    /// The latest start of each node, by the records on the remotes and of the vault; by name.
    nodes: Vec<StartStatus>,
    /// Times that contradict the order of the steps, as text.
    time_warnings: Vec<String>,
    /// Tiers that could not be listed.
    failed: Vec<FailedTier>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(super) struct StepView {
    #[serde(flatten, with = "StepIdMembers")]
    pub(super) id: StepId,
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

/// A step that was removed.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
struct RemovedStep {
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// The remotes that have a record of its removal. It may be on other tiers still.
    remotes: Vec<String>,
    /// When no tier had it any more, in UTC; null if that was before the page was watched, or a tier has it.
    noticed_at: Option<String>,
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
    version: u64,
    runs: BTreeMap<RunName, KnownRun>,
    others: Option<(Instant, RunsDocument)>,
}

/// What is known of a run.
#[derive(Debug, Default)]
struct KnownRun {
    tiers: Option<Tiers>,
    listing: Listing,
    steps: Arc<Vec<StepView>>,
    listed: Option<Instant>,
    /// When retention and a restore were planned.
    planned: Option<Instant>,
}

impl Collector {
    pub(super) fn new(settings: Settings, refresh: Duration) -> Self {
        Self { settings, refresh, version: 0, runs: BTreeMap::new(), others: None }
    }

    /// Returns the present state. The remotes are listed at most once in each interval.
    pub(super) async fn collect(&mut self) -> DashboardDocument {
        let (names, others, failed) = self.names().await;
        self.runs.retain(|name, _| names.contains(name));
        let max_parts = MAX_PARTS / names.len().max(1);
        let mut runs = Vec::with_capacity(names.len());
        for name in names {
            let known = self.runs.entry(name.clone()).or_default();
            runs.push(known.view(&self.settings, &name, self.refresh, max_parts).await);
        }
        self.version += 1;
        let overview = Overview {
            version: self.version,
            at: SystemClock.now().to_rfc3339(),
            refresh_seconds: self.refresh.as_secs(),
            others,
            failed,
        };
        DashboardDocument { overview, runs }
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

fn serialize_steps<S: Serializer>(
    steps: &Arc<Vec<StepView>>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    steps.as_ref().serialize(serializer)
}

/// Warnings are shown on the page.
fn quiet() -> Output {
    Output::new(false, true)
}

impl KnownRun {
    async fn view(
        &mut self,
        settings: &Settings,
        run: &RunName,
        refresh: Duration,
        max_parts: usize,
    ) -> RunView {
        let mut state = RunState {
            run: run.to_string(),
            error: None,
            status: None,
            listing: Listing::default(),
            next_step_bytes: None,
        };
        let looked = async {
            self.open(settings, run, max_parts).await?;
            self.look(refresh, &mut state).await
        };
        if let Err(error) = looked.await {
            state.error = Some(ErrorInfo::from(&error));
            // They are opened anew.
            self.tiers = None;
        }
        state.listing = self.listing.clone();
        let newest = self.steps.iter().take(STEPS_THAT_COUNT).rev();
        let sizes: Vec<Taken> =
            newest.map(|step| Taken { bytes: step.bytes.unwrap_or_default(), ..Taken::default() }).collect();
        state.next_step_bytes = next_step(&sizes).map(|forecast| forecast.taken.bytes);
        RunView { state, steps: Arc::clone(&self.steps) }
    }

    /// Opens the tiers, and once more when there is a vault. They stay open: the remotes remember commits.
    async fn open(&mut self, settings: &Settings, run: &RunName, max_parts: usize) -> Result<()> {
        let is_open = match &self.tiers {
            None => false,
            Some(tiers) if tiers.vault.is_some() => true,
            Some(_) => open_vault(settings, DefaultVault::here()).await?.is_none(),
        };
        if is_open {
            return Ok(());
        }
        let settings = settings.clone().with_run(run.clone());
        let mut opened = Tiers::open(&settings, DefaultVault::here(), &quiet()).await?;
        opened.require_any()?;
        let remotes = std::mem::take(&mut opened.remotes).into_iter();
        let max_parts = max_parts / remotes.len().max(1);
        opened.remotes = remotes.map(|remote| remote.remembering_commits(max_parts)).collect();
        self.tiers = Some(opened);
        Ok(())
    }

    async fn look(&mut self, refresh: Duration, state: &mut RunState) -> Result<()> {
        let Some(tiers) = &self.tiers else { return Ok(()) };
        if let Some(vault) = &tiers.vault {
            state.status = Some(status::document(tiers, vault).await?.0);
        }
        if self.listed.is_some_and(|at| at.elapsed() < refresh) {
            return Ok(());
        }
        let mut inventory = Inventory::gather(tiers, None).await?;
        mark_planned(tiers, &mut inventory).await;
        self.listing.note(tiers, &inventory, &self.steps);
        let mut steps: Vec<StepView> =
            inventory.steps.into_iter().take(MAX_STEPS).map(StepView::of).collect();
        for (step, known) in steps.iter_mut().zip(&*self.steps) {
            step.kept.clone_from(&known.kept);
        }
        let is_planned = self.planned.is_some_and(|at| at.elapsed() < PLAN_INTERVAL);
        if !is_planned || steps != *self.steps {
            self.listing.plan(tiers, &mut steps).await?;
            self.planned = Some(Instant::now());
        }
        // Those that are the same are not sent again.
        if steps != *self.steps {
            self.steps = Arc::new(steps);
        }
        self.listed = Some(Instant::now());
        Ok(())
    }
}

impl Listing {
    /// Notes what was listed. `known` are the steps at the last time.
    fn note(&mut self, tiers: &Tiers, inventory: &Inventory, known: &[StepView]) {
        let now = SystemClock.now().to_rfc3339();
        let names = |remotes: Vec<&RunRemote>| {
            remotes.into_iter().map(|remote| remote.name().to_string()).collect::<Vec<_>>()
        };
        let selective = tiers.remotes.iter().filter(|remote| remote.settings.is_selective());
        self.selective = names(selective.collect());
        self.remotes = names(tiers.remotes.iter().collect());
        self.removed = self.removed(inventory, known, &now);
        self.omitted_steps = inventory.steps.len().saturating_sub(MAX_STEPS) as u64;
        self.time_warnings = inventory.warnings();
        self.failed = FailedTier::all(&inventory.failed);
        self.listed_at = Some(now);
    }

    /// Returns the steps of which the remotes have a record of removal, and those that no tier holds any more.
    fn removed(&self, inventory: &Inventory, known: &[StepView], now: &str) -> Vec<RemovedStep> {
        let found: BTreeSet<StepId> = inventory.steps.iter().map(|step| step.id).collect();
        let mut noticed: BTreeMap<StepId, String> =
            self.removed.iter().filter_map(|step| Some((step.id, step.noticed_at.clone()?))).collect();
        // A tier that cannot be listed may hold a step that no other one does.
        if inventory.failed.is_empty() {
            noticed.extend(known.iter().map(|step| (step.id, now.to_owned())));
        }
        noticed.retain(|id, _| !found.contains(id));
        let ids: BTreeSet<StepId> = inventory.removed.keys().chain(noticed.keys()).copied().collect();
        let step = |id: StepId| RemovedStep {
            id,
            remotes: inventory.removed.get(&id).cloned().unwrap_or_default(),
            noticed_at: noticed.get(&id).cloned(),
        };
        ids.into_iter().rev().take(MAX_REMOVED).map(step).collect()
    }

    /// Plans from what the tiers hold, and notes in the newest steps why they are kept.
    async fn plan(&mut self, tiers: &Tiers, steps: &mut [StepView]) -> Result<()> {
        for step in &mut *steps {
            step.kept.clear();
        }
        self.retention = retention(tiers, steps).await?;
        let starts = known_starts(tiers).await;
        self.nodes = latest_of_nodes(&starts);
        (self.restore, self.restore_error) = match would_restore(tiers, &starts).await {
            Ok(restore) => (restore, None),
            Err(error) => (None, Some(ErrorInfo::from(&error))),
        };
        Ok(())
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
    let planned = execute(tiers, &PruneArguments::overview()).await?;
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
async fn would_restore(tiers: &Tiers, starts: &[Start]) -> Result<Option<RestoreView>> {
    // Nothing is put there: a plan does not compare the target.
    let target = Target::As(PathBuf::from("step"));
    let rule = tiers.settings.config.restart.demotion;
    let request = RestoreRequest {
        demoted: if rule.crashes == 0 { BTreeMap::new() } else { demoted(starts, rule) },
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

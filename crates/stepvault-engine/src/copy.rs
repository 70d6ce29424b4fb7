//! Copies the steps of a run from one remote to another. What is copied is a plan, which is data; each step is then uploaded
//! with the records that the source has of it, so that it is the same step on both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::{FutureExt as _, StreamExt as _, stream};
use stepvault_core::commit::Commit;
use stepvault_core::file_parts::MINIMUM_PART_SIZE_BYTES;
use stepvault_core::launch::LaunchRecord;
use stepvault_core::records::{Pin, Tombstone, VaultMarker};
use stepvault_core::retention::{KeepRules, RetentionPlan, Selection, SelectionState, Verdict};
use stepvault_core::{Attempt, DigestAlgorithm, Error, ErrorKind, Observer, Result, Step, StepId, Timestamp};
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;
use stepvault_remote::store::ArchivePlace;

use crate::blocking::blocking;
use crate::launches::{launch_attempts, launch_records};
use crate::memory::MemoryBudget;
use crate::outage::is_outage;
use crate::prune::{RemotePrune, plan_remote};
use crate::restore::remember_remotes;
use crate::tier::catalog::{FoundCommit, pin, pins};
use crate::tier::leases::HeldLease;
use crate::tier::measured::{recall_concurrency, remember_concurrency};
use crate::tier::removed::{RemovedSteps, local_now, read_tombstone, removal_record, removed_steps};
use crate::tier::run_remote::RunRemote;
use crate::tier::selective::states_of;
use crate::tier::step_state::visible_commits;
use crate::upload::{CommonStore, SourceStep, UploadSession, of_side, of_source};
use crate::verify::steps_at_once;

/// Maximum number of steps that are copied concurrently. They share the memory budget and the limits of both stores.
const STEPS_AT_ONCE: usize = 4;

/// The two sides of a copy, and what is to be copied.
#[derive(Debug, Clone)]
pub struct CopyContext {
    /// The run where it is.
    pub from: RunRemote,
    /// The run where it is copied to.
    pub to: RunRemote,
    /// The store of both, if they are in one that copies.
    pub common: Option<CommonStore>,
    /// Memory for the bytes in transfer.
    pub budget: MemoryBudget,
    /// Receives progress and warnings.
    pub observer: Arc<dyn Observer>,
    /// Which steps are copied.
    pub choice: CopyChoice,
}

/// Which steps of the source are copied.
#[derive(Debug, Clone)]
pub enum CopyChoice {
    /// All.
    All,
    /// Those with these numbers, in all their attempts and revisions.
    Numbers(BTreeSet<Step>),
    /// Those that a prune by these rules would keep.
    Kept(KeepRules),
    /// Those that a selective remote waits for, once each is old enough.
    Selected(Selection),
}

impl CopyChoice {
    /// Returns the numbers of the steps that were named.
    fn numbers(&self) -> Option<&BTreeSet<Step>> {
        match self {
            Self::Numbers(numbers) => Some(numbers),
            _ => None,
        }
    }
}

/// What is copied.
#[derive(Debug)]
pub struct CopyPlan {
    /// The steps of the source, the newest first.
    pub steps: Vec<PlannedCopy>,
    marker: VaultMarker,
    /// The source's launch records.
    launches: Vec<LaunchRecord>,
    /// The steps that are pinned on the source.
    pinned: BTreeSet<StepId>,
    /// How many steps are copied concurrently.
    at_once: usize,
}

/// What becomes of one step.
#[derive(Debug, Clone)]
pub struct PlannedCopy {
    /// The step.
    pub id: StepId,
    /// Its name; empty if it is not known.
    pub name: String,
    /// Number of its files.
    pub files: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Number of its parts.
    parts: u64,
    /// The algorithm of its digests.
    digest: DigestAlgorithm,
    /// Whether it is copied.
    pub decision: CopyDecision,
}

/// Whether a step is copied.
#[derive(Debug, Clone)]
pub enum CopyDecision {
    /// It is.
    Copy,
    /// The target has the same step.
    Present,
    /// It is selected, and may be copied from this time on.
    Wait(Timestamp),
    /// It is left out, for this reason.
    Skip(String),
    /// It cannot be copied.
    Fail(Error),
}

/// What became of a step.
#[derive(Debug)]
pub struct StepCopy {
    /// The step, as it was planned.
    pub step: PlannedCopy,
    /// The outcome.
    pub result: Result<CopyOutcome>,
}

/// What became of a step that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyOutcome {
    /// It is durable on the target now.
    Copied,
    /// It was there already.
    Present,
    /// It is selected, and may be copied from this time on.
    Planned(Timestamp),
    /// It was left out, for this reason.
    Skipped(String),
}

/// The result of a copy.
#[derive(Debug, Default)]
pub struct CopyReport {
    /// The steps, in the order of the plan.
    pub steps: Vec<StepCopy>,
    /// Bytes that the store copied itself.
    pub copied_bytes: u64,
    /// Bytes that were read from the vault instead of the source.
    pub vault_bytes: u64,
}

impl PlannedCopy {
    fn new(id: StepId, decision: CopyDecision) -> Self {
        let (files, bytes, parts) = (0, 0, 0);
        Self { id, name: String::new(), files, bytes, parts, digest: DigestAlgorithm::default(), decision }
    }

    fn of(commit: &Commit, decision: CopyDecision) -> Self {
        Self {
            name: commit.name.clone(),
            files: commit.file_count(),
            bytes: commit.data_bytes(),
            parts: commit.parts.len() as u64,
            digest: commit.parts.first().map(|part| part.digest).unwrap_or_default(),
            ..Self::new(commit.id, decision)
        }
    }

    /// Whether it is copied.
    pub fn is_copied(&self) -> bool {
        matches!(self.decision, CopyDecision::Copy)
    }

    /// Returns how many requests its copy sends to the source and to the target, at most, if nothing is retried or read
    /// back and the store copies nothing itself.
    pub fn requests(&self) -> (u64, u64) {
        let full_pieces = self.bytes / MINIMUM_PART_SIZE_BYTES;
        let (pieces, large_files) = (self.files + full_pieces, self.files.min(full_pieces));
        // On the source a lease, two looks for a tombstone, commit and claim; on the target the same looks, a claim, two
        // listings, the commit. A large file is begun, completed and looked at.
        (pieces + self.parts + 9, pieces + 3 * large_files + self.parts + 11)
    }
}

impl CopyDecision {
    /// Returns what a copy reports of the step if nothing fails.
    fn outcome(&self) -> Result<CopyOutcome> {
        match self {
            Self::Copy => Ok(CopyOutcome::Copied),
            Self::Present => Ok(CopyOutcome::Present),
            Self::Wait(due_at) => Ok(CopyOutcome::Planned(*due_at)),
            Self::Skip(reason) => Ok(CopyOutcome::Skipped(reason.clone())),
            Self::Fail(error) => Err(error.clone()),
        }
    }
}

impl CopyContext {
    /// Prepares the target for writing, before [`plan_copy`]: creates its directory, if it is one that this vault has never
    /// seen and only its last component is missing.
    ///
    /// # Errors
    /// When it cannot be created.
    pub async fn begin(&self, vault: &Vault) -> Result<()> {
        let begun = self.to.begin(vault, ArchivePlace::Anywhere).await;
        begun.map(drop).map_err(|error| of_target(&self.to, error))
    }
}

impl CopyPlan {
    /// Whether some step is copied.
    pub fn copies_something(&self) -> bool {
        self.steps.iter().any(PlannedCopy::is_copied)
    }

    /// Returns what a copy would report if nothing failed.
    pub fn as_report(self) -> CopyReport {
        let steps = self.steps.into_iter().map(|step| StepCopy { result: step.decision.outcome(), step });
        CopyReport { steps: steps.collect(), ..CopyReport::default() }
    }
}

/// Decides which steps are copied. Reads commits of both remotes, and changes nothing.
///
/// # Errors
/// [`ErrorKind::NotFound`] when the source does not have the run, or a wanted step; [`ErrorKind::Conflict`] when the target
/// has another run of that name; [`ErrorKind::Refused`] when a side lists steps and has no marker, or the rules keep nothing.
pub async fn plan_copy(context: &CopyContext) -> Result<CopyPlan> {
    let CopyContext { from, to, .. } = context;
    let (source, target) = tokio::join!(Side::read(from), Side::read(to));
    let source = source.map_err(|error| of_source(from, error))?;
    let target = target.map_err(|error| of_target(to, error))?;
    let marker = match &source.marker {
        Some(marker) if !source.commits.is_empty() => marker.clone(),
        _ => {
            return Err(Error::new(ErrorKind::NotFound, "the source has no step of the run")
                .on(format!("{} ({})", from.name(), from.describe(from.keys.run().as_str())))
                .hint("run 'stepvault runs' to see the runs of a remote"));
        }
    };
    ensure_same_run(context, &source, &target)?;
    let ruled = match &context.choice {
        CopyChoice::All | CopyChoice::Numbers(_) => Ruled::All,
        CopyChoice::Kept(rules) => Ruled::Kept(retention_of(context, rules.clone()).await?),
        CopyChoice::Selected(selection) => {
            let now = Timestamp::from(local_now());
            let on_target = (&target.commits, &target.removed);
            Ruled::Selected(states_of(from, &source.commits, selection, on_target, now), now)
        }
    };
    let numbers = context.choice.numbers();
    let is_wanted = |id: StepId| numbers.is_none_or(|numbers| numbers.contains(&id.step));
    let mut steps: Vec<PlannedCopy> = Vec::new();
    for (id, found) in source.commits.iter().rev().filter(|(id, _)| is_wanted(**id)) {
        steps.push(match &found.commit {
            Ok(commit) => PlannedCopy::of(commit, decide(context, commit, &target, &ruled)),
            Err(error) => PlannedCopy::new(*id, CopyDecision::Fail(of_source(from, error.clone()))),
        });
    }
    for step in numbers.into_iter().flatten() {
        if steps.iter().all(|planned| planned.id.step != *step) {
            return Err(no_such_step(from, *step, &source.removed));
        }
    }
    let commits = source.commits.values().filter_map(|found| found.commit.as_deref().ok());
    Ok(CopyPlan {
        // Their lists of files are in memory at once.
        at_once: steps_at_once(commits).min(STEPS_AT_ONCE),
        steps,
        marker,
        launches: source.launches.into_values().collect(),
        pinned: source.pinned,
    })
}

fn no_such_step(from: &RunRemote, step: Step, removed: &RemovedSteps) -> Error {
    let is_removed = removed.tombstoned.iter().any(|id| id.step == step);
    let why = if is_removed { "it was removed from it" } else { "it is not committed on it" };
    Error::new(ErrorKind::NotFound, format!("cannot copy step {step}"))
        .on(from.name())
        .because(why)
        .hint("run 'stepvault list' to see the steps")
}

/// What one side has of the run.
struct Side {
    marker: Option<VaultMarker>,
    commits: BTreeMap<StepId, FoundCommit>,
    removed: RemovedSteps,
    launches: BTreeMap<Attempt, LaunchRecord>,
    pinned: BTreeSet<StepId>,
}

impl Side {
    async fn read(remote: &RunRemote) -> Result<Self> {
        let (marker, commits, removed, launches, pinned) = tokio::try_join!(
            remote.marker(),
            visible_commits(remote),
            removed_steps(remote),
            launches(remote),
            pins(remote)
        )?;
        if marker.is_none() && !commits.is_empty() {
            return Err(Error::new(ErrorKind::Refused, "the run has no marker")
                .on(remote.describe(&remote.keys.marker()))
                .because("it lists steps, but was not begun there by stepvault")
                .hint("check the URL, and that the whole run was copied there"));
        }
        Ok(Self { marker, commits, removed, launches, pinned })
    }
}

async fn launches(remote: &RunRemote) -> Result<BTreeMap<Attempt, LaunchRecord>> {
    let records = launch_records(remote, launch_attempts(remote).await?).await?;
    Ok(records.into_iter().map(|record| (record.attempt, record)).collect())
}

/// Checks that the target has no other run of that name.
///
/// A run has no name but its own, so what it holds decides: the same marker, as a copy writes it; otherwise a step or a
/// launch that both have. Records of the same launch that differ are of two runs.
fn ensure_same_run(context: &CopyContext, source: &Side, target: &Side) -> Result<()> {
    let CopyContext { from, to, .. } = context;
    let other = |why: String| {
        Err(Error::new(ErrorKind::Conflict, "the target has another run of that name")
            .on(format!("{} ({})", to.name(), to.describe(to.keys.run().as_str())))
            .because(why)
            .hint("copy to another prefix"))
    };
    let mut is_same = source.marker == target.marker || target.commits.is_empty();
    for (attempt, launch) in &source.launches {
        match target.launches.get(attempt) {
            Some(known) if known.launch != launch.launch => {
                return other(format!(
                    "attempt {attempt} is of launch '{}' there, and of '{}' on {}",
                    known.launch,
                    launch.launch,
                    from.name()
                ));
            }
            Some(_) => is_same = true,
            None => {}
        }
    }
    let commit_of =
        |side: &Side, id: &StepId| side.commits.get(id).and_then(|found| found.commit.clone().ok());
    is_same |= source.commits.keys().any(|id| {
        let (one, two) = (commit_of(source, id), commit_of(target, id));
        one.is_some() && one == two
    });
    if is_same { Ok(()) } else { other(format!("none of its steps is one of those on {}", from.name())) }
}

/// What rules say of the source's steps.
enum Ruled {
    All,
    Kept(RetentionPlan),
    Selected(BTreeMap<StepId, SelectionState>, Timestamp),
}

impl Ruled {
    /// Returns why a step is not copied now; `None` if it may be.
    fn leaves_out(&self, id: StepId) -> Option<CopyDecision> {
        let skip = |reason: &str| Some(CopyDecision::Skip(reason.to_owned()));
        match self {
            Self::All => None,
            Self::Kept(plan) => {
                let decision = plan.decision(id).filter(|decision| decision.verdict != Verdict::Keep)?;
                skip(&decision.reasons.join("; "))
            }
            Self::Selected(states, now) => match states.get(&id) {
                Some(SelectionState::Copied) => Some(CopyDecision::Present),
                Some(SelectionState::Planned { due_at }) if due_at > now => Some(CopyDecision::Wait(*due_at)),
                Some(SelectionState::Planned { .. } | SelectionState::Removed) => None,
                Some(SelectionState::NotSelected) | None => skip("not selected"),
            },
        }
    }
}

/// Decides what becomes of a step that the source has.
fn decide(context: &CopyContext, commit: &Commit, target: &Side, ruled: &Ruled) -> CopyDecision {
    let (id, to) = (commit.id, &context.to);
    if let (Ruled::Selected(..), Some(decision)) = (ruled, ruled.leaves_out(id)) {
        return decision;
    }
    match target.commits.get(&id).map(|found| &found.commit) {
        Some(Ok(known)) if **known == *commit => return CopyDecision::Present,
        // On the target it has other records, which its manifests tell.
        Some(Ok(_)) if commit.is_imported() => return CopyDecision::Copy,
        Some(Ok(_)) => {
            return CopyDecision::Fail(conflict(to, id).because("it has other files there").name_taken());
        }
        Some(Err(error)) => return CopyDecision::Fail(of_target(to, error.clone())),
        None => {}
    }
    if target.removed.contains(id) {
        let reason = format!("it was removed from {}, and its identity is never reused there", to.name());
        return if context.choice.numbers().is_none() {
            CopyDecision::Skip(reason)
        } else {
            CopyDecision::Fail(
                Error::new(ErrorKind::Refused, format!("cannot copy {id}")).on(to.name()).because(reason),
            )
        };
    }
    ruled.leaves_out(id).unwrap_or(CopyDecision::Copy)
}

fn conflict(to: &RunRemote, id: StepId) -> Error {
    Error::new(ErrorKind::Conflict, format!("cannot copy {id}: the target has another step of that name"))
        .on(to.describe(&to.keys.commit(id)))
        .hint("copy to another prefix, or remove that step there first")
}

/// Returns what rules would keep of the source's steps.
async fn retention_of(context: &CopyContext, rules: KeepRules) -> Result<RetentionPlan> {
    let from = &context.from;
    let prune = RemotePrune {
        remote: from.clone(),
        rules,
        maximum_deletions: None,
        manages_imported: false,
        selective: Vec::new(),
        pinned_elsewhere: BTreeSet::new(),
        observer: Arc::clone(&context.observer),
    };
    let plan = plan_remote(&prune, true).await.map_err(|error| of_source(from, error))?;
    match &plan.refusal {
        None => Ok(plan),
        Some(refusal) => Err(Error::new(ErrorKind::Refused, "cannot apply the keep rules to the source")
            .on(from.name())
            .because(&refusal.reason)
            .hint("copy without --keep-rules")),
    }
}

fn of_target(to: &RunRemote, error: Error) -> Error {
    of_side("cannot use the target", to, error)
}

/// Copies what the plan says, a few steps at once, the newest first. After an error that other steps would meet as well, no
/// further one begins. A step that is removed from the source meanwhile is skipped. `vault` holds the journals of unfinished
/// steps.
///
/// # Invariants
/// As for an upload: S1, S2, S3 and S9 on the target. On the source a lease keeps each step while it is read (S4).
///
/// # Errors
/// When the target cannot be opened for writing, or another process copies the run with this vault. What becomes of each
/// step is part of the result.
pub async fn copy_steps(context: &CopyContext, vault: &Vault, plan: CopyPlan) -> Result<CopyReport> {
    let CopyContext { from, to, .. } = context;
    let (locked, run, name) = (vault.clone(), from.keys.run().clone(), to.name().clone());
    let _lock = blocking(move || locked.lock_copies(&run, &name)).await?;
    remember_remotes(vault, std::slice::from_ref(from)).await;
    recall_concurrency(from, vault).await;
    let algorithm = plan.steps.iter().find(|step| step.is_copied()).map(|step| step.digest);
    let has_stopped = AtomicBool::new(false);
    // Opened while the records of the first steps are read: both take many requests, one after another.
    let session = async {
        let Some(algorithm) = algorithm else { return Ok(None) };
        let opened = open(context, vault, &plan, algorithm).await.map(Some);
        has_stopped.fetch_or(opened.is_err(), Ordering::Relaxed);
        opened.map_err(|error| of_target(to, error))
    };
    let session = session.boxed().shared();
    let one = |step: PlannedCopy| {
        let (session, has_stopped, pinned) = (session.clone(), &has_stopped, &plan.pinned);
        async move {
            let result = copy_or_report(context, session, &step, has_stopped).await;
            let is_there = matches!(result, Ok(CopyOutcome::Copied | CopyOutcome::Present));
            let result = match result {
                Ok(outcome) if is_there && pinned.contains(&step.id) => {
                    copy_pin(context, step.id).await.map(|()| outcome)
                }
                result => result,
            };
            StepCopy { step, result }
        }
    };
    let steps = stream::iter(plan.steps.iter().cloned()).map(one).buffered(plan.at_once);
    let (session, steps) = tokio::join!(session.clone(), steps.collect());
    remember_concurrency(from, vault).await;
    let session = session?;
    let copied_bytes = session.as_ref().map_or(0, UploadSession::copied_bytes);
    let vault_bytes = session.as_ref().map_or(0, UploadSession::vault_bytes);
    Ok(CopyReport { steps, copied_bytes, vault_bytes })
}

/// Opens the target for uploads: a new one gets the source's marker, and the launches of the run.
async fn open(
    context: &CopyContext,
    vault: &Vault,
    plan: &CopyPlan,
    algorithm: DigestAlgorithm,
) -> Result<UploadSession> {
    let to = &context.to;
    let marker = to.ensure_marker_or(vault, plan.marker.clone()).await?;
    for launch in &plan.launches {
        to.create_record(&to.keys.launch(launch.attempt), launch).await?;
    }
    let (vault, budget, observer) = (vault.clone(), context.budget.clone(), Arc::clone(&context.observer));
    let session = UploadSession::open_marked(to.clone(), marker, vault, budget, observer, algorithm).await?;
    Ok(session.with_common_store(context.common.clone()))
}

async fn copy_or_report(
    context: &CopyContext,
    session: impl Future<Output = Result<Option<UploadSession>>>,
    step: &PlannedCopy,
    has_stopped: &AtomicBool,
) -> Result<CopyOutcome> {
    if !step.is_copied() {
        return step.decision.outcome();
    }
    if has_stopped.load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::Interrupted, format!("did not begin to copy {}", step.id))
            .because("the copy of another step failed for a cause that would end this one too")
            .hint("run the same command again: it continues with what is left"));
    }
    let copied = copy_step(context, session, step.id).await;
    if copied.as_ref().is_err_and(is_common_to_all) {
        has_stopped.store(true, Ordering::Relaxed);
    }
    copied
}

/// Whether an error would end the copy of any other step as well.
fn is_common_to_all(error: &Error) -> bool {
    is_outage(error) || matches!(error.kind(), ErrorKind::Usage | ErrorKind::NoSpace)
}

async fn copy_step(
    context: &CopyContext,
    session: impl Future<Output = Result<Option<UploadSession>>>,
    id: StepId,
) -> Result<CopyOutcome> {
    let CopyContext { from, to, observer, .. } = context;
    let lease = match HeldLease::on_step(from, id).await {
        Ok(lease) => Some(lease),
        Err(error) => {
            observer.warn(format!("{}: copying {id} without a lease: {error}", from.name()));
            None
        }
    };
    let copied: Result<CopyOutcome> = async {
        let step = SourceStep::read(from, id).await.map_err(|error| of_source(from, error))?;
        let Some(session) = session.await? else { return Ok(CopyOutcome::Present) };
        let step = step.with_sealed(sealed_step(context, &session, id).await);
        session.copy(Arc::new(step)).await.map(|_| CopyOutcome::Copied)
    }
    .await;
    if let Some(lease) = lease {
        // Credentials that may not delete leave it to expire.
        let _ = lease.release().await;
    }
    let error = match copied {
        Ok(outcome) => return Ok(outcome),
        Err(error) => error,
    };
    if let Ok(Some(Tombstone { by_gc: true, .. })) = read_tombstone(to, id).await {
        return Err(Error::new(ErrorKind::Refused, format!("cannot copy {id}"))
            .on(to.name())
            .because(
                "gc removed its unfinished copy, which stood still for longer than gc's grace period; its identity is \
                 never reused there",
            )
            .hint("copy the run to another prefix, and give gc a longer --grace than a copy may stand still"));
    }
    // Whatever failed: of a step that is being removed, anything may be gone.
    for remote in [from, to] {
        if let Ok(Some(_)) = removal_record(remote, id).await {
            let reason = format!("it was removed from {} while it was copied", remote.name());
            return Ok(CopyOutcome::Skipped(reason));
        }
    }
    if error.kind() == ErrorKind::Conflict {
        return Err(conflict(to, id).because(error).name_taken());
    }
    Err(error)
}

/// Returns the step in the vault from which a selective remote may get its bytes. A step that cannot be read there is
/// copied from its remote.
async fn sealed_step(context: &CopyContext, session: &UploadSession, id: StepId) -> Option<SealedStep> {
    if !matches!(context.choice, CopyChoice::Selected(_)) {
        return None;
    }
    let (vault, run) = (session.vault.clone(), context.from.keys.run().clone());
    blocking(move || vault.step(&run, id)).await.ok().flatten()
}

/// Pins a step on the target as it is pinned on the source.
async fn copy_pin(context: &CopyContext, id: StepId) -> Result<()> {
    let CopyContext { from, to, .. } = context;
    let found = from.read_usable_record::<Pin>(&from.keys.pin(id)).await;
    let found = found.map_err(|error| of_source(from, error))?;
    let note = found.map(|pin| pin.note).unwrap_or_default();
    pin(to, id, &note).await.map(drop).map_err(|error| of_target(to, error))
}

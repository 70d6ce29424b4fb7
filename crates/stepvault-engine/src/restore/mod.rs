//! Restores the newest valid step.

mod agree;
mod arrival;
mod candidates;
mod demoted;
mod execute;
mod handoff;
mod part;
mod parts;
mod peek;
mod prospect;
mod resolve;
mod resuming;
mod staged_file;
mod target;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::join_all;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::ids::{Attempt, RunName, Step, StepId};
use stepvault_core::observe::{Event, Observer, Tier};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::handoff::HandoffPlan;
use stepvault_local::staging::Existing;
use stepvault_local::vault::Vault;

use crate::blocking::blocking;
use crate::memory::MemoryBudget;
use crate::run_remote::RunRemote;

pub use agree::Together;
use candidates::{Candidate, Candidates};
use demoted::LastResort;
pub use execute::Fetched;
use handoff::{HandedOver, Handoff};
pub use handoff::{HandoffOptions, MovedAside};
use part::Unfit;
pub use parts::Parts;
pub use resuming::remember_resumption;
pub use target::Target;

/// What to restore, and where.
#[derive(Debug, Clone)]
pub struct RestoreRequest {
    /// The run.
    pub run: RunName,
    /// Where to put the step.
    pub target: Target,
    /// Only this step; `None` for the newest valid one.
    pub step: Option<Step>,
    /// Only this attempt; `None` for any.
    pub attempt: Option<Attempt>,
    /// Which parts of a multi-node step to restore.
    pub parts: Parts,
    /// The nodes that restore the same step at the same time; `None` for a node that restores alone.
    pub together: Option<Together>,
    /// Whether the trainer resumes from the step. The vault then records it, because it decides the attempts of later
    /// checkpoints.
    pub resumes: bool,
    /// Globs of the files to restore; empty for all.
    pub include: Vec<String>,
    /// What to do when the target exists and differs.
    pub existing: Existing,
    /// How the trainer is made to resume from the step; `None` to only put the step in place.
    pub handoff: Option<HandoffOptions>,
    /// Steps to skip while another one is available, with the reason: the trainer crashes on them. An explicitly
    /// requested step is restored regardless.
    pub demoted: BTreeMap<StepId, String>,
    /// Whether to restore an older step when a newer one exists but cannot be read. Otherwise that is an error.
    pub allow_older: bool,
}

impl RestoreRequest {
    /// Requests the newest valid step, whole, at a path where nothing exists yet, for a node that restores alone.
    pub const fn newest(run: RunName, target: Target) -> Self {
        Self {
            run,
            target,
            step: None,
            attempt: None,
            parts: Parts::All,
            together: None,
            resumes: false,
            include: Vec::new(),
            existing: Existing::Refuse,
            handoff: None,
            demoted: BTreeMap::new(),
            allow_older: false,
        }
    }
}

/// A step that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SkippedStep {
    /// The step.
    pub step: u64,
    /// Its attempt.
    pub attempt: u32,
    /// The reasons, one for each tier.
    pub reasons: Vec<String>,
    /// Whether it may be valid: a tier that has it could not be read, and an older step was allowed.
    pub unread: bool,
}

/// The decision, before anything is done.
#[derive(Debug)]
pub struct RestoreDecision {
    /// The step that would be restored.
    pub id: StepId,
    /// Its directory or file name.
    pub name: String,
    /// Where it would be put; for a multi-path step the directory that contains its paths.
    pub path: PathBuf,
    /// The step's paths, in the order in which they appear: `path`, or those of a multi-path step.
    pub paths: Vec<PathBuf>,
    /// The directory in which the trainer looks for its steps. Paths of the handoff are relative to it.
    pub directory: PathBuf,
    /// The tiers that it would be read from, in order.
    pub sources: Vec<Tier>,
    /// Number of files, after `include`.
    pub file_count: u64,
    /// Bytes of those files.
    pub data_bytes: u64,
    /// When the newest of them was written, by the trainer's clock.
    pub written_at: Timestamp,
    /// Newer steps that were skipped, the newest first.
    pub skipped: Vec<SkippedStep>,
    /// Unreachable tiers, with the error.
    pub unreachable: Vec<(Tier, String)>,
    /// How the trainer is, or was, made to resume from the step; `None` if that was not requested, and for a partial
    /// step.
    pub handoff: Option<HandoffPlan>,
}

/// The outcome of a restore.
#[derive(Debug)]
pub struct RestoreReport {
    /// The decision that was carried out.
    pub decision: RestoreDecision,
    /// Where the bytes came from.
    pub fetched: Fetched,
    /// Whether the target already held exactly this.
    pub already_there: bool,
    /// What was moved out of the trainer's way.
    pub moved_aside: Vec<MovedAside>,
}

/// Resources that a restore uses.
#[derive(Debug, Clone)]
pub struct RestoreContext {
    /// The local tier, when there is one.
    pub vault: Option<Vault>,
    /// The remotes in the order in which they are queried.
    pub remotes: Vec<RunRemote>,
    /// Memory for parts in transfer.
    pub budget: MemoryBudget,
    /// Receives progress and warnings.
    pub observer: Arc<dyn Observer>,
}

/// Decides what a restore would do, down to readable and consistent records, and changes nothing.
pub async fn plan(context: &RestoreContext, request: &RestoreRequest) -> Result<RestoreDecision> {
    let agreed = agree::foresee(context, request).await?;
    let request = &narrowed(request, agreed)?;
    let mut candidates = Candidates::gather(context, request).await?;
    let mut skipped = Vec::new();
    let mut last_resort = LastResort::default();
    while let Some(candidate) = last_resort.next(context, request, &mut candidates, &mut skipped) {
        let records = resolve::resolve(context, request, &candidate).await?;
        if let Some(resolved) = records.groups.into_iter().next() {
            let resolved = Arc::new(resolved);
            let mut decision = decision(request, &candidates, &resolved, skipped)?;
            if let Some(handoff) = Handoff::of(context, request, &resolved)? {
                decision.handoff = Some(handoff.foresee().await?);
            }
            return Ok(decision);
        }
        skipped.push(skip(
            context,
            request,
            &candidate,
            records.reasons,
            records.unread,
        )?);
    }
    Err(nothing_left(request, &candidates, &skipped))
}

/// Restores the newest valid step, or the requested one.
///
/// # Errors
/// [`ErrorKind::NotFound`] when there is no such step; [`ErrorKind::NoneValid`] when there are steps but none is valid;
/// [`ErrorKind::Unreachable`] when no tier that has any is reachable, or a newer step could not be read and no older
/// one is allowed; [`ErrorKind::Conflict`] when the target exists and differs.
pub async fn restore(context: &RestoreContext, request: &RestoreRequest) -> Result<RestoreReport> {
    if let Some(vault) = &context.vault {
        remember_remotes(vault, &context.remotes).await;
    }
    resuming::determine_open_attempts(context, request).await;
    let agreed = agree::agree(context, request).await?;
    let step = agreed.as_ref().and_then(|agreed| agreed.step);
    let restored = restore_one(context, &narrowed(request, agreed)?).await;
    if let Ok(report) = &restored {
        resuming::remember(context, request, &report.decision).await;
    }
    match (&restored, step) {
        (Err(error), Some(id)) if matches!(error.kind(), ErrorKind::NoneValid | ErrorKind::NotFound) => {
            agree::call_unfit(context, request, id, &[error.to_string()]).await;
            Err(error
                .duplicate()
                .hint("restart the job on all nodes: they had agreed on this step, and will agree on the previous one"))
        }
        _ => restored,
    }
}

/// Records in `vault` which vaults the remotes hold, so that this node notices when one is later unmounted or emptied.
/// Unreachable remotes are not recorded.
pub async fn remember_remotes(vault: &Vault, remotes: &[RunRemote]) {
    let seen = join_all(remotes.iter().map(|remote| remote.remember(vault))).await;
    for error in seen.into_iter().filter_map(std::result::Result::err) {
        // An unreachable remote is reported when its steps are listed.
        tracing::debug!(%error, "cannot record a remote's marker in the vault");
    }
}

/// Returns the request narrowed to what the nodes agreed on.
///
/// # Errors
/// [`ErrorKind::NotFound`] when they agreed that there is nothing to resume from.
fn narrowed(request: &RestoreRequest, agreed: Option<agree::Agreed>) -> Result<RestoreRequest> {
    let mut narrowed = request.clone();
    let Some(agreed) = agreed else {
        return Ok(narrowed);
    };
    let id = agreed.step.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no such checkpoint")
            .on(format!("any step of run '{}'", request.run))
            .because("the nodes of this launch found none when it started")
            .hint("run 'stepvault list' to see the current steps; restore one without the other nodes' agreement with \
                   --step N")
    })?;
    narrowed.step = Some(id.step);
    narrowed.attempt = Some(id.attempt);
    if !agreed.durable {
        narrowed.parts = Parts::OwnSealed;
    }
    Ok(narrowed)
}

async fn restore_one(context: &RestoreContext, request: &RestoreRequest) -> Result<RestoreReport> {
    let mut candidates = Candidates::gather(context, request).await?;
    let mut skipped = Vec::new();
    let mut last_resort = LastResort::default();
    while let Some(candidate) = last_resort.next(context, request, &mut candidates, &mut skipped) {
        let records = resolve::resolve(context, request, &candidate).await?;
        let mut unfit = Unfit {
            reasons: records.reasons,
            unread: records.unread,
            is_local: false,
        };
        for resolved in records.groups {
            let resolved = Arc::new(resolved);
            let decision = decision(request, &candidates, &resolved, skipped.clone())?;
            let handoff = Handoff::of(context, request, &resolved)?;
            let Some(left) = target::left_to_place(&decision.path, &resolved, request).await? else {
                // A killed restore may have put the step in place without doing the rest.
                execute::end_replacement(context, request, &resolved, &decision).await?;
                let done = match handoff {
                    Some(handoff) => Some(blocking(move || handoff.complete()).await?),
                    None => None,
                };
                return Ok(report(decision, Fetched::default(), true, done));
            };
            match execute::execute(context, &left, &decision, handoff).await? {
                Ok((fetched, done)) => return Ok(report(decision, fetched, false, done)),
                Err(reasons) => unfit.extend(reasons),
            }
        }
        if unfit.is_local {
            quarantine(context, &candidate, &unfit.reasons).await;
        }
        skipped.push(skip(context, request, &candidate, unfit.reasons, unfit.unread)?);
    }
    Err(nothing_left(request, &candidates, &skipped))
}

fn report(
    mut decision: RestoreDecision,
    fetched: Fetched,
    already_there: bool,
    handed_over: Option<HandedOver>,
) -> RestoreReport {
    let (plan, moved_aside) = handed_over.map(|done| (done.plan, done.moved_aside)).unzip();
    decision.handoff = plan;
    RestoreReport {
        decision,
        fetched,
        already_there,
        moved_aside: moved_aside.unwrap_or_default(),
    }
}

fn decision(
    request: &RestoreRequest,
    candidates: &Candidates,
    resolved: &resolve::Resolved,
    skipped: Vec<SkippedStep>,
) -> Result<RestoreDecision> {
    let place = request.target.place(resolved)?;
    let paths = place.paths();
    Ok(RestoreDecision {
        id: resolved.id,
        name: resolved.name.clone(),
        path: match paths.as_slice() {
            [path] if resolved.members.is_empty() => path.clone(),
            _ => place.directory.clone(),
        },
        paths,
        directory: place.directory,
        sources: resolved.sources.iter().map(resolve::Source::tier).collect(),
        file_count: resolved.files.len() as u64,
        data_bytes: resolved.data_bytes(),
        written_at: resolved
            .files
            .iter()
            .map(|file| file.mtime)
            .max()
            .unwrap_or_default(),
        skipped,
        unreachable: candidates
            .unreachable
            .iter()
            .map(|(tier, error)| (tier.clone(), error.to_string()))
            .collect(),
        handoff: None,
    })
}

/// Skips a step that cannot be restored.
///
/// # Errors
/// [`ErrorKind::Unreachable`] when the step may be valid: a tier that has it could not be read, and no older step is
/// allowed in its place.
fn skip(
    context: &RestoreContext,
    request: &RestoreRequest,
    candidate: &Candidate,
    reasons: Vec<String>,
    unread: Vec<String>,
) -> Result<SkippedStep> {
    if unread.is_empty() {
        return Ok(passed_over(context, candidate, reasons));
    }
    let reasons: Vec<String> = unread.into_iter().chain(reasons).collect();
    if !request.allow_older {
        return Err(Error::new(ErrorKind::Unreachable, "cannot read a step")
            .on(format!("{} of run '{}'", candidate.id, request.run))
            .because(reasons.join("; "))
            .hint(
                "retry when its tier is readable, or restore the newest readable step with --allow-older; nothing was \
                 restored because the step may be valid",
            )
            .lasting());
    }
    Ok(SkippedStep {
        unread: true,
        ..passed_over(context, candidate, reasons)
    })
}

fn passed_over(context: &RestoreContext, candidate: &Candidate, reasons: Vec<String>) -> SkippedStep {
    context.observer.on_event(&Event::Warning {
        message: &format!("{} is skipped: {}", candidate.id, reasons.join("; ")),
    });
    SkippedStep {
        step: candidate.id.step.number(),
        attempt: candidate.id.attempt.number(),
        reasons,
        unread: false,
    }
}

/// Quarantines a damaged local copy, so that it is not found again. If an agent holds the vault, the copy is left to
/// that agent, which will find the damage itself.
async fn quarantine(context: &RestoreContext, candidate: &Candidate, reasons: &[String]) {
    let (Some(vault), Some(step)) = (context.vault.clone(), &candidate.local) else {
        return;
    };
    let (run, id, reason) = (step.run().clone(), step.id(), reasons.join("; "));
    let moved = blocking(move || {
        let _lock = vault.lock()?;
        vault.quarantine(&run, id, &reason)
    })
    .await;
    if let Err(error) = moved {
        tracing::warn!(%error, "cannot quarantine a damaged step");
    }
}

fn nothing_left(request: &RestoreRequest, candidates: &Candidates, skipped: &[SkippedStep]) -> Error {
    let wanted = match (request.step, request.attempt) {
        (Some(step), Some(attempt)) => format!("step {step} (attempt {attempt}) of run '{}'", request.run),
        (Some(step), None) => format!("step {step} of run '{}'", request.run),
        (None, Some(attempt)) => format!("any step of attempt {attempt} of run '{}'", request.run),
        (None, None) => format!("any step of run '{}'", request.run),
    };
    let reasons: Vec<String> = skipped
        .iter()
        .map(|step| {
            format!(
                "step {} (attempt {}): {}",
                step.step,
                step.attempt,
                step.reasons.join("; ")
            )
        })
        .collect();
    let reasons = reasons.join(" | ");
    // This comes first: an unreachable tier may have what the others lack, so neither 'none is valid' nor 'none exists'
    // is known, and no trainer may start from scratch because of it.
    if let Some((tier, error)) = candidates.unreachable.first() {
        let asked = if skipped.is_empty() {
            "no reachable tier has a checkpoint".to_owned()
        } else {
            format!("no reachable tier has a valid one ({reasons})")
        };
        let own = error
            .hint_text()
            .map_or_else(String::new, |hint| format!("{hint}; "));
        return error
            .duplicate()
            .hint(format!("{own}{asked}; {tier} was unreachable"));
    }
    if skipped.iter().any(|step| step.unread) {
        return Error::new(ErrorKind::Unreachable, "cannot read any checkpoint")
            .on(wanted)
            .because(reasons)
            .hint("retry when the tiers are readable")
            .lasting();
    }
    if !skipped.is_empty() {
        return Error::new(ErrorKind::NoneValid, "no valid checkpoint")
            .on(wanted)
            .because(reasons)
            .hint("run 'stepvault verify' to see what is wrong with each");
    }
    Error::new(ErrorKind::NotFound, "no such checkpoint")
        .on(wanted)
        .because("no tier has it")
        .hint("run 'stepvault list' to see the steps")
}

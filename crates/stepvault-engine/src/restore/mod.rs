//! Putting the newest valid step back.

mod agree;
mod arrival;
mod candidates;
mod demoted;
mod execute;
mod handover;
mod part;
mod parts;
mod peek;
mod prospect;
mod resolve;
mod staged_file;
mod target;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use stepvault_core::ids::{Attempt, RunName, Step, StepId};
use stepvault_core::observe::{Event, Observer, Tier};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::handover::HandoverPlan;
use stepvault_local::staging::Existing;
use stepvault_local::vault::Vault;

use crate::blocking::blocking;
use crate::memory::MemoryBudget;
use crate::run_remote::RunRemote;

pub use agree::Together;
use candidates::{Candidate, Candidates};
use demoted::LastResort;
pub use execute::Fetched;
use handover::{HandedOver, Handover};
pub use handover::{HandoverOptions, MovedAside};
pub use parts::Parts;
pub use target::Target;

/// What to restore, and where to.
#[derive(Debug, Clone)]
pub struct RestoreRequest {
    /// The run.
    pub run: RunName,
    /// Where the step is to stand.
    pub target: Target,
    /// Only this step; `None` for the newest valid one.
    pub step: Option<Step>,
    /// Only this attempt; `None` for any.
    pub attempt: Option<Attempt>,
    /// Whose parts of a step of several nodes to take.
    pub parts: Parts,
    /// The nodes that restore the same step at the same time; `None` for one that restores by itself.
    pub together: Option<Together>,
    /// Globs of the files to take; empty for all.
    pub include: Vec<String>,
    /// What to do when the target exists and is something else.
    pub existing: Existing,
    /// How the trainer is made to go on from the step; `None` to put the step in place and nothing else.
    pub handover: Option<HandoverOptions>,
    /// Steps that are passed over while there is another, and why: the trainer does not survive them. One that is asked
    /// for by its number is taken all the same.
    pub demoted: BTreeMap<StepId, String>,
}

impl RestoreRequest {
    /// The newest valid step, whole, where nothing stands yet, by a node that asks for itself.
    pub const fn newest(run: RunName, target: Target) -> Self {
        Self {
            run,
            target,
            step: None,
            attempt: None,
            parts: Parts::All,
            together: None,
            include: Vec::new(),
            existing: Existing::Refuse,
            handover: None,
            demoted: BTreeMap::new(),
        }
    }
}

/// A step that was passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedStep {
    /// The step.
    pub step: u64,
    /// Its attempt.
    pub attempt: u32,
    /// Why, one reason a tier.
    pub reasons: Vec<String>,
}

/// The decision, before anything is done.
#[derive(Debug)]
pub struct RestoreDecision {
    /// The step that would be restored.
    pub id: StepId,
    /// Its directory or file name.
    pub name: String,
    /// Where it would stand; for a step of several paths the directory that they are put into.
    pub path: PathBuf,
    /// The step's paths there, in the order in which they appear: `path`, or those of a step of several.
    pub paths: Vec<PathBuf>,
    /// Where the trainer looks for its steps. What the handover says is relative to it.
    pub directory: PathBuf,
    /// The tiers it would come from, in order.
    pub sources: Vec<Tier>,
    /// Files and bytes, after `include`.
    pub file_count: u64,
    /// Bytes of those files.
    pub data_bytes: u64,
    /// Newer steps passed over, the newest first.
    pub skipped: Vec<SkippedStep>,
    /// Tiers that could not be asked.
    pub unreachable: Vec<(Tier, String)>,
    /// How the trainer is made to go on from the step, or was; `None` when nobody asked for it, and for some of a
    /// step's files.
    pub handover: Option<HandoverPlan>,
}

/// What a restore came to.
#[derive(Debug)]
pub struct RestoreReport {
    /// The decision it carried out.
    pub decision: RestoreDecision,
    /// What came from where.
    pub fetched: Fetched,
    /// The target held just this already.
    pub already_there: bool,
    /// What was moved out of the trainer's way.
    pub moved_aside: Vec<MovedAside>,
}

/// What a restore works with.
#[derive(Debug, Clone)]
pub struct RestoreContext {
    /// The local tier, when there is one.
    pub vault: Option<Vault>,
    /// The remotes in the order in which they are asked.
    pub remotes: Vec<RunRemote>,
    /// Memory for parts under way.
    pub budget: MemoryBudget,
    /// Who listens.
    pub observer: Arc<dyn Observer>,
}

/// Decides what a restore would take, down to readable and consistent records, and does nothing.
pub async fn plan(context: &RestoreContext, request: &RestoreRequest) -> Result<RestoreDecision> {
    let agreed = agree::foresee(context, request).await?;
    let request = &narrowed(request, agreed)?;
    let mut candidates = Candidates::gather(context, request).await?;
    let mut skipped = Vec::new();
    let mut last_resort = LastResort::default();
    while let Some(candidate) = last_resort.next(context, request, &mut candidates, &mut skipped) {
        match resolve::resolve(context, request, &candidate).await? {
            Ok(groups) => {
                if let Some(resolved) = groups.into_iter().next() {
                    let resolved = Arc::new(resolved);
                    let mut decision = decision(request, &candidates, &resolved, skipped)?;
                    if let Some(handover) = Handover::of(context, request, &resolved)? {
                        decision.handover = Some(handover.foresee().await?);
                    }
                    return Ok(decision);
                }
            }
            Err(reasons) => skipped.push(passed_over(context, &candidate, reasons)),
        }
    }
    Err(nothing_left(request, &candidates, &skipped))
}

/// Restores the newest valid step, or the one asked for.
///
/// # Errors
/// [`ErrorKind::NotFound`] when there is no such step; [`ErrorKind::NoneValid`] when there are steps and none is
/// valid; [`ErrorKind::Unreachable`] when no tier that has any could be asked; [`ErrorKind::Conflict`] when the
/// target exists and is something else.
pub async fn restore(context: &RestoreContext, request: &RestoreRequest) -> Result<RestoreReport> {
    let agreed = agree::agree(context, request).await?;
    let step = agreed.as_ref().and_then(|agreed| agreed.step);
    let restored = restore_one(context, &narrowed(request, agreed)?).await;
    match (&restored, step) {
        (Err(error), Some(id)) if matches!(error.kind(), ErrorKind::NoneValid | ErrorKind::NotFound) => {
            agree::call_unfit(context, request, id, &[error.to_string()]).await;
            Err(error
                .duplicate()
                .hint("all nodes had agreed on this step: start the job again, on all of them, and they agree on the one before"))
        }
        _ => restored,
    }
}

/// The request as the nodes' agreement has it.
///
/// # Errors
/// [`ErrorKind::NotFound`] when they agreed that there is nothing to go on from.
fn narrowed(request: &RestoreRequest, agreed: Option<agree::Agreed>) -> Result<RestoreRequest> {
    let mut narrowed = request.clone();
    let Some(agreed) = agreed else {
        return Ok(narrowed);
    };
    let id = agreed.step.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no such checkpoint")
            .on(format!("any step of run '{}'", request.run))
            .because("the nodes of this launch found none when they began")
            .hint("'stepvault list' shows what there is now; --step N takes a step without asking the others")
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
        let groups = match resolve::resolve(context, request, &candidate).await? {
            Ok(groups) => groups,
            Err(reasons) => {
                skipped.push(passed_over(context, &candidate, reasons));
                continue;
            }
        };
        let mut reasons = Vec::new();
        for resolved in groups {
            let resolved = Arc::new(resolved);
            let decision = decision(request, &candidates, &resolved, skipped.clone())?;
            let handover = Handover::of(context, request, &resolved)?;
            let Some(left) = target::left_to_place(&decision.path, &resolved, request).await? else {
                // A restore that was killed may have put the step in place, and done nothing after that.
                execute::end_replacement(context, request, &resolved, &decision).await?;
                let done = match handover {
                    Some(handover) => Some(blocking(move || handover.complete()).await?),
                    None => None,
                };
                return Ok(report(decision, Fetched::default(), true, done));
            };
            match execute::execute(context, &left, &decision, handover).await? {
                Ok((fetched, done)) => return Ok(report(decision, fetched, false, done)),
                Err(damage) => reasons.extend(damage),
            }
        }
        quarantine(context, &candidate, &reasons).await;
        skipped.push(passed_over(context, &candidate, reasons));
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
    decision.handover = plan;
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
        skipped,
        unreachable: candidates
            .unreachable
            .iter()
            .map(|(tier, error)| (tier.clone(), error.to_string()))
            .collect(),
        handover: None,
    })
}

fn passed_over(context: &RestoreContext, candidate: &Candidate, reasons: Vec<String>) -> SkippedStep {
    context.observer.on_event(&Event::Warning {
        message: &format!("{} is passed over: {}", candidate.id, reasons.join("; ")),
    });
    SkippedStep {
        step: candidate.id.step.number(),
        attempt: candidate.id.attempt.number(),
        reasons,
    }
}

/// Moves a local copy that turned out damaged aside, so that it is not found again. An agent that holds the vault
/// will find it by itself; then it is left alone.
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
        tracing::warn!(%error, "a damaged step could not be put aside");
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
    // First: a tier that cannot be asked may have what the others lack, so that neither 'none is valid' nor 'none
    // exists' is known, and nobody may begin anew for it.
    if let Some((tier, error)) = candidates.unreachable.first() {
        let asked = if skipped.is_empty() {
            "no tier that could be asked has a checkpoint".to_owned()
        } else {
            format!("no tier that could be asked has a valid one ({reasons})")
        };
        let own = error
            .hint_text()
            .map_or_else(String::new, |hint| format!("{hint}; "));
        return error
            .duplicate()
            .hint(format!("{own}{asked}; {tier} could not be asked"));
    }
    if !skipped.is_empty() {
        return Error::new(ErrorKind::NoneValid, "no valid checkpoint")
            .on(wanted)
            .because(reasons)
            .hint("'stepvault verify' shows what is wrong with each");
    }
    Error::new(ErrorKind::NotFound, "no such checkpoint")
        .on(wanted)
        .because("no tier has it")
        .hint("'stepvault list' shows what there is")
}

//! The best steps: those that a restored step names as the best so far. Its trainer, or its user, loads one of them at the
//! end, so they are put beside it.
//!
//! They follow the restored step, and never come before it: a restore that is cut off in between must not leave an older
//! step alone for the trainer to resume from. Repeating the restore does the rest. A best step that cannot be restored
//! stops nothing, because the trainer can resume without it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, stream};
use stepvault_core::retention::best_step;
use stepvault_core::step_origin::BestName;
use stepvault_core::{Error, ErrorKind, Result, SilentObserver, StepId};

use super::candidates::{Candidate, Candidates};
use super::handoff::write_best_copies;
use super::plan::{BestStep, RestorePlan, Scope, Search};
use super::request::{HandoffOptions, Restore, RestoreContext, RestoreRequest, Target, WantedSteps};
use super::search_and_execute;
use crate::tier::catalog::{PARALLEL_READS, read_commit};

/// Plans which best steps go beside a restored step.
///
/// # Errors
/// Only an interruption.
pub(super) async fn plan_best(restore: Restore<'_>, plan: &RestorePlan) -> Result<Vec<BestStep>> {
    let mut planned = Vec::new();
    for best in best_steps(restore, plan).await? {
        let request = &best.request(restore.request);
        let found = async {
            let mut search = Search::begin(Restore { request, ..restore }, Scope::All).await?;
            search.next().await?.ok_or_else(|| search.none_left())
        };
        match found.await {
            Ok(plan) => planned.push(BestStep::of(&plan, false)),
            Err(error) => warn(restore.context, &best.name, error)?,
        }
    }
    Ok(planned)
}

/// Puts the best steps beside a restored one, and writes the copies by which a user finds them.
///
/// # Errors
/// Only an interruption.
pub(super) async fn restore_best(restore: Restore<'_>, plan: &RestorePlan) -> Result<Vec<BestStep>> {
    let (context, Some(options)) = (restore.context, options(restore.request)) else {
        return Ok(Vec::new());
    };
    let mut restored = Vec::new();
    for best in best_steps(restore, plan).await? {
        let request = &best.request(restore.request);
        let done = async {
            let report = search_and_execute(Restore { request, ..restore }).await?;
            write_best_copies(context, options, &report.plan).await?;
            Ok(report)
        };
        match done.await {
            Ok(report) => restored.push(BestStep::of(&report.plan, report.already_there)),
            Err(error) => warn(context, &best.name, error)?,
        }
    }
    let own = &plan.step.name;
    if plan.step.best.iter().any(|best| best.name == *own)
        && let Err(error) = write_best_copies(context, options, plan).await
    {
        warn(context, own, error)?;
    }
    Ok(restored)
}

/// Returns the options of the handoff if best steps are wanted: the whole step is restored for a trainer.
fn options(request: &RestoreRequest) -> Option<&HandoffOptions> {
    let is_whole = matches!(request.target, Target::Into(_)) && request.include.is_empty();
    let handoff = request.handoff.as_ref();
    handoff.filter(|handoff| is_whole && handoff.write)
}

/// A best step that some tier has.
struct FoundBest {
    id: StepId,
    name: String,
    /// Where it goes.
    target: Target,
}

impl FoundBest {
    /// Returns the request for it: whole, as the nodes have it, and not for the trainer to resume from.
    fn request(&self, request: &RestoreRequest) -> RestoreRequest {
        RestoreRequest {
            target: self.target.clone(),
            wanted: WantedSteps::only(self.id),
            together: None,
            resumes: false,
            handoff: None,
            demoted: BTreeMap::new(),
            allow_older: false,
            ..request.clone()
        }
    }
}

/// Returns the steps that a step names as the best, besides its own name. A warning names one that no tier has, unless
/// something has its name in the directory.
async fn best_steps(restore: Restore<'_>, plan: &RestorePlan) -> Result<Vec<FoundBest>> {
    let Restore { context, request } = restore;
    let is_other = |best: &&BestName| best.name != plan.step.name;
    let named: Vec<&BestName> = plan.step.best.iter().filter(is_other).collect();
    if named.is_empty() || options(request).is_none() {
        return Ok(Vec::new());
    }
    let older = older_steps(restore, plan.id).await?;
    let directory = plan.step.origin.directory_in(&plan.directory);
    let mut found = Vec::new();
    for best in named {
        let place = directory.join(&best.name);
        let steps = older.iter().map(|(id, name)| (*id, name.as_str()));
        if let Some(id) = best_step(plan.id, best, steps) {
            let has_name = older.iter().any(|(other, name)| *other == id && *name == best.name);
            if !has_name && std::fs::symlink_metadata(&place).is_ok() {
                // The trainer's own, under the name that was not sealed.
                continue;
            }
            let target = match &request.target {
                Target::Into(directory) if !has_name => {
                    Target::IntoNamed(directory.clone(), best.name.clone())
                }
                target => target.clone(),
            };
            found.push(FoundBest { id, name: best.name.clone(), target });
        } else if std::fs::symlink_metadata(place).is_err() {
            context
                .observer
                .warn(format!("{} names {} as the best step, and no tier has it", plan.id, best.name));
        }
    }
    Ok(found)
}

/// Returns the steps up to `newest` that some tier has, with their names. A tier that cannot be read has none.
async fn older_steps(restore: Restore<'_>, newest: StepId) -> Result<Vec<(StepId, String)>> {
    let Restore { context, request } = restore;
    // The search for the restored step has warned of the tiers that cannot be read.
    let silent = RestoreContext { observer: Arc::new(SilentObserver), ..context.clone() };
    let all = RestoreRequest {
        wanted: WantedSteps { step: None, attempt: None, ..request.wanted },
        allow_older: true,
        ..request.clone()
    };
    let mut candidates = Candidates::list(Restore { context: &silent, request: &all }).await?;
    let mut older = Vec::new();
    while let Some(candidate) = candidates.pop_newest() {
        if candidate.id <= newest {
            older.push(candidate);
        }
    }
    let named = stream::iter(older).map(|candidate| async move {
        let name = name_of(&candidate).await?;
        Some((candidate.id, name))
    });
    Ok(named.buffered(PARALLEL_READS).filter_map(std::future::ready).collect().await)
}

async fn name_of(candidate: &Candidate) -> Option<String> {
    if let Some(step) = &candidate.local {
        return Some(step.name().to_owned());
    }
    for remote in &candidate.remotes {
        match read_commit(remote, candidate.id).await {
            Ok(commit) => return Some(commit.name),
            Err(error) => tracing::debug!(%error, "cannot read the name of a step"),
        }
    }
    None
}

fn warn(context: &RestoreContext, name: &str, error: Error) -> Result<()> {
    if error.kind() == ErrorKind::Interrupted {
        return Err(error);
    }
    context.observer.warn(format!(
        "the best step {name} is not restored beside the step that names it: {}",
        error.text_with_hint()
    ));
    Ok(())
}

impl BestStep {
    fn of(plan: &RestorePlan, already_there: bool) -> Self {
        Self { id: plan.id, path: plan.path.clone(), data_bytes: plan.data_bytes(), already_there }
    }
}

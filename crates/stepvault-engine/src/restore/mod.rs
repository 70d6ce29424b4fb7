//! Restores the newest valid step, or the requested one.
//!
//! A restore is a pipeline. `plan` drives the first two stages, and is asked again when `fetch` finds damage:
//!
//! 1. `candidates`: lists the steps that any tier holds.
//! 2. `resolve`: determines the files of a candidate, and the tiers that can serve each of them.
//! 3. `plan`: decides which step is restored, from where and to where. The [`RestorePlan`] is what [`plan`] returns and
//!    what [`restore`] executes; if the bytes turn out damaged, the search continues with the next older step.
//! 4. `fetch`: reads file parts into the staging directory, and verifies each.
//! 5. `publish`: makes the staged step visible at its target.
//! 6. `handoff`: makes the trainer resume from it.
//! 7. `best`: puts the steps beside it that it names as the best.
//!
//! Two modules work before the pipeline: `attempts` determines the attempts of provisional steps, and `agreement`
//! chooses one step for all nodes of a launch.

mod agreement;
mod attempts;
mod best;
mod candidates;
mod fetch;
mod handoff;
mod plan;
mod publish;
mod request;
mod resolve;
mod thaw;

use std::sync::Arc;

use futures::future::join_all;
use stepvault_core::{ErrorKind, Operation, OperationKind, Result, StepId};
use stepvault_local::vault::Vault;

use crate::blocking::blocking;
use crate::observed::ObservedOperation;
use crate::tier::run_remote::RunRemote;

use agreement::Agreed;
pub use attempts::remember_resumption;
use best::{plan_best, restore_best};
use candidates::{Faults, OrFaults};
pub use fetch::Fetched;
pub use handoff::MovedAside;
use handoff::{Handoff, HandoffReport, PreparedHandoff};
pub use plan::{BestStep, RestorePlan, SkippedStep};
use plan::{Scope, Search};
use publish::Missing;
use request::Restore;
pub use request::{
    HandoffOptions, Parts, RestoreContext, RestoreRequest, Target, ThawOptions, Together, WantedSteps,
};

/// The outcome of a restore.
#[derive(Debug)]
pub struct RestoreReport {
    /// The plan that was executed.
    pub plan: RestorePlan,
    /// Where the bytes came from.
    pub fetched: Fetched,
    /// Whether the target already held exactly this.
    pub already_there: bool,
    /// What was moved out of the trainer's way.
    pub moved_aside: Vec<MovedAside>,
}

/// Plans a restore, down to readable and consistent records, and changes nothing.
///
/// # Errors
/// Those of [`restore`], except that the target is not compared.
pub async fn plan(context: &RestoreContext, request: &RestoreRequest) -> Result<RestorePlan> {
    let restore = Restore { context, request };
    attempts::warn_of_provisional_attempts(restore).await;
    let agreed = agreement::predict(restore).await?;
    let restore = Restore { request: &narrowed(request, agreed.as_ref())?, ..restore };
    let mut search = Search::begin(restore, Scope::All).await?;
    let mut plan = search.next().await?.ok_or_else(|| search.none_left())?;
    if let Some(handoff) = Handoff::new(restore, &plan)? {
        plan.handoff = Some(handoff.preview().await?);
    }
    plan.best = plan_best(restore, &plan).await?;
    plan.skipped.splice(0..0, skipped_by(agreed));
    Ok(plan)
}

/// Restores the newest valid step, or the requested one.
///
/// # Errors
/// [`ErrorKind::NotFound`] when there is no such step; [`ErrorKind::NoneValid`] when there are steps but none is valid;
/// [`ErrorKind::Unreachable`] when no tier that has any is reachable, or a newer step could not be read and no older
/// one is allowed; [`ErrorKind::Archived`] when that is because its objects are in an archive; [`ErrorKind::Conflict`] when the
/// target exists and differs.
pub async fn restore(context: &RestoreContext, request: &RestoreRequest) -> Result<RestoreReport> {
    if let Some(vault) = &context.vault {
        remember_remotes(vault, &context.remotes).await;
    }
    let restore = Restore { context, request };
    let from_scratch = attempts::starts_from_scratch(restore).await?;
    attempts::record_launch(restore).await;
    attempts::determine_provisional_attempts(restore).await;
    let agreed = agreement::agree(restore).await?;
    let step = agreed.as_ref().and_then(|agreed| agreed.step);
    let restored = match narrowed(request, agreed.as_ref()) {
        Ok(request) => search_and_execute(Restore { request: &request, ..restore }).await,
        Err(error) => Err(error),
    };
    match (restored, step) {
        (Ok(mut report), _) => {
            report.plan.skipped.splice(0..0, skipped_by(agreed));
            attempts::remember(restore, &report.plan).await;
            report.plan.best = restore_best(restore, &report.plan).await?;
            Ok(report)
        }
        (Err(error), Some(id)) if matches!(error.kind(), ErrorKind::NoneValid | ErrorKind::NotFound) => {
            agreement::record_damaged(restore, id, &[error.to_string()]).await;
            Err(error.hint(
                "restart the job on all nodes: they had agreed on this step, and will agree on the previous one",
            ))
        }
        (Err(error), step) => {
            let resumes_from_newest = request.resumes && request.wanted.are_newest();
            if step.is_none() && error.kind() == ErrorKind::NotFound && resumes_from_newest {
                handoff::clear_first_start(restore, from_scratch).await;
            }
            Err(error)
        }
    }
}

/// Records in `vault` which archives the remotes hold, so that this node notices when one is later unmounted or emptied.
/// Those that do not answer soon are not recorded: a restore does not wait for what it may not need.
pub async fn remember_remotes(vault: &Vault, remotes: &[RunRemote]) {
    let seen = join_all(remotes.iter().map(|remote| remote.answers_soon(remote.remember(vault))));
    for error in seen.await.into_iter().filter_map(std::result::Result::err) {
        // An unreachable remote is reported when its steps are listed.
        tracing::debug!(%error, "cannot record a remote's marker in the vault");
    }
}

/// Returns the newer steps that were skipped when the nodes agreed on a step.
fn skipped_by(agreed: Option<Agreed>) -> Vec<SkippedStep> {
    agreed.map(|agreed| agreed.skipped).unwrap_or_default()
}

/// Returns the request narrowed to what the nodes agreed on, if they had to agree.
fn narrowed(request: &RestoreRequest, agreed: Option<&Agreed>) -> Result<RestoreRequest> {
    agreed.map_or_else(|| Ok(request.clone()), |agreed| agreed.narrow(request))
}

/// Executes one plan after the other until a step is in place.
async fn search_and_execute(restore: Restore<'_>) -> Result<RestoreReport> {
    let mut search = Search::begin(restore, Scope::All).await?;
    while let Some(plan) = search.next().await? {
        let id = plan.id;
        let mut outcome = execute(restore, plan.clone()).await?;
        if let (Err(faults), Some(options)) = (&outcome, restore.request.thaw)
            && faults.archived > 0
        {
            thaw::thaw_files(restore.context, &plan.step, options).await?;
            outcome = execute(restore, plan).await?;
        }
        match outcome {
            Ok(report) => return Ok(report),
            Err(faults) => {
                if faults.local_is_damaged {
                    quarantine(restore, id, &faults).await;
                }
                search.reject(faults);
            }
        }
    }
    Err(search.none_left())
}

/// Executes a plan; returns faults if no tier has all bytes of the planned version valid.
async fn execute(restore: Restore<'_>, plan: RestorePlan) -> Result<OrFaults<RestoreReport>> {
    let handoff = Handoff::new(restore, &plan)?;
    let existing = restore.request.existing;
    let Some(missing) = publish::find_missing(&plan, existing, handoff.as_ref()).await? else {
        // A killed restore may have put the step in place without doing the rest.
        publish::end_replacement(restore, &plan).await?;
        let handoff = blocking(move || {
            let prepared = handoff.map(|handoff| handoff.prepare(None)).transpose()?;
            prepared.map(PreparedHandoff::finish).transpose()
        });
        return Ok(Ok(report(plan, Fetched::default(), true, handoff.await?)));
    };
    let mut handoff = handoff;
    if let Some(asked) = handoff.take_if(|_| !missing.displaced.is_empty()) {
        let (asked, kept) = asked.kept_in_place().await?;
        if kept.is_some() {
            return Ok(Ok(report(plan, Fetched::default(), false, kept)));
        }
        handoff = Some(asked);
    }
    let leases = fetch::take_leases(restore.context, &missing.step).await;
    let outcome = fetch_and_publish(restore, plan, missing, handoff).await;
    for lease in leases {
        // Read-only credentials cannot release it.
        let _ = lease.release().await;
    }
    outcome
}

async fn fetch_and_publish(
    restore: Restore<'_>,
    plan: RestorePlan,
    missing: Missing,
    handoff: Option<Handoff>,
) -> Result<OrFaults<RestoreReport>> {
    let context = restore.context;
    let step = Arc::clone(&missing.step);
    let staging = fetch::open_staging(context, &step, &plan.path).await?;
    fetch::check_space(&staging, &step).await?;
    let (tier, location) = (step.first_tier(), plan.path.to_string_lossy().into_owned());
    let observed = ObservedOperation::start(
        context.observer.as_ref(),
        Operation {
            kind: OperationKind::Restore,
            run: &restore.request.run,
            tier: &tier,
            id: step.id,
            location: &location,
            files: step.files.len() as u64,
            bytes: Some(step.data_bytes()),
        },
    );
    let transfer = async {
        let (staging, fetched) = match fetch::fetch(context, &step, staging).await? {
            Ok(fetched) => fetched,
            Err(faults) => return Ok(Err(faults)),
        };
        let handoff = publish::publish(staging, missing, handoff).await?;
        Ok(Ok(report(plan, fetched, false, handoff)))
    };
    let outcome = transfer.await;
    match &outcome {
        Ok(Ok(_)) => observed.finished(0),
        // The step is skipped, and the reasons are reported with that.
        Ok(Err(_)) => {}
        Err(error) => observed.failed(error),
    }
    outcome
}

fn report(
    mut plan: RestorePlan,
    fetched: Fetched,
    already_there: bool,
    handoff: Option<HandoffReport>,
) -> RestoreReport {
    let (handoff, moved_aside) = handoff.map(|done| (done.plan, done.moved_aside)).unzip();
    plan.handoff = handoff;
    RestoreReport { plan, fetched, already_there, moved_aside: moved_aside.unwrap_or_default() }
}

/// Quarantines a damaged local copy, so that it is not found again. If an agent holds the vault, the copy is left to
/// that agent, which will find the damage itself.
async fn quarantine(Restore { context, request }: Restore<'_>, id: StepId, faults: &Faults) {
    let Some(vault) = context.vault.clone() else {
        return;
    };
    let (run, reason) = (request.run.clone(), faults.proven.join("; "));
    let moved = blocking(move || {
        let _lock = vault.lock()?;
        vault.quarantine(&run, id, &reason)
    })
    .await;
    if let Err(error) = moved {
        tracing::warn!(%error, "cannot quarantine a damaged step");
    }
}

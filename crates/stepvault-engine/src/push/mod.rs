//! Seals a finished checkpoint and uploads it to every remote.

mod number;
pub(crate) mod seal;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
pub use seal::{CheckpointToSeal, MetricsSource, SealOutcome, SealPlan, StepSummary, identify_and_seal};
use serde::{Deserialize, Serialize};
use stepvault_core::{ErrorKind, Observer, RemoteName, Result, RunName, StepId, Writer};
use stepvault_local::sealed::SealedStep;
use stepvault_local::source::SourceFile;
use stepvault_local::vault::Vault;
use tokio::time::Instant;

use crate::blocking::{blocking, sealed_steps};
use crate::memory::MemoryBudget;
use crate::notes::{read_list, write_list};
use crate::placement::{CurrentWriter, Outcome, determine_attempts, make_provisional_again};
use crate::seen_checkpoints::seen_ids;
use crate::tier::catalog::{committed_ids, read_commit};
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::{Durability, is_durable_on};
use crate::upload::{PARTS_POLL_INTERVAL, RemoteOutcome, Uploaded, upload_everywhere};
use crate::verify::CommittedParts;

/// The outcome of a push.
#[derive(Debug)]
pub struct PushReport {
    /// Step and attempt.
    pub id: StepId,
    /// Whether the attempt may still change because no remote has answered.
    pub provisional: bool,
    /// The step's directory or file name.
    pub name: String,
    /// The path that it was sealed from.
    pub source: PathBuf,
    /// Files in it.
    pub file_count: u64,
    /// Bytes in it.
    pub data_bytes: u64,
    /// Whether this push sealed it; false if it was already sealed or durable.
    pub newly_sealed: bool,
    /// By remote, in the configured order.
    pub remotes: Vec<RemoteOutcome>,
}

/// Seals one checkpoint and uploads it to all `remotes` in parallel. Returns when each remote has it or has failed, or
/// when `patience` for the other nodes' parts has run out.
///
/// The caller holds the vault's lock.
pub async fn push(
    vault: &Vault,
    remotes: &[RunRemote],
    request: CheckpointToSeal,
    budget: &MemoryBudget,
    patience: Duration,
    observer: &Arc<dyn Observer>,
) -> Result<PushReport> {
    let source = request.checkpoint.source.clone();
    let current = request.current.clone();
    let is_overwritten = request.is_overwritten;
    give_up_changed(vault, &request.run, remotes, observer).await?;
    let mut outcome = Box::pin(identify_and_seal(vault, remotes, request, observer)).await?;
    let newly_sealed = matches!(outcome, SealOutcome::Sealed { new: true, .. });
    let outcomes = match &mut outcome {
        SealOutcome::Sealed { step, .. } => {
            let mut uploading = Uploading { vault, remotes, current: &current, budget, patience, observer };
            uploading.determine_and_upload(step).await?
        }
        SealOutcome::DurableEverywhere(step) => prove_everywhere(remotes, step.id, observer).await,
    };
    match steps_of_others(vault, remotes, &current.writer).await {
        Ok(warnings) => {
            for message in &warnings {
                observer.warn(message);
            }
        }
        // What keeps this push from a remote is reported with it.
        Err(error) => tracing::debug!(%error, "cannot determine whether another job writes the run"),
    }
    let StepSummary { id, name, file_count, data_bytes } = outcome.summary();
    if let SealOutcome::Sealed { step, .. } = &outcome {
        drop_borrowed(vault, step, is_overwritten, &outcomes, observer).await;
    }
    Ok(PushReport {
        id,
        provisional: outcome.is_provisional(),
        name,
        source,
        file_count,
        data_bytes,
        newly_sealed,
        remotes: outcomes,
    })
}

/// Determines as which step [`push`] would seal a checkpoint, and on which remotes that step is durable already. Changes
/// nothing; `vault` may be an empty one.
///
/// # Errors
/// As for [`identify_and_seal`]; that a remote cannot be listed is the outcome for that remote.
pub async fn plan_push(
    vault: &Vault,
    remotes: &[RunRemote],
    request: CheckpointToSeal,
    observer: &Arc<dyn Observer>,
) -> Result<(SealPlan, Vec<Result<bool>>)> {
    let mut are_new = Vec::with_capacity(remotes.len());
    for remote in remotes {
        are_new.push(remote.will_be_begun(vault).await?);
    }
    let known = remotes.iter().zip(&are_new).filter(|(_, is_new)| !**is_new);
    let known: Vec<RunRemote> = known.map(|(remote, _)| remote.clone()).collect();
    let mut plan = Box::pin(seal::plan_seal(vault, &known, request, observer)).await?;
    // Where nothing was stored yet, nothing is left to be asked.
    plan.provisional &= known.len() == remotes.len();
    let id = plan.step.id;
    let durable = remotes.iter().zip(are_new).map(|(remote, is_new)| async move {
        if is_new {
            return Ok(false);
        }
        let is_committed = committed_ids(remote).await?.contains_key(&id);
        if is_committed {
            prove(remote, id, observer).await?;
        }
        Ok(is_committed)
    });
    let durable = join_all(durable).await;
    Ok((plan, durable))
}

/// Gives up sealed steps that no remote has whole and whose files the trainer has changed or deleted since: nothing is left
/// that could be uploaded. The record of files that stayed with the trainer is removed, and what the vault has of others is
/// kept in quarantine.
async fn give_up_changed(
    vault: &Vault,
    run: &RunName,
    remotes: &[RunRemote],
    observer: &Arc<dyn Observer>,
) -> Result<()> {
    for step in sealed_steps(vault, run).await?.steps {
        let (owner, id, remotes) = (vault.clone(), step.id(), remotes.to_vec());
        let gone = blocking(move || {
            let is_in_place = step.record().source.is_some();
            let durability = Durability::of(&remotes, |remote| is_durable_on(&step, remote))?;
            if !is_in_place && (!step.has_hard_links() || durability.is_anywhere()) {
                return Ok(None);
            }
            let mut files = step.record().files.iter();
            match files.try_for_each(|file| SourceFile::open(&step.file_path(&file.path), file).map(drop)) {
                Err(error) if error.kind() == ErrorKind::SourceChanged => {
                    if is_in_place {
                        owner.evict(step.run(), id)?;
                    } else {
                        owner.quarantine(step.run(), id, &error.to_string())?;
                    }
                    Ok(Some(error))
                }
                whole_or_unknown => whole_or_unknown.map(|()| None),
            }
        });
        if let Some(why) = gone.await? {
            observer.warn(format!(
                "{id} was not uploaded to every remote before its files changed, and is given up: {why}"
            ));
        }
    }
    Ok(())
}

/// Removes from the vault a step that the next save of its trainer would change there, once every remote has it. It would
/// be found damaged then, though nothing is lost.
///
/// # Invariants
/// S6: each outcome is durable only after its commit was read back.
async fn drop_borrowed(
    vault: &Vault,
    step: &SealedStep,
    is_overwritten: bool,
    outcomes: &[RemoteOutcome],
    observer: &Arc<dyn Observer>,
) {
    let is_durable = |outcome: &RemoteOutcome| outcome.result.as_ref().is_ok_and(Uploaded::is_durable);
    let is_borrowed = step.record().source.is_some() || is_overwritten && step.has_hard_links();
    if !is_borrowed || outcomes.is_empty() || !outcomes.iter().all(is_durable) {
        return;
    }
    let (owner, run, id) = (vault.clone(), step.run().clone(), step.id());
    if let Err(error) = blocking(move || owner.evict(&run, id)).await {
        observer.warn(format!("{id} is durable and stays in the vault: {error}"));
    }
}

/// Inputs for uploading a pushed step.
#[derive(Debug)]
struct Uploading<'a> {
    vault: &'a Vault,
    remotes: &'a [RunRemote],
    current: &'a CurrentWriter,
    budget: &'a MemoryBudget,
    patience: Duration,
    observer: &'a Arc<dyn Observer>,
}

impl Uploading<'_> {
    /// Determines the step's attempt if it is provisional, uploads the step, and repeats both if its attempt turns out
    /// to be taken. `step` holds the final identity afterwards.
    async fn determine_and_upload(&mut self, step: &mut SealedStep) -> Result<Vec<RemoteOutcome>> {
        loop {
            if step.record().is_provisional()
                && let Err(error) = self.determine(step).await?
            {
                let outcome = |remote| RemoteOutcome::new(remote, Err(error.clone()), 0);
                return Ok(self.remotes.iter().map(outcome).collect());
            }
            let (vault, budget) = (self.vault, self.budget);
            let outcomes =
                upload_everywhere(vault, self.remotes, step, budget, self.patience, self.observer).await;
            let mut errors = outcomes.iter().filter_map(|outcome| outcome.result.as_ref().err());
            let Some(taken) = errors.find(|error| error.is_name_taken()) else {
                return Ok(outcomes);
            };
            if !make_provisional_again(vault, step, taken).await? {
                return Ok(outcomes);
            }
            self.observer.warn(format!("{} is sealed under another identity: {taken}", step.id()));
            let (reader, run, id) = (vault.clone(), step.run().clone(), step.id());
            if let Some(reopened) = blocking(move || reader.step(&run, id)).await? {
                *step = reopened;
            }
        }
    }

    /// The outer error concerns this node; the inner one says why the attempt is still provisional.
    async fn determine(&self, step: &mut SealedStep) -> Result<Result<()>> {
        let (vault, remotes) = (self.vault, self.remotes);
        let (before, run) = (step.id(), step.run().clone());
        let patience = remotes.iter().map(|remote| remote.settings.retry_deadline_seconds).max();
        let give_up = Instant::now() + Duration::from_secs(patience.unwrap_or(0));
        let determined = loop {
            match determine_attempts(vault, remotes, &run, self.current, self.observer).await {
                Ok(determined) => break determined,
                // The upload would wait for a remote that goes away later for as long.
                Err(error) if error.is_transient() && Instant::now() < give_up => {
                    tokio::time::sleep(PARTS_POLL_INTERVAL).await;
                }
                // The step is sealed, so the failure is reported for each remote.
                Err(error) => return Ok(Err(error)),
            }
        };
        let own = determined.into_iter().find(|one| one.before == before);
        match own.map(|one| one.outcome) {
            Some(Outcome::Placed(placed)) => *step = *placed,
            Some(Outcome::Duplicate(id)) => {
                let vault = vault.clone();
                if let Some(same) = blocking(move || vault.step(&run, id)).await? {
                    *step = same;
                }
            }
            Some(Outcome::NoPlace(error)) => return Err(error),
            None => {}
        }
        Ok(Ok(()))
    }
}

/// Proves a step on every remote, after all of them have committed it.
async fn prove_everywhere(
    remotes: &[RunRemote],
    id: StepId,
    observer: &Arc<dyn Observer>,
) -> Vec<RemoteOutcome> {
    join_all(remotes.iter().map(|remote| async move {
        let proved = prove(remote, id, observer).await;
        RemoteOutcome::new(remote, proved.map(|()| Uploaded::AlreadyDurable), 0)
    }))
    .await
}

async fn prove(remote: &RunRemote, id: StepId, observer: &Arc<dyn Observer>) -> Result<()> {
    let commit = read_commit(remote, id).await?;
    CommittedParts::all(remote, &commit, observer).ensure_durable().await
}

const NOTE: &str = "pushed";
/// Number of remotes whose steps are remembered.
const KEPT: usize = 64;
/// Number of steps of a remote that are remembered, the newest.
const KEPT_STEPS: usize = 1024;

/// The steps on a remote after a push.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pushed {
    remote: RemoteName,
    url: String,
    steps: BTreeSet<StepId>,
}

/// Returns a warning for each remote that has steps of another job since the last push, and remembers what is there now.
///
/// # Errors
/// When a remote cannot be listed, or the vault cannot be read or written.
async fn steps_of_others(vault: &Vault, remotes: &[RunRemote], writer: &Writer) -> Result<Vec<String>> {
    let Some(run) = remotes.first().map(|remote| remote.keys.run()) else {
        return Ok(Vec::new());
    };
    let sealed = sealed_steps(vault, run).await?.steps;
    let mut own = seen_ids(vault, run).await?;
    own.extend(sealed.iter().map(SealedStep::id));
    let mut list: Vec<Pushed> = read_list(vault, run, NOTE).await?;
    let mut warnings = Vec::new();
    for remote in remotes {
        let mut steps: BTreeSet<StepId> = committed_ids(remote).await?.into_keys().collect();
        while steps.len() > KEPT_STEPS {
            steps.pop_first();
        }
        let (name, url) = (remote.name(), remote.identity_url());
        let before = list.iter().position(|known| known.remote == *name && known.url == url);
        if let Some(before) = before.map(|index| list.remove(index)) {
            let is_foreign = |id: &&StepId| !before.steps.contains(id) && !own.contains(id);
            let newest = steps.iter().rev().find(is_foreign);
            if let Some(warning) = warning(remote, newest.copied(), writer).await? {
                warnings.push(warning);
            }
        }
        list.push(Pushed { remote: name.clone(), url, steps });
    }
    write_list(vault, run, NOTE, &mut list, KEPT).await?;
    Ok(warnings)
}

/// Returns the warning of another job's step, unless a node of this job wrote it.
async fn warning(remote: &RunRemote, id: Option<StepId>, writer: &Writer) -> Result<Option<String>> {
    let Some(id) = id else { return Ok(None) };
    let commit = read_commit(remote, id).await?;
    let mut nodes = commit.parts.iter().map(|part| &part.node);
    if writer.place.nodes().is_several() && nodes.clone().all(|node| writer.place.nodes().contains(node)) {
        return Ok(None);
    }
    let by = nodes.next().map(|node| format!(" by {node}")).unwrap_or_default();
    Ok(Some(format!(
        "another job writes the run '{}' on {}: {id} was written{by} since the last push from this vault; the steps of both \
         jobs would mix, and each would restore the other's: give each its own run name (exclusive = true refuses the second)",
        remote.keys.run(),
        remote.name()
    )))
}

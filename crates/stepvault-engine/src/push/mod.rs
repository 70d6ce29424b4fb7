//! Seals a finished checkpoint and uploads it to every remote.

mod others;
mod rewritten;
mod seal;
mod source;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use stepvault_core::ids::{RemoteName, StepId};
use stepvault_core::observe::Observer;
use stepvault_core::{Error, Result};
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;
use tokio::time::Instant;

use crate::blocking::blocking;
use crate::memory::MemoryBudget;
use crate::placement::{Outcome, Placer, determine_attempts, make_provisional_again};
use crate::tier::catalog::read_commit;
use crate::tier::run_remote::RunRemote;
use crate::upload::{SharedDigests, UploadSession, Uploaded};
use crate::verify::CommittedParts;

use others::steps_of_others;
pub use seal::{CheckpointToSeal, MetricsSource, Placed, StepSummary, checkpoint_at, seal_checkpoint};
pub use source::{SourceCheck, check_source};

/// The outcome of one step on one remote.
#[derive(Debug)]
pub struct RemoteOutcome {
    /// The remote.
    pub remote: RemoteName,
    /// Whether the remote is configured as required.
    pub required: bool,
    /// The result of the upload.
    pub result: Result<Uploaded>,
    /// Bytes that the store copied from an earlier step and that were not sent.
    pub copied_bytes: u64,
}

impl RemoteOutcome {
    fn new(remote: &RunRemote, result: Result<Uploaded>, copied_bytes: u64) -> Self {
        Self { remote: remote.name().clone(), required: remote.settings.required, result, copied_bytes }
    }
}

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
    let placer = Placer { writer: request.writer.clone(), launch_since: request.launch_since };
    let mut outcome = Box::pin(seal_checkpoint(vault, remotes, request, observer)).await?;
    let newly_sealed = matches!(outcome, Placed::Sealed { new: true, .. });
    let outcomes = match &mut outcome {
        Placed::Sealed { step, .. } => {
            let mut uploading = Uploading { vault, remotes, placer: &placer, budget, patience, observer };
            uploading.upload(step).await?
        }
        Placed::DurableEverywhere(step) => prove_everywhere(remotes, step.id, observer).await,
    };
    match steps_of_others(vault, remotes, &placer.writer).await {
        Ok(warnings) => {
            for message in &warnings {
                observer.warn(message);
            }
        }
        // What keeps this push from a remote is reported with it.
        Err(error) => tracing::debug!(%error, "cannot determine whether another job writes the run"),
    }
    let StepSummary { id, name, file_count, data_bytes } = outcome.summary();
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

/// Inputs for uploading a pushed step.
#[derive(Debug)]
struct Uploading<'a> {
    vault: &'a Vault,
    remotes: &'a [RunRemote],
    placer: &'a Placer,
    budget: &'a MemoryBudget,
    patience: Duration,
    observer: &'a Arc<dyn Observer>,
}

impl Uploading<'_> {
    /// Determines the step's attempt if it is provisional, uploads the step, and repeats both if its attempt turns out
    /// to be taken. `step` holds the final identity afterwards.
    async fn upload(&mut self, step: &mut SealedStep) -> Result<Vec<RemoteOutcome>> {
        loop {
            if step.record().is_provisional()
                && let Err(error) = self.determine(step).await?
            {
                return Ok(self.nowhere(&error));
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
        let determined = determine_attempts(vault, remotes, &run, self.placer, self.observer).await;
        let determined = match determined {
            Ok(determined) => determined,
            // The step is sealed, so the failure is reported for each remote.
            Err(error) => return Ok(Err(error)),
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

    fn nowhere(&self, error: &Error) -> Vec<RemoteOutcome> {
        let outcome = |remote| RemoteOutcome::new(remote, Err(error.clone()), 0);
        self.remotes.iter().map(outcome).collect()
    }
}

/// Proves a step on every remote, after all of them have committed it.
async fn prove_everywhere(
    remotes: &[RunRemote],
    id: StepId,
    observer: &Arc<dyn Observer>,
) -> Vec<RemoteOutcome> {
    join_all(remotes.iter().map(|remote| async move {
        let proved = async {
            let commit = read_commit(remote, id).await?;
            CommittedParts::all(remote, &commit, observer).ensure_durable().await
        };
        RemoteOutcome::new(remote, proved.await.map(|()| Uploaded::AlreadyDurable), 0)
    }))
    .await
}

/// Uploads a sealed step to all remotes concurrently. A slow or failing remote does not delay the others.
async fn upload_everywhere(
    vault: &Vault,
    remotes: &[RunRemote],
    step: &SealedStep,
    budget: &MemoryBudget,
    patience: Duration,
    observer: &Arc<dyn Observer>,
) -> Vec<RemoteOutcome> {
    let digests = &SharedDigests::default();
    join_all(remotes.iter().map(|remote| async move {
        let observer = Arc::clone(observer);
        let session = UploadSession::open(
            remote.clone(),
            vault.clone(),
            budget.clone(),
            observer,
            step.record().digest,
        )
        .await;
        let (result, copied_bytes) = match session {
            Ok(session) => {
                let session = session.with_digests(digests);
                let result = upload_and_wait(&session, step, patience).await;
                (result, session.copied_bytes())
            }
            Err(error) => (Err(error), 0),
        };
        RemoteOutcome::new(remote, result, copied_bytes)
    }))
    .await
}

/// Interval between checks for other nodes' parts.
const PARTS_POLL_INTERVAL: Duration = Duration::from_secs(2);

async fn upload_and_wait(session: &UploadSession, step: &SealedStep, patience: Duration) -> Result<Uploaded> {
    let mut uploaded = session.upload(step).await?;
    let deadline = Instant::now() + patience;
    while !uploaded.is_durable() && Instant::now() < deadline {
        tokio::time::sleep_until(deadline.min(Instant::now() + PARTS_POLL_INTERVAL)).await;
        uploaded = session.commit_if_complete(step).await?;
    }
    Ok(uploaded)
}

//! Sealing a finished checkpoint and bringing it to every remote.

mod held;
mod known;
mod place;
mod source;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use stepvault_core::Result;
use stepvault_core::ids::{RemoteName, StepId};
use stepvault_core::observe::Observer;
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;
use tokio::time::Instant;

use crate::catalog::read_commit;
use crate::memory::MemoryBudget;
use crate::run_remote::RunRemote;
use crate::upload::{Lane, Uploaded};
use crate::verify::ensure_durable;

pub use held::held_by_all;
pub use place::{Placed, StageRequest, stage};
pub use source::{SourceCheck, check_source};

/// What one remote made of a step.
#[derive(Debug)]
pub struct RemoteOutcome {
    /// The remote.
    pub remote: RemoteName,
    /// Whether the step has to be durable there to be safe.
    pub required: bool,
    /// What happened.
    pub result: Result<Uploaded>,
    /// Bytes that the store copied from an earlier step, instead of their being sent.
    pub copied_bytes: u64,
}

/// What a push came to.
#[derive(Debug)]
pub struct PushReport {
    /// Step and attempt.
    pub id: StepId,
    /// The step's directory or file name.
    pub name: String,
    /// Where it was taken from.
    pub source: PathBuf,
    /// Files in it.
    pub file_count: u64,
    /// Bytes in it.
    pub data_bytes: u64,
    /// Whether this push sealed it, or found it sealed or durable already.
    pub newly_sealed: bool,
    /// By remote, in the configured order.
    pub remotes: Vec<RemoteOutcome>,
}

/// Seals one checkpoint and uploads it to all `remotes` in parallel; ends when each has it or has failed, or when the
/// parts of other nodes have been waited for with `patience`.
///
/// The caller holds the vault's lock.
pub async fn push(
    vault: &Vault,
    remotes: &[RunRemote],
    request: StageRequest,
    budget: &MemoryBudget,
    patience: Duration,
    observer: &Arc<dyn Observer>,
) -> Result<PushReport> {
    let source = request.source.clone();
    let placed = stage(vault, remotes, request, observer).await?;
    let (id, name, file_count, data_bytes) = placed.summary();
    let newly_sealed = matches!(placed, Placed::Sealed { new: true, .. });
    let remotes = match &placed {
        Placed::Sealed { step, .. } => {
            upload_everywhere(vault, remotes, step, budget, patience, observer).await
        }
        Placed::DurableEverywhere { id, .. } => prove_everywhere(remotes, *id, observer).await,
    };
    Ok(PushReport {
        id,
        name,
        source,
        file_count,
        data_bytes,
        newly_sealed,
        remotes,
    })
}

/// Proves on every remote a step that all of them have committed.
async fn prove_everywhere(
    remotes: &[RunRemote],
    id: StepId,
    observer: &Arc<dyn Observer>,
) -> Vec<RemoteOutcome> {
    join_all(remotes.iter().map(|remote| async move {
        let proved = async {
            let commit = read_commit(remote, id).await?;
            ensure_durable(remote, &commit, observer).await
        };
        RemoteOutcome {
            remote: remote.name().clone(),
            required: remote.settings.required,
            result: proved.await.map(|()| Uploaded::AlreadyDurable),
            copied_bytes: 0,
        }
    }))
    .await
}

/// Uploads a sealed step to all remotes at once. A slow or failing one does not hold up the others.
pub async fn upload_everywhere(
    vault: &Vault,
    remotes: &[RunRemote],
    step: &SealedStep,
    budget: &MemoryBudget,
    patience: Duration,
    observer: &Arc<dyn Observer>,
) -> Vec<RemoteOutcome> {
    join_all(remotes.iter().map(|remote| async move {
        let lane = Lane::open(
            remote.clone(),
            vault.clone(),
            budget.clone(),
            Arc::clone(observer),
        )
        .await;
        let (result, copied_bytes) = match lane {
            Ok(lane) => {
                let result = upload_and_wait(&lane, step, patience).await;
                (result, lane.copied_bytes())
            }
            Err(error) => (Err(error), 0),
        };
        RemoteOutcome {
            remote: remote.name().clone(),
            required: remote.settings.required,
            result,
            copied_bytes,
        }
    }))
    .await
}

/// Between two looks for other nodes' parts.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

async fn upload_and_wait(lane: &Lane, step: &SealedStep, patience: Duration) -> Result<Uploaded> {
    let mut uploaded = lane.upload(step).await?;
    let deadline = Instant::now() + patience;
    while !uploaded.is_durable() && Instant::now() < deadline {
        tokio::time::sleep_until(deadline.min(Instant::now() + BETWEEN_LOOKS)).await;
        uploaded = lane.settle(step).await?;
    }
    Ok(uploaded)
}

//! Steps that were durable on a remote and are there no more: the bucket or directory was restored from an older copy, or
//! somebody deleted objects.

use stepvault_core::Result;
use stepvault_core::ids::StepId;
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;

use crate::blocking::blocking;
use crate::tier::catalog::{committed_ids, removed_steps};
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::is_durable_on;

/// Compares the steps that the vault takes for durable on a remote with what the remote lists, and forgets that those are
/// durable which it lacks: they are uploaded again. Returns them, the oldest first.
///
/// Takes two LISTs, and none if the vault has no such step. Whether the commit is the one that was acknowledged, and its
/// data are there, is checked before the local copy is evicted.
///
/// # Invariants
/// S1 and S6: what the vault has recorded of a remote is a cache, and is not believed for long.
///
/// # Errors
/// When the remote does not answer soon, or the vault cannot be read or written.
pub async fn forget_lost_steps(vault: &Vault, remote: &RunRemote) -> Result<Vec<StepId>> {
    let (vault, asked) = (vault.clone(), remote.clone());
    // Read before the remote is: each of them was committed before it is listed.
    let durable: Vec<SealedStep> = blocking(move || {
        let mut steps = vault.steps(asked.keys.run())?.steps;
        steps.retain(|step| is_durable_on(step, &asked).unwrap_or(false));
        Ok(steps)
    })
    .await?;
    if durable.is_empty() {
        return Ok(Vec::new());
    }
    let listed = async {
        let committed = committed_ids(remote).await?;
        // Listed after the commits: a step whose removal begins meanwhile is not lost.
        Ok((committed, removed_steps(remote).await?))
    };
    let (committed, removed) = remote.answers_soon(listed).await?;
    let is_lost = |step: &SealedStep| !committed.contains_key(&step.id()) && !removed.contains(step.id());
    let lost: Vec<SealedStep> = durable.into_iter().filter(is_lost).collect();
    let name = remote.name().clone();
    blocking(move || {
        for step in &lost {
            step.forget_remote(&name)?;
        }
        Ok(lost.iter().map(SealedStep::id).collect())
    })
    .await
}

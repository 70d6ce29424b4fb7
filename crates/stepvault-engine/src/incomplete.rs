//! Steps that were begun on a remote and lack parts.

use std::time::SystemTime;

use stepvault_core::Result;
use stepvault_core::ids::{NodeName, StepId};
use stepvault_core::records::Claim;

use crate::catalog::{claimed_ids, committed_ids, present_parts, removed_steps};
use crate::run_remote::RunRemote;

/// A step that is incomplete on a remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompleteStep {
    /// Step and attempt.
    pub id: StepId,
    /// The step's directory or file name.
    pub name: String,
    /// The nodes that make up the step, sorted by name.
    pub nodes: Vec<NodeName>,
    /// The nodes whose parts are missing; empty in the moment before a node commits the step.
    pub missing: Vec<NodeName>,
    /// When the step was begun, by the store's clock.
    pub begun: SystemTime,
}

/// Returns the steps that were begun but not committed on a remote, the oldest first.
///
/// # Errors
/// When the remote is unreachable. An unreadable claim is skipped, as it names no nodes.
pub async fn incomplete_steps(remote: &RunRemote) -> Result<Vec<IncompleteStep>> {
    let claims = claimed_ids(remote).await?;
    let committed = committed_ids(remote).await?;
    let removed = removed_steps(remote).await?;
    let is_open = |id: &StepId| !committed.contains_key(id) && !removed.contains(*id);
    let mut found = Vec::new();
    for (id, object) in claims.into_iter().filter(|(id, _)| is_open(id)) {
        let Some(claim) = remote.read_usable_record::<Claim>(&object.key).await? else {
            continue;
        };
        let missing = claim.nodes.missing(&present_parts(remote, id).await?);
        found.push(IncompleteStep {
            id,
            name: claim.name,
            nodes: claim.nodes.into(),
            missing,
            begun: object.modified,
        });
    }
    Ok(found)
}

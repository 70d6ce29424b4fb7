//! Steps that were begun on a remote and lack parts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use stepvault_core::Result;
use stepvault_core::ids::{NodeName, StepId};
use stepvault_core::records::Claim;
use stepvault_remote::store::ObjectInfo;

use crate::tier::catalog::{FoundCommit, claimed_ids, committed_ids, known_commits, present_parts};
use crate::tier::removed::removed_steps;
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::without_removed;

/// Claims that are read at once.
const READS_AT_ONCE: usize = 16;

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

/// Returns [`visible_commits`](crate::tier::step_state::visible_commits) of a remote, and the steps that were begun and not
/// committed there, the oldest first, for an overview. A step that is committed meanwhile may be among the incomplete
/// ones, with no part missing.
///
/// # Errors
/// When the remote is unreachable. An unreadable claim is skipped, as it names no nodes.
pub async fn visible_and_incomplete(
    remote: &RunRemote,
) -> Result<(BTreeMap<StepId, FoundCommit>, Vec<IncompleteStep>)> {
    let (listed, claims) = tokio::try_join!(committed_ids(remote), claimed_ids(remote))?;
    let committed: BTreeSet<StepId> = listed.keys().copied().collect();
    // Listed after the commits: one that was removed meanwhile is left out.
    let (commits, removed) = tokio::try_join!(known_commits(remote, listed), removed_steps(remote))?;
    let is_open = |id: &StepId| !committed.contains(id) && !removed.contains(*id);
    let open =
        claims.into_iter().filter(|(id, _)| is_open(id)).map(|(id, object)| open_step(remote, id, object));
    let found: Vec<Option<IncompleteStep>> = stream::iter(open).buffered(READS_AT_ONCE).try_collect().await?;
    Ok((without_removed(commits, &removed), found.into_iter().flatten().collect()))
}

async fn open_step(remote: &RunRemote, id: StepId, claimed: ObjectInfo) -> Result<Option<IncompleteStep>> {
    let (claim, present) =
        tokio::try_join!(remote.read_usable_record::<Claim>(&claimed.key), present_parts(remote, id))?;
    Ok(claim.map(|claim| IncompleteStep {
        id,
        name: claim.name,
        missing: claim.nodes.missing(&present),
        nodes: claim.nodes.into(),
        begun: claimed.modified,
    }))
}

//! Steps that were begun on a remote and lack parts.

use std::collections::BTreeSet;
use std::time::SystemTime;

use stepvault_core::Result;
use stepvault_core::ids::{NodeName, StepId};
use stepvault_core::keys::KeyKind;
use stepvault_core::records::Claim;

use crate::catalog::{committed_ids, is_outage, present_parts, tombstones};
use crate::run_remote::RunRemote;

/// A step that is not whole on a remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompleteStep {
    /// Step and attempt.
    pub id: StepId,
    /// The step's directory or file name.
    pub name: String,
    /// The nodes that it takes, sorted by name.
    pub nodes: Vec<NodeName>,
    /// Those whose parts are not there; none in the moment before somebody commits it.
    pub missing: Vec<NodeName>,
    /// When it was begun, by the store's clock.
    pub begun: SystemTime,
}

/// The steps that somebody has begun on a remote and nobody has committed, the oldest first.
///
/// # Errors
/// When the remote cannot be asked. A claim that cannot be read is passed over: it names no nodes.
pub async fn incomplete_steps(remote: &RunRemote) -> Result<Vec<IncompleteStep>> {
    let claims = remote.list(&remote.keys.claims_prefix()).await?;
    let committed = committed_ids(remote).await?;
    let gone: BTreeSet<StepId> = tombstones(remote).await?.into_iter().collect();
    let mut found = Vec::new();
    for object in claims {
        let Some(KeyKind::Claim(id)) = remote.keys.classify(&object.key) else {
            continue;
        };
        if committed.contains_key(&id) || gone.contains(&id) {
            continue;
        }
        let claim = match remote.read_record::<Claim>(&object.key).await {
            Ok(Some((claim, _))) => claim,
            Err(error) if is_outage(&error) => return Err(error),
            Ok(None) | Err(_) => continue,
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
    found.sort_by_key(|step| step.id);
    Ok(found)
}

//! Notices another job that pushes into the same run: steps that appeared on a remote since the last push of this vault,
//! and are none of its own.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stepvault_core::Result;
use stepvault_core::ids::{RemoteName, StepId};
use stepvault_core::nodes::Writer;
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;

use crate::blocking::sealed_steps;
use crate::notes::{read_list, write_list};
use crate::seen_checkpoints::seen_ids;
use crate::tier::catalog::{committed_ids, read_commit};
use crate::tier::run_remote::RunRemote;

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
pub(super) async fn steps_of_others(
    vault: &Vault,
    remotes: &[RunRemote],
    writer: &Writer,
) -> Result<Vec<String>> {
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

//! Finds the newest step on a remote, with which the next step probably shares files.

use stepvault_core::Result;
use stepvault_core::commit::{Commit, CommittedPart};
use stepvault_core::ids::{NodeName, StepId};
use stepvault_core::manifest::PartManifest;
use stepvault_local::sealed::{SealedStep, UploadState};

use super::lane::Lane;
use crate::blocking::blocking;
use crate::catalog::{committed_ids, read_commit, read_part_manifest};

impl Lane {
    /// Returns this node's part of the newest other step that is durable on this remote. If the vault still has that
    /// step, this takes no request; on a new node it takes one listing and two records.
    pub(super) async fn earlier_part(&self, id: StepId, node: &NodeName) -> Result<Option<PartManifest>> {
        match self.earlier_in_vault(id).await? {
            Some(known) => Ok(Some(known)),
            None => self.earlier_on_remote(id, node).await,
        }
    }

    async fn earlier_in_vault(&self, id: StepId) -> Result<Option<PartManifest>> {
        let lane = self.clone();
        blocking(move || {
            let scan = lane.vault.steps(lane.remote.keys.run())?;
            let newest_first = scan.steps.iter().rev().filter(|step| step.id() != id);
            for step in newest_first {
                if lane.has_durable(step)? {
                    return step.manifest();
                }
            }
            Ok(None)
        })
        .await
    }

    /// Whether the vault has recorded the step as durable on this lane's remote.
    fn has_durable(&self, step: &SealedStep) -> Result<bool> {
        let state = step.remote_state(self.remote.name())?;
        Ok(state.is_some_and(|state| {
            state.state == UploadState::Durable
                && state.url == self.remote.store.url()
                && state.vault == self.marker.vault
        }))
    }

    async fn earlier_on_remote(&self, id: StepId, node: &NodeName) -> Result<Option<PartManifest>> {
        let committed = committed_ids(&self.remote).await?;
        let Some(newest) = committed.into_keys().rev().find(|known| *known != id) else {
            return Ok(None);
        };
        let commit = read_commit(&self.remote, newest).await?;
        match part_of(&commit, node) {
            Some(part) => read_part_manifest(&self.remote, &commit, part).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Returns the node's own part. A node that replaces another may have a different name; the only part of a step counts
/// as its own.
fn part_of<'a>(commit: &'a Commit, node: &NodeName) -> Option<&'a CommittedPart> {
    let own = commit.parts.iter().find(|part| part.node == *node);
    own.or(match &commit.parts[..] {
        [only] => Some(only),
        _ => None,
    })
}

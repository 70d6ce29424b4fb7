//! The step that a remote has already and that the next one is likely to have files in common with: the newest.

use stepvault_core::Result;
use stepvault_core::commit::{Commit, CommittedPart};
use stepvault_core::ids::{NodeName, StepId};
use stepvault_core::manifest::PartManifest;
use stepvault_local::sealed::{SealedStep, UploadState};

use super::lane::Lane;
use crate::blocking::blocking;
use crate::catalog::{committed_ids, read_commit, read_part_manifest};

impl Lane {
    /// This node's part of the newest other step that is durable on this remote. Where the vault still has one it costs
    /// no request; on a new node one listing and two records.
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

    /// Whether the vault remembers the step as durable in the place that this lane leads to.
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

/// The node's own part. A node that came in the place of another may have another name, and is the only one all the same.
fn part_of<'a>(commit: &'a Commit, node: &NodeName) -> Option<&'a CommittedPart> {
    let own = commit.parts.iter().find(|part| part.node == *node);
    own.or(match &commit.parts[..] {
        [only] => Some(only),
        _ => None,
    })
}

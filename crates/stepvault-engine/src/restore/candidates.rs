//! The steps that some tier holds, the newest first.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use stepvault_core::ids::StepId;
use stepvault_core::observe::{Event, Tier};
use stepvault_core::{Error, Result};
use stepvault_local::sealed::SealedStep;

use super::{RestoreContext, RestoreRequest};
use crate::blocking::blocking;
use crate::catalog::{committed_ids, tombstones};
use crate::run_remote::RunRemote;

/// A step that is somewhere.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) id: StepId,
    pub(super) local: Option<SealedStep>,
    /// Remotes that list a commit of it, in the configured order.
    pub(super) remotes: Vec<RunRemote>,
    /// What is known to be wrong with it somewhere.
    pub(super) reasons: Vec<String>,
}

/// All candidates, and the tiers that could not be asked.
#[derive(Debug)]
pub(super) struct Candidates {
    by_step: BTreeMap<StepId, Candidate>,
    pub(super) unreachable: Vec<(Tier, Error)>,
}

impl Candidates {
    pub(super) async fn gather(context: &RestoreContext, request: &RestoreRequest) -> Result<Self> {
        let mut candidates = Self {
            by_step: BTreeMap::new(),
            unreachable: Vec::new(),
        };
        candidates.gather_local(context, request).await?;
        let listings = join_all(context.remotes.iter().map(list_remote)).await;
        for (remote, listing) in context.remotes.iter().zip(listings) {
            match listing {
                Ok(ids) => {
                    for id in ids {
                        candidates.entry(id).remotes.push(remote.clone());
                    }
                }
                Err(error) => {
                    context.observer.on_event(&Event::Warning {
                        message: &format!(
                            "{} cannot be asked, and may hold newer steps: {error}",
                            remote.name()
                        ),
                    });
                    candidates.unreachable.push((remote.tier.clone(), error));
                }
            }
        }
        candidates.by_step.retain(|id, _| {
            request.step.is_none_or(|step| step == id.step)
                && request.attempt.is_none_or(|attempt| attempt == id.attempt)
        });
        Ok(candidates)
    }

    async fn gather_local(&mut self, context: &RestoreContext, request: &RestoreRequest) -> Result<()> {
        let Some(vault) = context.vault.clone() else {
            return Ok(());
        };
        let run = request.run.clone();
        let scan = blocking(move || vault.steps(&run)).await?;
        for step in scan.steps {
            let id = step.id();
            self.entry(id).local = Some(step);
        }
        for (path, error) in scan.faults {
            let id = path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(StepId::from_label);
            if let Some(id) = id {
                self.entry(id).reasons.push(format!("local: {error}"));
            }
        }
        Ok(())
    }

    fn entry(&mut self, id: StepId) -> &mut Candidate {
        self.by_step.entry(id).or_insert_with(|| Candidate {
            id,
            local: None,
            remotes: Vec::new(),
            reasons: Vec::new(),
        })
    }

    /// Takes the newest candidate out.
    pub(super) fn next_newest(&mut self) -> Option<Candidate> {
        self.by_step.pop_last().map(|(_, candidate)| candidate)
    }
}

/// The steps of a remote that are committed and not condemned.
async fn list_remote(remote: &RunRemote) -> Result<Vec<StepId>> {
    let condemned: BTreeSet<StepId> = tombstones(remote).await?.into_iter().collect();
    let committed = committed_ids(remote).await?;
    Ok(committed
        .into_keys()
        .filter(|id| !condemned.contains(id))
        .collect())
}

//! Lists the steps that any tier holds, the newest first.

use std::collections::BTreeMap;

use futures::future::join_all;
use stepvault_core::ids::StepId;
use stepvault_core::observe::{Event, Tier};
use stepvault_core::{Error, Result};
use stepvault_local::sealed::SealedStep;

use super::{RestoreContext, RestoreRequest};
use crate::blocking::blocking;
use crate::catalog::{committed_ids, is_outage, outage, removed_steps};
use crate::run_remote::RunRemote;

/// A step that at least one tier holds.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) id: StepId,
    pub(super) local: Option<SealedStep>,
    /// Remotes that list a commit of it, in the configured order.
    pub(super) remotes: Vec<RunRemote>,
    /// The known faults of the step on any tier.
    pub(super) reasons: Vec<String>,
    /// The tiers that have it but could not be read.
    pub(super) unread: Vec<String>,
}

/// All candidates, and the unreachable tiers.
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
                Err(error) => candidates.cannot_be_asked(context, remote.tier.clone(), error),
            }
        }
        candidates.by_step.retain(|id, _| {
            request.step.is_none_or(|step| step == id.step)
                && request.attempt.is_none_or(|attempt| attempt == id.attempt)
        });
        Ok(candidates)
    }

    fn cannot_be_asked(&mut self, context: &RestoreContext, tier: Tier, error: Error) {
        context.observer.on_event(&Event::Warning {
            message: &format!("{tier} is unreachable and may hold newer steps: {error}"),
        });
        self.unreachable.push((tier, error));
    }

    async fn gather_local(&mut self, context: &RestoreContext, request: &RestoreRequest) -> Result<()> {
        let Some(vault) = context.vault.clone() else {
            return Ok(());
        };
        let run = request.run.clone();
        let scan = match blocking(move || vault.steps(&run)).await {
            Err(error) if request.allow_older && is_outage(&error) => {
                self.cannot_be_asked(context, Tier::Local, outage(error));
                return Ok(());
            }
            scan => scan.map_err(outage)?,
        };
        for step in scan.steps {
            let id = step.id();
            self.entry(id).local = Some(step);
        }
        for (path, error) in scan.faults {
            let id = path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(StepId::from_label);
            let Some(id) = id else { continue };
            let text = format!("local: {error}");
            let entry = self.entry(id);
            if is_outage(&error) {
                entry.unread.push(text);
            } else {
                entry.reasons.push(text);
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
            unread: Vec::new(),
        })
    }

    /// Removes and returns the newest candidate.
    pub(super) fn next_newest(&mut self) -> Option<Candidate> {
        self.by_step.pop_last().map(|(_, candidate)| candidate)
    }
}

/// Returns the steps of a remote that are committed and not removed.
async fn list_remote(remote: &RunRemote) -> Result<Vec<StepId>> {
    let removed = removed_steps(remote).await?;
    let committed = committed_ids(remote).await?;
    Ok(committed
        .into_keys()
        .filter(|id| !removed.contains(*id))
        .collect())
}

//! The reports with which nodes start in an attempt, the decision that follows from all of them, and its completion.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::codec::FORMAT;
use stepvault_core::keys::ResumePoint;
use stepvault_core::records::{Availability, StagedPart, StagedParts};
use stepvault_core::{Attempt, ErrorKind, NodeName, NodeSet, Result, StepId};
use stepvault_local::sealed::SealedStep;
use tokio::time::Instant;

use super::{Agreed, Agreement, POLL_INTERVAL};
use crate::blocking::{blocking, sealed_steps};
use crate::outage::{is_outage, outage};
use crate::restore::request::Parts;
use crate::tier::catalog::{present_parts, starting_nodes};
use crate::tier::step_state::visible_steps;
use crate::upload::{UploadSession, missing_bytes};

/// Maximum number of sealed parts that a node reports, the newest first.
const MAX_STAGED: usize = 16;

/// The parts of multi-node steps in this node's vault, the newest last; all of them were written by the same set of
/// nodes.
#[derive(Debug, Default)]
pub(super) struct HeldParts {
    steps: Vec<SealedStep>,
}

impl HeldParts {
    /// Returns the newest step that is newer than `durable` and not damaged.
    pub(super) fn newest(&self, durable: Option<StepId>, damaged: &BTreeSet<StepId>) -> Option<StepId> {
        let ids = self.steps.iter().map(SealedStep::id);
        ids.filter(|id| Some(*id) > durable && !damaged.contains(id)).max()
    }

    /// Returns the part of a step.
    pub(super) fn of(&self, id: StepId) -> Option<&SealedStep> {
        self.steps.iter().find(|step| step.id() == id)
    }
}

/// The nodes that hold a part of a step, by the reports.
struct Holders {
    nodes: NodeSet,
    parts: BTreeSet<NodeName>,
    /// Whether each of them wrote the part that it holds.
    each_its_own: bool,
}

impl Agreement<'_> {
    /// Returns the parts that this node's vault holds, whichever rank this node had when it wrote them.
    pub(super) async fn held_parts(&self) -> Result<HeldParts> {
        let Some(vault) = &self.context.vault else {
            return Ok(HeldParts::default());
        };
        let scan = sealed_steps(vault, &self.request.run).await.map_err(outage)?;
        for (_, error) in scan.faults {
            if is_outage(&error) && !self.request.allow_older {
                return Err(outage(error).hint(
                    "retry when the vault is readable, or resume from an older step with --allow-older: this node \
                     cannot tell the others whether it has that step",
                ));
            }
        }
        let mut steps: Vec<SealedStep> = scan
            .steps
            .into_iter()
            .filter(|step| step.record().is_one_of_several() && !step.record().is_provisional())
            .filter(|step| !self.request.demoted.contains_key(&step.id()))
            .collect();
        if let Some(nodes) = steps.last().map(|step| step.record().nodes()) {
            steps.retain(|step| step.record().nodes() == nodes);
        }
        let oldest = steps.len().saturating_sub(MAX_STAGED);
        steps.drain(..oldest);
        Ok(HeldParts { steps })
    }

    /// Writes this node's report.
    pub(super) async fn report(&self, attempt: Attempt, held: &HeldParts, missing_bytes: u64) -> Result<()> {
        let place = &self.together.writer.place;
        let newest = held.steps.last().map(|step| step.record().nodes());
        let part = |step: &SealedStep| StagedPart { id: step.id(), node: step.record().node.clone() };
        let report = StagedParts {
            format: FORMAT,
            run: self.request.run.clone(),
            attempt,
            node: place.node().clone(),
            nodes: newest.unwrap_or_else(|| place.nodes().clone()),
            parts: held.steps.iter().map(part).collect(),
            missing_bytes,
        };
        let key = self.remote.keys.staged(attempt, place.node());
        self.remote.replace_record(&key, &report).await
    }

    /// Returns the nodes that have not reported in an attempt.
    pub(super) async fn silent_nodes(&self, attempt: Attempt) -> Result<Vec<NodeName>> {
        let place = &self.together.writer.place;
        Ok(place.nodes().missing(&starting_nodes(self.remote, attempt).await?))
    }

    /// Decides between the newest durable step and a newer one of which the nodes hold all parts.
    pub(super) async fn decide(&self, attempt: Attempt, damaged: &BTreeSet<StepId>) -> Result<Agreed> {
        let durable = self.newest_durable(damaged).await?;
        let wants_own = matches!(self.request.parts, Parts::Of(_));
        for (id, holders) in self.holders(attempt).await?.into_iter().rev() {
            if Some(id) <= durable.step {
                break;
            }
            if damaged.contains(&id) || self.request.demoted.contains_key(&id) {
                continue;
            }
            let availability = if wants_own && holders.each_its_own {
                let all_hold_theirs = holders.nodes.missing(&holders.parts).is_empty();
                (all_hold_theirs && holders.nodes == *self.together.writer.place.nodes())
                    .then_some(Availability::OwnParts)
            } else {
                self.is_whole(id, &holders).await?.then_some(Availability::WhenUploaded)
            };
            if let Some(availability) = availability {
                return Ok(Agreed::on(id, availability));
            }
        }
        Ok(durable)
    }

    /// Whether the nodes hold every part that the remote lacks.
    async fn is_whole(&self, id: StepId, holders: &Holders) -> Result<bool> {
        if holders.nodes.missing(&holders.parts).is_empty() {
            return Ok(true);
        }
        let mut parts = present_parts(self.remote, id).await?;
        parts.extend(holders.parts.iter().cloned());
        Ok(holders.nodes.missing(&parts).is_empty())
    }

    /// Returns who holds the parts of each reported step. Nodes that report a step with different sets of nodes do not
    /// hold parts of one step.
    async fn holders(&self, attempt: Attempt) -> Result<BTreeMap<StepId, Holders>> {
        let mut held: BTreeMap<StepId, Holders> = BTreeMap::new();
        for node in starting_nodes(self.remote, attempt).await? {
            let key = self.remote.keys.staged(attempt, &node);
            let Some(report) = self.remote.read_confirmed::<StagedParts>(&key).await? else {
                continue;
            };
            for part in report.parts {
                let holders = held.entry(part.id).or_insert_with(|| Holders {
                    nodes: report.nodes.clone(),
                    parts: BTreeSet::new(),
                    each_its_own: true,
                });
                if holders.nodes == report.nodes {
                    holders.each_its_own &= part.node == node;
                    holders.parts.insert(part.node);
                }
            }
        }
        Ok(held)
    }
}

/// Interval between this node's reports while it uploads.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

impl Agreement<'_> {
    /// Uploads this node's part of an agreed step and waits for the parts of the others, as long as any node makes
    /// progress. Whether the step became durable is recorded for all nodes as the decision of the next round.
    ///
    /// # Invariants
    /// A node resumes from the step only if that record says that it is durable, so that no node resumes from a part of
    /// it (S3) and all resume from the same step.
    pub(super) async fn complete(
        &self,
        point: ResumePoint,
        id: StepId,
        held: &HeldParts,
        damaged: &BTreeSet<StepId>,
    ) -> Result<()> {
        self.context.observer.warn(format!(
            "{id} is sealed on the nodes and not durable: uploading it before the trainer resumes from it"
        ));
        let own = held.of(id);
        let upload = async {
            if let Some(step) = own
                && let Err(error) = self.upload(step).await
            {
                self.context.observer.warn(format!("cannot upload this node's part of {id}: {error}"));
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            decided = self.wait_until_decided(point, id, held, damaged) => decided,
            () = upload => Ok(()),
        }
    }

    /// Uploads this node's part. If an agent holds the vault, that agent does it.
    async fn upload(&self, step: &SealedStep) -> Result<()> {
        let Some(vault) = self.context.vault.clone() else {
            return Ok(());
        };
        let locked = vault.clone();
        let _lock = match blocking(move || locked.lock()).await {
            Ok(lock) => lock,
            Err(error) if error.kind() == ErrorKind::Held => return Ok(()),
            Err(error) => return Err(error),
        };
        let (budget, observer) = (self.context.budget.clone(), Arc::clone(&self.context.observer));
        let session =
            UploadSession::open(self.remote.clone(), vault, budget, observer, step.record().digest).await?;
        let mut uploaded = session.upload(step).await?;
        while !uploaded.is_durable() {
            tokio::time::sleep(POLL_INTERVAL).await;
            uploaded = session.commit_if_complete(step).await?;
        }
        Ok(())
    }

    async fn wait_until_decided(
        &self,
        point: ResumePoint,
        id: StepId,
        held: &HeldParts,
        damaged: &BTreeSet<StepId>,
    ) -> Result<()> {
        let next = ResumePoint { round: point.round + 1, ..point };
        let (mut deadline, mut report_at) = (Instant::now() + self.together.patience, Instant::now());
        let (mut missing, mut seen) = (None, Vec::new());
        while self.recorded(next).await?.is_none() {
            if visible_steps(self.remote).await?.contains_key(&id) {
                self.record(next, &Agreed::on(id, Availability::Durable)).await?;
                return Ok(());
            }
            if Instant::now() >= report_at {
                report_at = Instant::now() + REPORT_INTERVAL;
                let now_missing = self.missing_bytes(held.of(id)).await;
                if missing.replace(now_missing) != Some(now_missing) {
                    self.report(point.attempt, held, now_missing).await?;
                }
                let reports = self.remote.list(&self.remote.keys.staged_prefix(point.attempt)).await?;
                if seen != reports {
                    seen = reports;
                    deadline = Instant::now() + self.together.patience;
                }
            }
            if Instant::now() >= deadline {
                self.context.observer.warn(format!(
                        "{id} did not become durable: no node made progress for {} s; resuming from an older step",
                        self.together.patience.as_secs()
                    ));
                let durable = self.newest_durable(damaged).await?;
                self.record(next, &durable).await?;
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Returns the bytes of this node's part that are not on the remote, as far as its journal can be read.
    async fn missing_bytes(&self, step: Option<&SealedStep>) -> u64 {
        let (Some(vault), Some(step)) = (self.context.vault.clone(), step.cloned()) else {
            return 0;
        };
        let remote = self.remote.name().clone();
        let missing = blocking(move || missing_bytes(&vault, &step, &remote));
        missing.await.unwrap_or_default()
    }
}

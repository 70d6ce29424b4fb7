//! Makes a step durable whose parts are in the nodes' vaults, before the nodes resume from it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::ids::StepId;
use stepvault_core::keys::ResumePoint;
use stepvault_core::records::Availability;
use stepvault_core::{ErrorKind, Result};
use stepvault_local::sealed::SealedStep;
use tokio::time::Instant;

use super::reports::HeldParts;
use super::{Agreed, Agreement, POLL_INTERVAL};
use crate::blocking::blocking;
use crate::tier::step_state::visible_steps;
use crate::upload::{UploadSession, missing_bytes};

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

//! Leases: let readers and pruners detect each other, by the store's clock alone.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stepvault_core::codec::FORMAT;
use stepvault_core::ids::StepId;
use stepvault_core::records::Lease;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::random;
use tokio::task::JoinHandle;

use crate::tier::catalog::leases;
use crate::tier::run_remote::RunRemote;

/// A lease that is not renewed for this long is no longer valid; no lease ever has to be removed by hand.
pub const TIME_TO_LIVE_SECONDS: u64 = 900;
/// A pruner's lease expires sooner: only the next pruner depends on it.
const PRUNE_TIME_TO_LIVE_SECONDS: u64 = 120;

/// A lease that is held: renewed in the background until released or dropped.
#[derive(Debug)]
pub struct HeldLease {
    remote: RunRemote,
    key: String,
    /// When it was taken, by the store's clock.
    taken: SystemTime,
    renewal: JoinHandle<()>,
}

impl HeldLease {
    /// Takes a reader's lease on a step.
    pub async fn on_step(remote: &RunRemote, id: StepId) -> Result<Self> {
        let holder = random::identity();
        Self::take(
            remote,
            remote.keys.lease(id, &holder),
            holder,
            "restore",
            TIME_TO_LIVE_SECONDS,
        )
        .await
    }

    /// Takes a pruner's lease on the run.
    pub async fn on_run(remote: &RunRemote) -> Result<Self> {
        let holder = random::identity();
        Self::take(
            remote,
            remote.keys.prune_lease(&holder),
            holder,
            "prune",
            PRUNE_TIME_TO_LIVE_SECONDS,
        )
        .await
    }

    /// Checks that no other process prunes the run or deletes its orphans: two at once would each plan on what the
    /// other removes. Of two that see each other, the one with the lower key continues.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] when another process does.
    pub(crate) async fn ensure_alone(&self) -> Result<()> {
        let others = leases(&self.remote).await?;
        let other = others
            .iter()
            .filter(|other| other.id.is_none() && other.is_live(self.taken))
            .find(|other| other.key < self.key);
        match other {
            None => Ok(()),
            Some(other) => Err(
                Error::new(ErrorKind::Held, "another prune or gc of the run is under way")
                    .on(self.remote.store.url())
                    .because(format!("holder {}", other.holder))
                    .hint("wait until it ends; the lease of a killed process expires within two minutes"),
            ),
        }
    }

    async fn take(
        remote: &RunRemote,
        key: String,
        holder: String,
        purpose: &str,
        time_to_live_seconds: u64,
    ) -> Result<Self> {
        let lease = Lease {
            format: FORMAT,
            holder,
            purpose: purpose.to_owned(),
            time_to_live_seconds,
        };
        remote.replace_record(&key, &lease).await?;
        let head = remote.store.head(&key).await?.ok_or_else(|| {
            Error::new(ErrorKind::Failed, "a lease is missing after it was written").on(remote.describe(&key))
        })?;
        let renewal = tokio::spawn(renew(remote.clone(), key.clone(), Arc::new(lease)));
        Ok(Self {
            remote: remote.clone(),
            key,
            taken: head.info.modified,
            renewal,
        })
    }

    /// Returns the store's time at which the lease was taken.
    pub fn taken(&self) -> SystemTime {
        self.taken
    }

    /// Returns the lease's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Releases the lease. A failure is harmless: the lease expires.
    ///
    /// # Errors
    /// When it could not be deleted, for callers that need to know.
    pub async fn release(self) -> Result<()> {
        self.renewal.abort();
        let deleted = self.remote.store.delete(std::slice::from_ref(&self.key)).await;
        deleted.inspect_err(
            |error| tracing::debug!(%error, key = self.key, "cannot release a lease; it will expire"),
        )
    }

    /// Releases the lease after a removal and combines both results.
    ///
    /// # Errors
    /// The removal's own. [`ErrorKind::Denied`] without the right to delete, even if there was nothing to delete: the
    /// next removal would be blocked by a lease that it may not delete.
    pub async fn end<Report>(self, outcome: Result<Report>) -> Result<Report> {
        match (outcome, self.release().await) {
            (Ok(_), Err(error)) if error.kind() == ErrorKind::Denied => Err(error),
            (outcome, _) => outcome,
        }
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

async fn renew(remote: RunRemote, key: String, lease: Arc<Lease>) {
    loop {
        tokio::time::sleep(Duration::from_secs(lease.time_to_live_seconds / 3)).await;
        if let Err(error) = remote.replace_record(&key, lease.as_ref()).await {
            tracing::warn!(%error, key, "cannot renew a lease");
        }
    }
}

//! Leases: how a reader and a pruner see each other, by the store's clock alone.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stepvault_core::codec::FORMAT;
use stepvault_core::ids::StepId;
use stepvault_core::records::Lease;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::random;
use tokio::task::JoinHandle;

use crate::run_remote::RunRemote;

/// A lease that is not renewed for this long no longer counts; nobody ever has to remove one by hand.
pub const TIME_TO_LIVE_SECONDS: u64 = 900;
/// A pruner's runs out sooner: nothing depends on it but the next pruner.
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
            Error::new(ErrorKind::Failed, "a lease is not there after it was written")
                .on(remote.describe(&key))
        })?;
        let renewal = tokio::spawn(renew(remote.clone(), key.clone(), Arc::new(lease)));
        Ok(Self {
            remote: remote.clone(),
            key,
            taken: head.info.modified,
            renewal,
        })
    }

    /// The store's clock when the lease was taken.
    pub fn taken(&self) -> SystemTime {
        self.taken
    }

    /// The lease's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Gives the lease back. Failing to is no harm: it runs out.
    ///
    /// # Errors
    /// When it could not be deleted, for whom that says something.
    pub async fn release(self) -> Result<()> {
        self.renewal.abort();
        let deleted = self.remote.store.delete(std::slice::from_ref(&self.key)).await;
        deleted.inspect_err(
            |error| tracing::debug!(%error, key = self.key, "a lease could not be given back and will run out"),
        )
    }

    /// Gives the lease back after a removal, and says what came of both.
    ///
    /// # Errors
    /// The removal's own. [`ErrorKind::Denied`] without the right to delete, also where nothing had to go: whoever
    /// removes next would be held up by the lease that nobody may take away.
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
            tracing::warn!(%error, key, "a lease could not be renewed");
        }
    }
}

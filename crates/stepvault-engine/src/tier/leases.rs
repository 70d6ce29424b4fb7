//! Leases: let readers and pruners detect each other, by the store's clock alone.

use std::fmt::Debug;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use stepvault_core::codec::{FORMAT, Record};
use stepvault_core::keys::{KeyKind, LEASES};
use stepvault_core::records::Lease;
use stepvault_core::{Error, ErrorKind, Result, StepId};
use stepvault_remote::random;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::catalog::PARALLEL_READS;
use super::run_remote::RunRemote;
use crate::outage::is_outage;

/// A lease that is not renewed for this long is no longer valid; no lease ever has to be removed by hand.
pub const TIME_TO_LIVE_SECONDS: u64 = 900;
/// A pruner's lease expires sooner: only the next pruner depends on it.
const PRUNE_TIME_TO_LIVE_SECONDS: u64 = 120;
/// How often a pruner looks whether others give way to it.
const LOOKS_FOR_OTHERS: usize = 5;
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// A record that was written and is rewritten in the background, so that it does not expire, until it is released or
/// dropped.
#[derive(Debug)]
pub(crate) struct RenewedRecord {
    remote: RunRemote,
    key: String,
    renewed_at: Arc<Mutex<Instant>>,
    renewal: JoinHandle<()>,
}

impl RenewedRecord {
    /// Writes the record, and begins to rewrite it each `interval`.
    pub(crate) async fn write<R: Record + Debug + Send + Sync + 'static>(
        remote: &RunRemote,
        key: String,
        record: R,
        interval: Duration,
    ) -> Result<Self> {
        let began = Instant::now();
        remote.replace_record(&key, &record).await?;
        let renewed_at = Arc::new(Mutex::new(began));
        let renewal = {
            let (remote, key, renewed_at) = (remote.clone(), key.clone(), Arc::clone(&renewed_at));
            async move {
                loop {
                    tokio::time::sleep(interval).await;
                    let began = Instant::now();
                    match remote.replace_record(&key, &record).await {
                        Ok(()) => *renewed_at.lock() = began,
                        Err(error) => tracing::warn!(%error, key, "cannot renew a lease"),
                    }
                }
            }
        };
        Ok(Self { remote: remote.clone(), key, renewed_at, renewal: tokio::spawn(renewal) })
    }

    /// Returns for how long it was not renewed.
    pub(crate) fn age(&self) -> Duration {
        self.renewed_at.lock().elapsed()
    }

    /// Deletes the record. A failure is harmless: the record expires.
    ///
    /// # Errors
    /// When it could not be deleted, for callers that need to know.
    pub(crate) async fn release(self) -> Result<()> {
        self.renewal.abort();
        let deleted = self.remote.store.delete(slice::from_ref(&self.key)).await;
        deleted.inspect_err(
            |error| tracing::debug!(%error, key = self.key, "cannot release a lease; it will expire"),
        )
    }
}

impl Drop for RenewedRecord {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// Returns the store's time at which a lease was written.
pub(crate) async fn written_at(remote: &RunRemote, key: &str) -> Result<SystemTime> {
    let head = remote.store.head(key).await?;
    head.map(|head| head.info.modified).ok_or_else(|| {
        Error::new(ErrorKind::Failed, "a lease is missing after it was written").on(remote.describe(key))
    })
}

/// A lease that is held until it is released or dropped.
#[derive(Debug)]
pub struct HeldLease {
    record: RenewedRecord,
    /// When it was taken, by the store's clock.
    pub(crate) taken: SystemTime,
}

impl HeldLease {
    /// Takes a reader's lease on a step.
    pub async fn on_step(remote: &RunRemote, id: StepId) -> Result<Self> {
        let holder = random::identity();
        let key = remote.keys.lease(id, &holder);
        Self::take(remote, key, holder, "restore", TIME_TO_LIVE_SECONDS).await
    }

    /// Takes a pruner's lease on the run.
    pub async fn on_run(remote: &RunRemote) -> Result<Self> {
        let holder = random::identity();
        let key = remote.keys.prune_lease(&holder);
        Self::take(remote, key, holder, "prune", PRUNE_TIME_TO_LIVE_SECONDS).await
    }

    /// Checks that no other process prunes the run or deletes its orphans: two at once would each plan on what the
    /// other removes. Of two that see each other, the one with the lower key continues, once the other one is gone: it may have
    /// looked before this lease was there, and not give way.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] when another process does.
    ///
    /// # Invariants
    /// S7: it continues only after a listing that has its own lease alone.
    pub(crate) async fn ensure_alone(&self) -> Result<()> {
        let mut looks = 1;
        loop {
            let mut others = leases(&self.record.remote).await?;
            others.retain(|other| {
                other.id.is_none() && other.key != self.record.key && other.is_live(self.taken)
            });
            let Some(other) = others.iter().min_by_key(|other| &other.key) else {
                return Ok(());
            };
            if other.key < self.record.key || looks == LOOKS_FOR_OTHERS {
                return Err(Error::new(ErrorKind::Held, "another prune or gc of the run is under way")
                    .on(self.record.remote.store.url())
                    .because(format!("holder {}", other.holder))
                    .hint("wait until it ends; the lease of a killed process expires within two minutes"));
            }
            looks += 1;
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    async fn take(
        remote: &RunRemote,
        key: String,
        holder: String,
        purpose: &str,
        time_to_live_seconds: u64,
    ) -> Result<Self> {
        let lease = Lease { format: FORMAT, holder, purpose: purpose.to_owned(), time_to_live_seconds };
        let interval = Duration::from_secs(time_to_live_seconds / 3);
        let record = RenewedRecord::write(remote, key, lease, interval).await?;
        let taken = written_at(remote, &record.key).await?;
        Ok(Self { record, taken })
    }

    /// Returns the lease's key.
    pub fn key(&self) -> &str {
        &self.record.key
    }

    /// Releases the lease. A failure is harmless: the lease expires.
    ///
    /// # Errors
    /// When it could not be deleted, for callers that need to know.
    pub async fn release(self) -> Result<()> {
        self.record.release().await
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

/// A lease on a step or on the run that was found on a remote.
#[derive(Debug)]
pub struct FoundLease {
    /// Its key.
    pub key: String,
    /// Its step; `None` for a lease on the run.
    pub id: Option<StepId>,
    /// Its holder.
    pub holder: String,
    /// When it was last renewed, by the store's clock.
    pub renewed: SystemTime,
    /// How long it lasts from then. An unreadable lease lasts as long as the longest one that is given.
    pub time_to_live_seconds: u64,
}

impl FoundLease {
    /// Whether it is still valid at `now`, by the store's clock.
    pub fn is_live(&self, now: SystemTime) -> bool {
        now.duration_since(self.renewed).map_or(true, |age| age.as_secs() < self.time_to_live_seconds)
    }
}

/// Lists all leases, live or not.
pub async fn leases(remote: &RunRemote) -> Result<Vec<FoundLease>> {
    let select = |kind| match kind {
        KeyKind::Lease(id, holder) => Some((Some(id), holder)),
        KeyKind::PruneLease(holder) => Some((None, holder)),
        _ => None,
    };
    let listed = remote.list_kind(&remote.keys.all(LEASES), select).await?;
    stream::iter(listed)
        .map(|((id, holder), object)| async move {
            let time_to_live_seconds = match remote.read_confirmed::<Lease>(&object.key).await {
                Ok(Some(lease)) => lease.time_to_live_seconds,
                // Deleted since the listing.
                Ok(None) => 0,
                Err(error) if is_outage(&error) => return Err(error),
                Err(_) => TIME_TO_LIVE_SECONDS,
            };
            Ok(FoundLease { key: object.key, id, holder, renewed: object.modified, time_to_live_seconds })
        })
        .buffer_unordered(PARALLEL_READS)
        .try_collect()
        .await
}

/// Lists the leases that are live at the time at which the last of them was renewed. The
/// store's clock has reached that time at least.
pub(crate) async fn live_leases(remote: &RunRemote) -> Result<Vec<FoundLease>> {
    let mut found = leases(remote).await?;
    if let Some(now) = found.iter().map(|lease| lease.renewed).max() {
        found.retain(|lease| lease.is_live(now));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_lasts_as_long_as_it_says_by_the_stores_clock() {
        let renewed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let lease = FoundLease {
            key: "key".to_owned(),
            id: None,
            holder: "somebody".to_owned(),
            renewed,
            time_to_live_seconds: 120,
        };
        assert!(lease.is_live(renewed));
        assert!(lease.is_live(renewed + Duration::from_millis(119_999)));
        assert!(!lease.is_live(renewed + Duration::from_mins(2)));
        assert!(!lease.is_live(renewed + Duration::from_secs(121)));
        // Renewed after the clock was read.
        assert!(lease.is_live(renewed - Duration::from_secs(500)));
        let gone = FoundLease { time_to_live_seconds: 0, ..lease };
        assert!(!gone.is_live(renewed));
    }
}

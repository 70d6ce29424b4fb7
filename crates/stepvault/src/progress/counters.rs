//! Transfer counters of one tier.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stepvault_core::observe::Tier;

/// Minimum time between two lines about retries on one tier.
const RETRY_LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Counters of one tier, written by many threads and read by the drawing thread.
#[derive(Debug)]
pub(super) struct TierCounters {
    pub(super) tier: Tier,
    pub(super) total_bytes: AtomicU64,
    pub(super) moved_bytes: AtomicU64,
    /// Bytes that were sent and are not acknowledged yet.
    pub(super) in_flight_bytes: AtomicI64,
    pub(super) copied_bytes: AtomicU64,
    pub(super) reused_bytes: AtomicU64,
    pub(super) total_files: AtomicU64,
    pub(super) done_files: AtomicU64,
    transfers: AtomicU64,
    /// Number of transfers that began after a pause.
    transfer: AtomicU64,
    began: Instant,
    /// When the transfer began, in milliseconds since `began`.
    transfer_began: AtomicU64,
    /// Time of the last line about a retry, in milliseconds since `began`, plus one; 0 for never.
    retry_told: AtomicU64,
}

impl TierCounters {
    pub(super) fn new(tier: Tier) -> Self {
        Self {
            tier,
            total_bytes: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            in_flight_bytes: AtomicI64::new(0),
            copied_bytes: AtomicU64::new(0),
            reused_bytes: AtomicU64::new(0),
            total_files: AtomicU64::new(0),
            done_files: AtomicU64::new(0),
            transfers: AtomicU64::new(0),
            transfer: AtomicU64::new(0),
            began: Instant::now(),
            transfer_began: AtomicU64::new(0),
            retry_told: AtomicU64::new(0),
        }
    }

    /// Starts a transfer of known size. The first one after a pause resets the counters, so that a retried transfer is
    /// not counted twice.
    pub(super) fn begin(&self, files: u64, bytes: u64) {
        if !self.is_active() {
            for counter in [
                &self.total_bytes,
                &self.moved_bytes,
                &self.copied_bytes,
                &self.reused_bytes,
                &self.total_files,
                &self.done_files,
            ] {
                counter.store(0, Ordering::Relaxed);
            }
            self.transfer.fetch_add(1, Ordering::Relaxed);
            self.transfer_began.store(self.milliseconds(), Ordering::Relaxed);
        }
        self.total_files.fetch_add(files, Ordering::Relaxed);
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.transfers.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a transfer.
    pub(super) fn end(&self) {
        let _ = self
            .transfers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    }

    /// Takes back a transfer of this size that was interrupted without a word, and begins again.
    pub(super) fn take_back(&self, files: u64, bytes: u64) {
        self.end();
        for (counter, counted) in [(&self.total_files, files), (&self.total_bytes, bytes)] {
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |total| {
                total.checked_sub(counted)
            });
        }
    }

    /// Returns the number of the transfer that the counters are about.
    pub(super) fn transfer(&self) -> u64 {
        self.transfer.load(Ordering::Relaxed)
    }

    /// Returns when the transfer that the counters are about began.
    pub(super) fn transfer_began(&self) -> Instant {
        self.began + Duration::from_millis(self.transfer_began.load(Ordering::Relaxed))
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns whether a transfer is under way.
    pub(super) fn is_active(&self) -> bool {
        self.transfers.load(Ordering::Relaxed) > 0
    }

    /// Returns the bytes that were moved, with those that are not acknowledged yet.
    pub(super) fn sent_bytes(&self) -> u64 {
        let in_flight = self.in_flight_bytes.load(Ordering::Relaxed);
        let moved = self.moved_bytes.load(Ordering::Relaxed);
        moved.saturating_add_signed(in_flight)
    }

    /// Returns the bytes that were sent or need no transfer; at most the total.
    pub(super) fn done_bytes(&self) -> u64 {
        let total = self.total_bytes.load(Ordering::Relaxed);
        let acknowledged = self.moved_bytes.load(Ordering::Relaxed) + self.spared_bytes();
        // For a moment a part counts as acknowledged and as in flight.
        (self.sent_bytes() + self.spared_bytes()).min(total.max(acknowledged))
    }

    /// Returns the bytes that were already present or that the store copied.
    pub(super) fn spared_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed) + self.reused_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether another line about retries is due; if so, resets the interval.
    pub(super) fn may_tell_of_retry(&self) -> bool {
        let now = self.milliseconds().saturating_add(1);
        let interval = u64::try_from(RETRY_LINE_INTERVAL.as_millis()).unwrap_or(u64::MAX);
        let last = self.retry_told.load(Ordering::Relaxed);
        let due = last == 0 || now.saturating_sub(last) >= interval;
        // Only one of several concurrent threads succeeds.
        due && self
            .retry_told
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_told_once_in_a_while() {
        let counters = TierCounters::new(Tier::Local);
        assert!(counters.may_tell_of_retry());
        assert!(!counters.may_tell_of_retry());
    }

    #[test]
    fn a_transfer_that_was_interrupted_counts_once() {
        let counters = TierCounters::new(Tier::Local);
        counters.begin(1, 100);
        counters.begin(1, 7);
        counters.end();
        counters.take_back(1, 100);
        assert!(!counters.is_active());
        counters.begin(1, 100);
        assert_eq!(counters.total_bytes.load(Ordering::Relaxed), 100);
        // Beside another one.
        counters.begin(1, 7);
        counters.take_back(1, 100);
        counters.begin(1, 100);
        assert_eq!(counters.total_bytes.load(Ordering::Relaxed), 107);
    }

    #[test]
    fn transfers_begin_and_end() {
        let counters = TierCounters::new(Tier::Local);
        counters.end();
        assert!(!counters.is_active());
        counters.begin(2, 10);
        assert!(counters.is_active());
        counters.end();
        assert!(!counters.is_active());
        assert_eq!(counters.total_bytes.load(Ordering::Relaxed), 10);
        counters.moved_bytes.store(4, Ordering::Relaxed);
        counters.begin(2, 10);
        counters.begin(1, 5);
        let total = counters.total_bytes.load(Ordering::Relaxed);
        assert_eq!(
            (counters.done_bytes(), total),
            (0, 15),
            "the second try counts alone"
        );
    }
}

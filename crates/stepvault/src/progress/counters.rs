//! Transfer counters of one tier.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stepvault_core::observe::Tier;

/// Minimum time between two lines about retries on one tier.
const RETRY_LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Counters of one tier, written by many threads and read by the drawing thread.
#[derive(Debug)]
pub(super) struct TierCounters {
    pub(super) tier: Tier,
    /// Locked for no longer than it takes to change or to copy them.
    pub(super) counts: Mutex<Counts>,
}

impl TierCounters {
    pub(super) fn new(tier: Tier) -> Self {
        Self { tier, counts: Mutex::default() }
    }
}

/// What is to be transferred, and what was. Transfers under way at the same time are counted as one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) total_bytes: u64,
    pub(super) moved_bytes: u64,
    /// Bytes that were sent and are not acknowledged yet.
    pub(super) in_flight_bytes: i64,
    pub(super) copied_bytes: u64,
    pub(super) reused_bytes: u64,
    pub(super) total_files: u64,
    pub(super) done_files: u64,
    under_way: u64,
    /// Number of transfers that began after a pause.
    pub(super) transfer: u64,
    /// When the last of them began; `None` before the first one.
    pub(super) began: Option<Instant>,
    /// Time of the last line about a retry.
    retry_told: Option<Instant>,
}

impl Counts {
    /// Starts a transfer of known size. The first one after a pause resets the counters, so that a retried transfer is
    /// not counted twice.
    pub(super) fn begin(&mut self, files: u64, bytes: u64) {
        if !self.is_active() {
            *self = Self {
                in_flight_bytes: self.in_flight_bytes,
                transfer: self.transfer + 1,
                began: Some(Instant::now()),
                retry_told: self.retry_told,
                ..Self::default()
            };
        }
        self.total_files += files;
        self.total_bytes += bytes;
        self.under_way += 1;
    }

    /// Ends a transfer.
    pub(super) fn end(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Takes back a transfer of this size that was interrupted without a word, and begins again.
    pub(super) fn take_back(&mut self, files: u64, bytes: u64) {
        self.end();
        self.total_files = self.total_files.checked_sub(files).unwrap_or(self.total_files);
        self.total_bytes = self.total_bytes.checked_sub(bytes).unwrap_or(self.total_bytes);
    }

    /// Returns whether a transfer is under way.
    pub(super) fn is_active(&self) -> bool {
        self.under_way > 0
    }

    /// Returns the bytes that were moved, with those that are not acknowledged yet.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.moved_bytes.saturating_add_signed(self.in_flight_bytes)
    }

    /// Returns the bytes that were sent or need no transfer; at most the total.
    pub(super) fn done_bytes(&self) -> u64 {
        let acknowledged = self.moved_bytes + self.spared_bytes();
        // For a moment a part counts as acknowledged and as in flight.
        (self.sent_bytes() + self.spared_bytes()).min(self.total_bytes.max(acknowledged))
    }

    /// Returns the bytes that were already present or that the store copied.
    pub(super) fn spared_bytes(&self) -> u64 {
        self.copied_bytes + self.reused_bytes
    }

    /// Returns whether another line about retries is due; if so, resets the interval.
    pub(super) fn may_tell_of_retry(&mut self) -> bool {
        let is_due = self.retry_told.is_none_or(|told| told.elapsed() >= RETRY_LINE_INTERVAL);
        if is_due {
            self.retry_told = Some(Instant::now());
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_told_once_in_a_while() {
        let mut counters = Counts::default();
        assert!(counters.may_tell_of_retry());
        assert!(!counters.may_tell_of_retry());
    }

    #[test]
    fn a_transfer_that_was_interrupted_counts_once() {
        let mut counters = Counts::default();
        counters.begin(1, 100);
        counters.begin(1, 7);
        counters.end();
        counters.take_back(1, 100);
        assert!(!counters.is_active());
        counters.begin(1, 100);
        assert_eq!(counters.total_bytes, 100);
        // Beside another one.
        counters.begin(1, 7);
        counters.take_back(1, 100);
        counters.begin(1, 100);
        assert_eq!(counters.total_bytes, 107);
    }

    #[test]
    fn transfers_begin_and_end() {
        let mut counters = Counts::default();
        counters.end();
        assert!(!counters.is_active());
        counters.begin(2, 10);
        assert!(counters.is_active());
        counters.end();
        assert!(!counters.is_active());
        assert_eq!(counters.total_bytes, 10);
        counters.moved_bytes = 4;
        counters.begin(2, 10);
        counters.begin(1, 5);
        let total = counters.total_bytes;
        assert_eq!((counters.done_bytes(), total), (0, 15), "the second try counts alone");
    }
}

//! The least rate of an answer: one that drips, each byte in time, is as bad as silence.

use std::time::Duration;

/// At a lower rate a listing would take an hour. It is low, because many answers may share a slow line.
const LEAST_BYTES_PER_SECOND: u64 = 64;

/// A shorter answer is not judged: its first bytes may be slow.
const LEAST_WAIT: Duration = Duration::from_secs(15);

/// An answer that arrived too slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("only {bytes} bytes of the answer arrived in {} seconds", .waited.as_secs())]
pub(crate) struct TooSlow {
    bytes: u64,
    waited: Duration,
}

/// What has arrived of an answer, and how long its reader has waited for it.
#[derive(Debug, Default)]
pub(crate) struct ArrivalRate {
    bytes: u64,
    waited: Duration,
}

impl ArrivalRate {
    /// Counts a piece. The rate is judged once the reader has waited for longer than `stall_timeout` in all, and than 15 s.
    ///
    /// # Errors
    /// [`TooSlow`] if it is below the least rate.
    pub(crate) fn count(
        &mut self,
        piece_bytes: usize,
        waited: Duration,
        stall_timeout: Duration,
    ) -> Result<(), TooSlow> {
        self.bytes += piece_bytes as u64;
        self.waited += waited;
        let (bytes, waited) = (self.bytes, self.waited);
        if waited > stall_timeout.max(LEAST_WAIT) && bytes / LEAST_BYTES_PER_SECOND < waited.as_secs() {
            return Err(TooSlow { bytes, waited });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drip_ends_and_a_slow_line_does_not() {
        let stall_timeout = Duration::from_secs(30);
        let counted = |piece_bytes: usize, pieces: u32| {
            let mut rate = ArrivalRate::default();
            (0..pieces).try_for_each(|_| rate.count(piece_bytes, Duration::from_secs(1), stall_timeout))
        };
        assert_eq!(counted(5, 30), Ok(()));
        let error = counted(5, 31).unwrap_err();
        assert_eq!(error.to_string(), "only 155 bytes of the answer arrived in 31 seconds");
        assert_eq!(counted(64, 10_000), Ok(()));
    }
}

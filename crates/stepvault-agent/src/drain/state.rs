//! Tells whether time is short, and how much is left.

use std::time::Duration;

use stepvault_core::drain::TimeLeft;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::stop::Stop;

/// Time for a step besides its bytes: some ten sequential requests.
const EACH_STEP: Duration = Duration::from_secs(1);
/// Reserved for the process to end, after the drain record is written.
const LAST_MOMENT: Duration = Duration::from_millis(150);

/// Tells whether time is short: the service was asked to stop, or the provider said that it might reclaim the machine.
#[derive(Debug, Clone)]
pub(crate) struct DrainState {
    pub(crate) stop: Stop,
    /// How long the service may take to end after a request without a deadline.
    pub(crate) configured: Duration,
    /// Cancelled when the machine may be reclaimed at an unknown time.
    pub(crate) reclaim_expected: CancellationToken,
}

impl DrainState {
    pub(crate) fn new(stop: Stop, configured: Duration) -> Self {
        Self { stop, configured, reclaim_expected: CancellationToken::new() }
    }

    /// Whether time is short.
    pub(crate) fn is_urgent(&self) -> bool {
        self.reclaim_expected.is_cancelled() || self.stop.is_requested()
    }

    /// Returns when time is short.
    pub(crate) async fn urgent(&self) {
        tokio::select! {
            () = self.reclaim_expected.cancelled() => {}
            () = self.stop.wait() => {}
        }
    }

    /// Returns when uploads have to end.
    pub(crate) async fn uploads_end(&self) {
        self.stop.until(|request| Some(request.uploads_end(self.configured))).await;
    }

    /// Returns when the drain record must be written, so that the process is gone by its deadline; `None` while no stop
    /// was requested.
    pub(crate) fn record_deadline(&self) -> Option<Instant> {
        let exit_deadline = self.stop.requested()?.exit_deadline(self.configured);
        Some(exit_deadline.checked_sub(LAST_MOMENT).unwrap_or(exit_deadline))
    }

    /// Returns how long uploads may continue.
    pub(crate) fn time_left(&self) -> TimeLeft {
        let end = self.stop.requested().map(|request| request.uploads_end(self.configured));
        let until_the_end = end.map(|end| end.saturating_duration_since(Instant::now()));
        TimeLeft { until_the_end, margin: until_the_end.unwrap_or_default() / 10, each_step: EACH_STEP }
    }
}

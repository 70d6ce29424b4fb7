//! Whether time is short, and how much of it there is.

use std::time::Duration;

use stepvault_core::drain::TimeLeft;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::stop::Stop;

/// What a step takes beside its bytes: some ten requests one after the other.
const EACH_STEP: Duration = Duration::from_secs(1);
/// Kept free after the last word, for the process to end.
const LAST_MOMENT: Duration = Duration::from_millis(150);

/// Tells when time is short: the service was asked to stop, or the provider said that it might take the machine.
#[derive(Debug, Clone)]
pub(crate) struct Hurry {
    pub(crate) stop: Stop,
    /// How long the service may take to end where nobody names a time.
    pub(crate) configured: Duration,
    warned: CancellationToken,
}

impl Hurry {
    pub(crate) fn new(stop: Stop, configured: Duration) -> Self {
        Self {
            stop,
            configured,
            warned: CancellationToken::new(),
        }
    }

    /// The machine may be taken away, nobody knows when.
    pub(crate) fn warn(&self) {
        self.warned.cancel();
    }

    /// Whether time is short.
    pub(crate) fn is_on(&self) -> bool {
        self.warned.is_cancelled() || self.stop.is_requested()
    }

    /// Ends when time is short.
    pub(crate) async fn on(&self) {
        tokio::select! {
            () = self.warned.cancelled() => {}
            () = self.stop.wait() => {}
        }
    }

    /// Ends when uploads have to.
    pub(crate) async fn uploads_end(&self) {
        self.stop
            .until(|request| Some(request.uploads_end(self.configured)))
            .await;
    }

    /// When the last word has to be written, so that the process is gone by its deadline; `None` while nobody has asked.
    pub(crate) fn last_word_by(&self) -> Option<Instant> {
        let leave_by = self.stop.requested()?.leave_by(self.configured);
        Some(leave_by.checked_sub(LAST_MOMENT).unwrap_or(leave_by))
    }

    /// How long uploads may go on.
    pub(crate) fn time_left(&self) -> TimeLeft {
        let end = self
            .stop
            .requested()
            .map(|request| request.uploads_end(self.configured));
        let until_the_end = end.map(|end| end.saturating_duration_since(Instant::now()));
        TimeLeft {
            until_the_end,
            margin: until_the_end.unwrap_or_default() / 10,
            each_step: EACH_STEP,
        }
    }
}

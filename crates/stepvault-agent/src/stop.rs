//! Requests to stop the service, with a deadline.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::pause::{earliest, sleep_until};

/// Why the service was asked to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The process received a signal.
    Signal,
    /// A client asked through the control socket.
    Control,
    /// The trainer that it served has ended; processes that it started may still run.
    TrainerEnded,
    /// The trainer that it served has ended with all of its processes: nothing writes checkpoints any more.
    TrainerGone,
    /// The provider is reclaiming the machine; holds the event name it sent.
    Notice(String),
    /// The drain file appeared.
    File(PathBuf),
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal => out.write_str("a signal"),
            Self::Control => out.write_str("a request on the control socket"),
            Self::TrainerEnded | Self::TrainerGone => out.write_str("the trainer's end"),
            Self::Notice(notice) => out.write_str(notice),
            Self::File(path) => write!(out, "the file {}", path.display()),
        }
    }
}

/// A request to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRequest {
    /// The reason of the first request.
    pub reason: StopReason,
    /// The earliest deadline that a request has named.
    pub deadline: Option<Instant>,
    /// When the first request arrived.
    requested_at: Instant,
    /// When the first request without a deadline arrived.
    configured_from: Option<Instant>,
    /// Whether only providers and files have requested it: see [`uses_all_of_its_time`](Self::uses_all_of_its_time).
    notices_only: bool,
    /// Whether nothing but the trainer's end has requested it: the next agent on this machine could do what is left.
    pub(crate) trainers_end_only: bool,
}

impl StopRequest {
    fn new(reason: StopReason, deadline: Option<Instant>) -> Self {
        let now = Instant::now();
        Self {
            notices_only: matches!(reason, StopReason::Notice(_) | StopReason::File(_)),
            trainers_end_only: matches!(reason, StopReason::TrainerEnded | StopReason::TrainerGone),
            reason,
            deadline,
            requested_at: now,
            configured_from: deadline.is_none().then_some(now),
        }
    }

    fn merge(&mut self, later: &Self) {
        self.deadline = earliest(self.deadline, later.deadline);
        self.configured_from = earliest(self.configured_from, later.configured_from);
        self.notices_only &= later.notices_only;
        self.trainers_end_only &= later.trainers_end_only;
    }

    /// Returns when the process has to be gone; `configured` is the time allowed by requests without a deadline.
    pub fn exit_deadline(&self, configured: Duration) -> Instant {
        let configured = self.configured_from.map(|from| from + configured);
        let named = earliest(self.deadline, configured);
        // At least one of the two is set.
        named.unwrap_or(self.requested_at)
    }

    /// Returns when uploads end, which leaves time to record what they left.
    pub(crate) fn uploads_end(&self, configured: Duration) -> Instant {
        let exit_deadline = self.exit_deadline(configured);
        let total = exit_deadline.saturating_duration_since(self.requested_at);
        let reserve = (total / 10).clamp(SHORTEST_RESERVE, LONGEST_RESERVE).min(total / 2);
        exit_deadline.checked_sub(reserve).unwrap_or(exit_deadline)
    }

    /// Whether the service runs until its deadline: the machine is lost anyway, and the trainer may be about to save a
    /// last step.
    pub(crate) fn uses_all_of_its_time(&self) -> bool {
        self.notices_only
    }
}

const SHORTEST_RESERVE: Duration = Duration::from_millis(500);
const LONGEST_RESERVE: Duration = Duration::from_secs(5);

/// Handle for requesting the service to stop. Clones are cheap and share one state.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    request: watch::Sender<Option<StopRequest>>,
}

impl Stop {
    /// Creates a handle without a request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests a stop. A later request can bring the deadline forward, but never postpones it.
    pub fn request(&self, reason: StopReason, deadline: Option<Instant>) {
        let later = StopRequest::new(reason, deadline);
        self.request.send_modify(|request| match request {
            Some(first) => first.merge(&later),
            None => *request = Some(later),
        });
    }

    /// Whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.request.borrow().is_some()
    }

    /// Returns the combined requests so far.
    pub fn requested(&self) -> Option<StopRequest> {
        self.request.borrow().clone()
    }

    /// Returns when a stop is requested.
    pub async fn wait(&self) {
        // The sender lives in `self`, so this ends only with a request.
        let _ = self.request.subscribe().wait_for(Option::is_some).await;
    }

    /// Returns when a stop was requested and the time given by `judge` has come; `judge` is called again whenever the
    /// request changes.
    pub(crate) async fn until(&self, judge: impl Fn(&StopRequest) -> Option<Instant>) {
        let mut requests = self.request.subscribe();
        loop {
            let time = requests.borrow_and_update().as_ref().and_then(&judge);
            tokio::select! {
                () = sleep_until(time) => return,
                _ = requests.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_and_the_earliest_deadline_count() {
        let stop = Stop::new();
        assert!(!stop.is_requested());
        let now = Instant::now();
        let clone = stop.clone();
        clone.request(StopReason::Signal, None);
        assert!(stop.is_requested());
        stop.request(StopReason::Control, Some(now + Duration::from_secs(20)));
        stop.request(StopReason::Control, Some(now + Duration::from_secs(90)));
        let request = clone.requested().unwrap();
        assert_eq!(request.reason, StopReason::Signal);
        assert_eq!(request.deadline, Some(now + Duration::from_secs(20)));
        assert_eq!(request.exit_deadline(Duration::from_mins(1)), now + Duration::from_secs(20));
        let sooner = request.exit_deadline(Duration::from_secs(5));
        assert!(sooner >= now + Duration::from_secs(5) && sooner < now + Duration::from_secs(20));
    }

    #[test]
    fn some_of_the_time_is_kept_for_what_has_to_be_written_down() {
        let reserve = |total| {
            let request = StopRequest::new(StopReason::Signal, Some(Instant::now() + total));
            let exit_deadline = request.exit_deadline(Duration::ZERO);
            (exit_deadline - request.uploads_end(Duration::ZERO)).as_millis()
        };
        assert_eq!(reserve(Duration::from_mins(2)), 5000);
        assert!((2990..=3000).contains(&reserve(Duration::from_secs(30))));
        assert_eq!(reserve(Duration::from_secs(2)), 500);
        assert!(reserve(Duration::from_millis(100)) <= 50);
        assert_eq!(reserve(Duration::ZERO), 0);
    }

    #[test]
    fn all_of_the_time_is_used_until_somebody_asks_who_waits_for_the_end() {
        let stop = Stop::new();
        stop.request(StopReason::Notice("an EC2 spot notice".to_owned()), None);
        assert!(stop.requested().unwrap().uses_all_of_its_time());
        stop.request(StopReason::Signal, None);
        assert!(!stop.requested().unwrap().uses_all_of_its_time());
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_is_brought_forward_counts_at_once() {
        let stop = Stop::new();
        let begun = Instant::now();
        stop.request(StopReason::Signal, None);
        let sooner = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stop.request(StopReason::Control, Some(begun + Duration::from_secs(5)));
        };
        let end = stop.until(|request| Some(request.exit_deadline(Duration::from_secs(90))));
        tokio::join!(end, sooner);
        assert_eq!(begun.elapsed().as_secs(), 5);
    }
}

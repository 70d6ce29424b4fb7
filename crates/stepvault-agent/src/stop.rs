//! Asking the service to stop, and by when.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Why the service was asked to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The process got a signal.
    Signal,
    /// Somebody asked through the control socket.
    Control,
    /// The trainer that it served has ended.
    TrainerEnded,
    /// The provider takes the machine away: its own word for it.
    Notice(String),
    /// A file appeared that stands for such a notice.
    File(PathBuf),
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal => out.write_str("a signal"),
            Self::Control => out.write_str("a request on the control socket"),
            Self::TrainerEnded => out.write_str("the trainer's end"),
            Self::Notice(notice) => out.write_str(notice),
            Self::File(path) => write!(out, "the file {}", path.display()),
        }
    }
}

/// A request to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRequest {
    /// Why; that of the first request.
    pub reason: StopReason,
    /// When the service has to be gone; `None` for what is configured.
    pub deadline: Option<Instant>,
}

/// Where a service is asked to stop. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    token: CancellationToken,
    request: Arc<Mutex<Option<StopRequest>>>,
}

impl Stop {
    /// Nobody has asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks. A later request can bring the deadline forward, and never puts it off.
    pub fn request(&self, reason: StopReason, deadline: Option<Instant>) {
        let mut request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
        match request.as_mut() {
            Some(first) => first.deadline = [first.deadline, deadline].into_iter().flatten().min(),
            None => *request = Some(StopRequest { reason, deadline }),
        }
        drop(request);
        self.token.cancel();
    }

    /// Whether somebody has asked.
    pub fn is_requested(&self) -> bool {
        self.token.is_cancelled()
    }

    /// What was asked for so far.
    pub fn requested(&self) -> Option<StopRequest> {
        self.request
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Ends when somebody asks.
    pub async fn wait(&self) {
        self.token.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    }
}

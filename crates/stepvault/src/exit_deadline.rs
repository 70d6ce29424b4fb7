//! The deadline by which the process must have exited, if one is set.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Reserved for the exit of the process itself.
const LAST_MOMENT: Duration = Duration::from_millis(100);

/// An exit deadline that a command may set and the shutdown of the process obeys. Cheap to clone; all clones share one
/// deadline.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExitDeadline {
    time: Arc<OnceLock<Instant>>,
}

impl ExitDeadline {
    /// Sets the deadline. Later calls have no effect.
    pub(crate) fn set(&self, time: Instant) {
        let _ = self.time.set(time);
    }

    /// Returns how long pending work may still take before the deadline, at most `longest`.
    pub(crate) fn within(&self, longest: Duration) -> Duration {
        match self.time.get() {
            Some(time) => {
                let left = time.saturating_duration_since(Instant::now());
                left.saturating_sub(LAST_MOMENT).min(longest)
            }
            None => longest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_time_there_is_the_usual_one() {
        let exit_deadline = ExitDeadline::default();
        assert_eq!(exit_deadline.within(Duration::from_secs(2)), Duration::from_secs(2));
        exit_deadline.clone().set(Instant::now());
        assert_eq!(exit_deadline.within(Duration::from_secs(2)), Duration::ZERO);
    }
}

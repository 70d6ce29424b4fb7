//! By when the process has to be gone, where somebody has set a time.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Kept free for the process's own end.
const LAST_MOMENT: Duration = Duration::from_millis(100);

/// A time that a command may set, for whoever ends the process. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeaveBy {
    time: Arc<OnceLock<Instant>>,
}

impl LeaveBy {
    /// Sets the time; the first one counts.
    pub(crate) fn set(&self, time: Instant) {
        let _ = self.time.set(time);
    }

    /// How long whatever is under way may still take, so that the process is gone in time; no longer than `longest`.
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
        let leave_by = LeaveBy::default();
        assert_eq!(leave_by.within(Duration::from_secs(2)), Duration::from_secs(2));
        leave_by.clone().set(Instant::now());
        assert_eq!(leave_by.within(Duration::from_secs(2)), Duration::ZERO);
    }
}

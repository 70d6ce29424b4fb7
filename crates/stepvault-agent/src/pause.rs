//! Growing pauses between tries.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

/// Counts consecutive failures, and the time of the next try.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pause {
    failures: u32,
    until: Option<Instant>,
}

/// Maximum pause after a failure that may be transient.
pub(crate) const LONGEST: Duration = Duration::from_mins(1);
/// Maximum pause after a failure that needs an operator, or is unlikely to be transient.
pub(crate) const LONGEST_FOR_OPERATOR: Duration = Duration::from_mins(5);
/// Maximum pause after a failure while the service is stopping.
pub(crate) const LONGEST_WHEN_DRAINING: Duration = Duration::from_secs(2);
const FIRST: Duration = Duration::from_secs(1);

impl Pause {
    /// Counts a failure: the pause doubles from one second up to `longest`, plus or minus a quarter, and is at least as
    /// long as the server requested.
    pub(crate) fn failed(&mut self, longest: Duration, asked_for: Option<Duration>) {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures = self.failures.saturating_add(1);
        let wait = if doubled > FIRST { doubled.mul_f64(0.75 + jitter() / 2.0) } else { doubled };
        self.until = Some(Instant::now() + wait.max(asked_for.unwrap_or_default()));
    }

    /// Forgets all failures.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the number of consecutive failures.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns when it may be retried; `None` for immediately.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until.filter(|until| *until > Instant::now())
    }

    /// Waits until it may be retried.
    pub(crate) async fn wait(&self) {
        if self.until.is_some() {
            sleep_until(self.until).await;
        }
    }
}

/// Returns the earlier of two times, either of which may be unset.
pub(crate) fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Waits until this time; forever if there is none.
pub(crate) async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Returns a number from 0 to 1 that differs between nodes that failed at the same moment.
fn jitter() -> f64 {
    let random = RandomState::new().hash_one(0_u8);
    f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_heed_the_other_side() {
        let wait_of = |pause: &Pause| pause.until().map(|until| until - Instant::now()).unwrap_or_default();
        let mut pause = Pause::default();
        assert_eq!(pause.until(), None);
        pause.failed(LONGEST, None);
        assert!(wait_of(&pause) <= FIRST && wait_of(&pause) > FIRST / 2);
        for _ in 0..40 {
            pause.failed(LONGEST, None);
        }
        let wait = wait_of(&pause);
        assert!(wait >= LONGEST.mul_f64(0.7) && wait <= LONGEST.mul_f64(1.25), "{wait:?}");
        pause.failed(LONGEST, Some(Duration::from_mins(10)));
        assert!(wait_of(&pause) > Duration::from_secs(590));
        assert_eq!(pause.failures(), 42);
        pause.clear();
        assert_eq!((pause.failures(), pause.until()), (0, None));
    }
}

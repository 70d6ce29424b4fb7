//! Time as a capability, so that plans and tests do not read the system clock directly.

use crate::timestamp::Timestamp;

/// Returns the time. The only production implementation reads the system clock; tests set their own time.
///
/// Nothing that decides what is deleted may depend on a local clock alone: ages on a remote are measured
/// against the store's own clock.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns the current wall-clock time.
    fn now(&self) -> Timestamp;
}

/// Returns how far a store's clock is ahead of this machine's; negative if it is behind. `store` was read between `before`
/// and `after`, and counts whole seconds.
pub fn gap_seconds(store: Timestamp, before: Timestamp, after: Timestamp) -> i64 {
    let ahead = store.seconds.saturating_sub(after.seconds);
    let behind = before.seconds.saturating_sub(store.seconds.saturating_add(1));
    if ahead > 0 { ahead } else { -behind.max(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(store: i64, before: i64, after: i64) -> i64 {
        let at = Timestamp::from_seconds;
        gap_seconds(at(store), at(before), at(after))
    }

    #[test]
    fn a_clock_read_within_the_request_has_no_gap() {
        for store in 99..=102 {
            assert_eq!(gap(store, 100, 102), 0, "{store}");
        }
        assert_eq!(gap(103, 100, 102), 1);
        assert_eq!(gap(98, 100, 102), -1);
        assert_eq!(gap(3_702, 100, 102), 3_600);
        assert_eq!(gap(i64::MIN, i64::MAX, i64::MAX), -i64::MAX, "no overflow");
        assert_eq!(gap(i64::MAX, 0, 0), i64::MAX);
    }
}

//! Points in time with nanosecond precision, as files have them.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// Seconds and nanoseconds since 1970-01-01 UTC, split as in `stat`, and exact in JSON for every reader.
///
/// Members are declared in the order of their names, which is that of records; times are ordered by the seconds first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timestamp {
    /// Nanoseconds within the second, 0 to 999,999,999.
    pub nanoseconds: u32,
    /// Whole seconds since the epoch; negative before it.
    pub seconds: i64,
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.seconds, self.nanoseconds).cmp(&(other.seconds, other.nanoseconds))
    }
}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Timestamp {
    /// Returns a whole second.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self { seconds, nanoseconds: 0 }
    }

    /// Returns the seconds from `earlier` to `self`; 0 when `earlier` is later.
    pub fn seconds_since(self, earlier: Self) -> u64 {
        let whole = self.seconds.saturating_sub(earlier.seconds);
        let borrowed = i64::from(self.nanoseconds < earlier.nanoseconds);
        u64::try_from(whole.saturating_sub(borrowed)).unwrap_or(0)
    }

    /// Returns whether the nanoseconds are below one second.
    pub const fn is_canonical(self) -> bool {
        self.nanoseconds < 1_000_000_000
    }

    /// Formats the time as `2026-11-21T10:16:00Z`, or as bare seconds for a year that calendar software does not
    /// support.
    pub fn to_rfc3339(self) -> String {
        jiff::Timestamp::from_second(self.seconds)
            .map_or_else(|_| format!("@{}", self.seconds), |time| time.to_string())
    }
}

impl From<std::time::SystemTime> for Timestamp {
    fn from(time: std::time::SystemTime) -> Self {
        match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => Self {
                seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                nanoseconds: after.subsec_nanos(),
            },
            Err(before) => {
                let gap = before.duration();
                let seconds = -i64::try_from(gap.as_secs()).unwrap_or(i64::MAX);
                match gap.subsec_nanos() {
                    0 => Self { seconds, nanoseconds: 0 },
                    nanoseconds => Self { seconds: seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_since_rounds_down_and_never_wraps() {
        let early = Timestamp { seconds: 10, nanoseconds: 900_000_000 };
        let late = Timestamp { seconds: 12, nanoseconds: 100_000_000 };
        assert_eq!(late.seconds_since(early), 1);
        assert_eq!(early.seconds_since(late), 0);
    }

    #[test]
    fn the_seconds_count_before_the_nanoseconds() {
        let time = |seconds, nanoseconds| Timestamp { nanoseconds, seconds };
        assert!(time(1, 999_999_999) < time(2, 0));
        assert!(time(-1, 5) < time(0, 0));
        assert!(time(7, 1) < time(7, 2));
        assert_eq!(time(7, 1).cmp(&time(7, 1)), Ordering::Equal);
    }

    #[test]
    fn times_before_the_epoch_keep_their_order() {
        let before = std::time::UNIX_EPOCH - std::time::Duration::from_millis(1500);
        assert_eq!(Timestamp::from(before), Timestamp { seconds: -2, nanoseconds: 500_000_000 });
    }

    #[test]
    fn rfc3339_is_utc() {
        assert_eq!(Timestamp::from_seconds(0).to_rfc3339(), "1970-01-01T00:00:00Z");
    }
}

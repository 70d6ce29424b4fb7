//! Compares the store's clock with this machine's.

use std::time::Duration;

use super::{check, provider};
use crate::doctor::Finding;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::words;

/// A difference from which a finding is reported.
const WORTH_SAYING_SECONDS: u64 = 60;
/// A difference from which stores reject signatures that contain the time.
const REFUSED_SECONDS: u64 = 15 * 60;

pub(super) const SET_CLOCK: &str = "set this machine's clock, by NTP if possible";

/// Returns how far the store's clock is ahead of this machine's; negative if it is behind. `store` was read between
/// `before` and `after`, and counts whole seconds.
pub fn gap_seconds(store: Timestamp, before: Timestamp, after: Timestamp) -> i64 {
    let ahead = store.seconds.saturating_sub(after.seconds);
    let behind = before.seconds.saturating_sub(store.seconds.saturating_add(1));
    if ahead > 0 { ahead } else { -behind.max(0) }
}

/// Returns the finding on a difference between the clocks for this kind of store.
pub fn clock(remote: &RemoteSettings, gap_seconds: i64) -> Finding {
    let check = check("clock", remote);
    let seconds = gap_seconds.unsigned_abs();
    let gap = words::duration(Duration::from_secs(seconds));
    let measured = match gap_seconds {
        0 => "the store's clock and this machine's agree to the second".to_owned(),
        1.. => format!("the store's clock is {gap} ahead of this machine's"),
        _ => format!("the store's clock is {gap} behind this machine's"),
    };
    if seconds <= WORTH_SAYING_SECONDS {
        return check.pass(measured);
    }
    let (refused, meaning) = provider::clock(remote.url.scheme);
    if let Some(healed) = refused.filter(|_| seconds > REFUSED_SECONDS) {
        let measured =
            format!("{measured}: the store refuses requests when they differ by 15 minutes or more{healed}");
        return check.fail(measured, SET_CLOCK);
    }
    check.warn(format!("{measured}: {meaning}"), SET_CLOCK)
}

#[cfg(test)]
mod tests {
    use super::super::subject;
    use super::*;
    use crate::doctor::Outcome;

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

    #[test]
    fn a_minute_is_said_and_a_quarter_of_an_hour_refused_where_the_time_is_signed() {
        let outcome = |url: &str, gap| clock(&subject(url), gap).outcome;
        for (gap, s3, gcs) in [
            (0, Outcome::Pass, Outcome::Pass),
            (60, Outcome::Pass, Outcome::Pass),
            (-61, Outcome::Warn, Outcome::Warn),
            (900, Outcome::Warn, Outcome::Warn),
            (-901, Outcome::Fail, Outcome::Warn),
            (i64::MIN, Outcome::Fail, Outcome::Warn),
        ] {
            assert_eq!(outcome("s3://b", gap), s3, "{gap}");
            assert_eq!(outcome("az://b", gap), s3, "{gap}");
            assert_eq!(outcome("gs://b", gap), gcs, "{gap}");
            assert_eq!(outcome("file:///b", gap), gcs, "{gap}");
        }
        let finding = clock(&subject("s3://b"), 3_600);
        assert_eq!(
            finding.measured,
            "the store's clock is 1h ahead of this machine's: the store refuses requests when they differ by 15 \
             minutes or more; stepvault signs again by the store's clock, but other programs may not"
        );
        let azure = clock(&subject("az://b"), -3_600);
        assert_eq!(
            azure.measured,
            "the store's clock is 1h behind this machine's: the store refuses requests when they differ by 15 \
             minutes or more"
        );
        assert_eq!(finding.remedy.as_deref(), Some(SET_CLOCK));
    }
}

//! Judges whether an entry has been unchanged for long enough.

use std::time::Duration;

use stepvault_core::{Sha256Digest, Timestamp};
use tokio::time::Instant;

/// How many quiet times a step must be unchanged that lacks files of all earlier ones.
const QUIET_TIMES_OF_INCOMPLETE: u32 = 10;

/// How long entries must be unchanged if nothing else proves that their save is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuietTimes {
    /// A step.
    pub(super) of_steps: Duration,
    /// An entry that belongs to no step, until it is reported.
    pub(super) of_rest: Duration,
    /// Any step that is not announced; `None` if announcements are not expected.
    pub(super) announced_within: Option<Duration>,
    /// Whether a step that lacks files of all earlier ones is sealed as soon as any other.
    pub(super) accepts_missing_files: bool,
}

impl QuietTimes {
    /// Returns how long a step must be unchanged that lacks files of all earlier ones.
    pub(super) fn patience(&self) -> Duration {
        if self.accepts_missing_files {
            return Duration::ZERO;
        }
        self.of_steps.saturating_mul(QUIET_TIMES_OF_INCOMPLETE)
    }
}

/// Since when an entry has been unchanged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sighting {
    pub(super) fingerprint: Sha256Digest,
    pub(super) since: Instant,
    scans: u32,
}

impl Sighting {
    /// Adds a scan to an earlier sighting of the same state, or begins one of another state.
    pub(super) fn again(before: Option<Self>, fingerprint: Sha256Digest) -> Self {
        match before {
            Some(before) if before.fingerprint == fingerprint => {
                Self { scans: before.scans.saturating_add(1), ..before }
            }
            _ => Self { fingerprint, since: Instant::now(), scans: 1 },
        }
    }
}

/// Why an entry is not quiet yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotQuiet {
    pub(super) why: String,
    /// After which time it may be quiet, if it is not modified.
    pub(super) wait: Duration,
}

/// Returns why an entry whose newest file has the time `newest` is not quiet, or `None` when it is: by file times, and
/// by at least two scans.
pub(super) fn not_quiet(
    quiet_time: Duration,
    newest: Timestamp,
    sighting: Sighting,
    now: Timestamp,
) -> Option<NotQuiet> {
    let watched = sighting.since.elapsed();
    let still_to_watch = quiet_time.saturating_sub(watched);
    let (age_seconds, quiet_seconds) = (now.seconds_since(newest), whole_seconds(quiet_time));
    let is_ahead = newest > now;
    // Files dated in the future were stamped by another clock (a file server's). Then only the watched time counts.
    let still_too_young = if is_ahead && still_to_watch.is_zero() {
        Duration::ZERO
    } else {
        Duration::from_secs(quiet_seconds.saturating_sub(age_seconds))
    };
    let why = if still_too_young.is_zero() {
        if sighting.scans >= 2 && still_to_watch.is_zero() {
            return None;
        }
        format!("it was watched for {} s and must be unchanged for {quiet_seconds} s", watched.as_secs())
    } else if is_ahead {
        "its newest file is stamped with a time in the future".to_owned()
    } else {
        format!("it was written {age_seconds} s ago, and must be unchanged for {quiet_seconds} s")
    };
    Some(NotQuiet { why, wait: still_to_watch.max(still_too_young) })
}

/// Rounded up, so that half a second is not shown as zero.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_secs(30);

    /// Returns why a step is not quiet that was watched for some seconds, and whose newest file is that old.
    async fn why(watched_seconds: u64, scans: u32, age_seconds: i64) -> Option<(String, u64)> {
        let sighting = Sighting { fingerprint: Sha256Digest::of(b"files"), since: Instant::now(), scans };
        tokio::time::advance(Duration::from_secs(watched_seconds)).await;
        let now = Timestamp::from_seconds(1000);
        let newest = Timestamp::from_seconds(1000 - age_seconds);
        let not_quiet = not_quiet(QUIET, newest, sighting, now)?;
        Some((not_quiet.why, not_quiet.wait.as_secs()))
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_counts_from_the_newest_file_and_from_the_first_of_two_scans() {
        let told = |text: &str, seconds| Some((text.to_owned(), seconds));
        assert_eq!(why(30, 2, 30).await, None);
        let young = "it was written 29 s ago, and must be unchanged for 30 s";
        assert_eq!(why(40, 3, 29).await, told(young, 1));
        let new = "it was watched for 29 s and must be unchanged for 30 s";
        assert_eq!(why(29, 3, 1000).await, told(new, 1));
        let once = "it was watched for 40 s and must be unchanged for 30 s";
        assert_eq!(why(40, 1, 1000).await, told(once, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn with_a_time_in_the_future_the_watched_time_alone_counts() {
        let future = "its newest file is stamped with a time in the future";
        assert_eq!(why(29, 2, -5).await, Some((future.to_owned(), 30)));
        assert_eq!(why(30, 2, -5).await, None);
    }
}

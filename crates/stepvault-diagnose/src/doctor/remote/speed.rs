//! Estimates the throughput of a remote from a transfer of a few MiB.

use std::time::Duration;

use super::{check, remedy};
use crate::doctor::{Finding, seconds_for};
use stepvault_core::words;
use stepvault_core::{Error, RemoteSettings};

/// Below this rate a step of a small model takes minutes.
const SLOW_BYTES_PER_SECOND: u64 = 10 << 20;
/// Above this latency, the few consecutive requests of a step take noticeable time.
const SLOW_ANSWER_MILLISECONDS: u64 = 1_000;
/// The size of the example in findings.
const EXAMPLE_BYTES: u64 = 10 << 30;

/// The measured rates of a remote; `None` for those that could not be measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeasuredRates {
    /// Bytes per second to the store, over all concurrent requests.
    pub up_bytes_per_second: Option<u64>,
    /// Bytes per second from the store, over all concurrent requests.
    pub down_bytes_per_second: Option<u64>,
    /// Median duration of a request without a body.
    pub latency_milliseconds: Option<u64>,
}

/// A transfer in one direction and its duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Bytes transferred.
    pub bytes: u64,
    /// Duration in milliseconds.
    pub milliseconds: u64,
    /// Number of concurrent requests.
    pub at_once: usize,
}

impl Measured {
    /// Returns the bytes per second; an unmeasurably short duration counts as one millisecond.
    pub fn bytes_per_second(&self) -> u64 {
        let rate = u128::from(self.bytes) * 1_000 / u128::from(self.milliseconds.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// Returns the finding on the rate that the check `name` measured, or on why it could not.
pub fn rate(remote: &RemoteSettings, name: &'static str, measured: &Result<Measured, Error>) -> Finding {
    let check = check(name, remote);
    let measured = match measured {
        Ok(measured) => measured,
        Err(error) => {
            let advice = remedy(error, "check the network to the store");
            return check.warn(format!("cannot measure it: {error}"), advice);
        }
    };
    let lowest = remote.bandwidth_limit.lowest_bytes_per_second();
    let per_second = measured.bytes_per_second();
    let requests = match measured.at_once {
        1 => "one request".to_owned(),
        count => format!("{count} requests at once"),
    };
    let limit = &remote.bandwidth_limit;
    let limited = lowest.map_or_else(String::new, |_| format!(", with bandwidth-limit at {limit}"));
    let text = format!(
        "{} ({} in {}, {requests}{limited}): 10 GiB take {}",
        words::rate(per_second),
        words::bytes(measured.bytes),
        words::duration(Duration::from_millis(measured.milliseconds)),
        words::seconds(seconds_for(EXAMPLE_BYTES, per_second)),
    );
    let advice = if lowest.is_some_and(|limit| limit < SLOW_BYTES_PER_SECOND * 2) {
        let name = &remote.name;
        format!("raise bandwidth-limit under [remote.{name}], or save larger steps less often")
    } else {
        "use a bucket in this machine's region, check proxies and bandwidth limits, or save less often"
            .to_owned()
    };
    let check = check.with("bytes_per_second", per_second);
    check.pass_or_warn(per_second >= SLOW_BYTES_PER_SECOND, text, advice)
}

/// Returns the finding on the duration of a small request.
pub fn latency(remote: &RemoteSettings, milliseconds: u64) -> Finding {
    let check = check("latency", remote).with("latency_milliseconds", milliseconds);
    let duration = match milliseconds {
        0 => "less than 1ms".to_owned(),
        _ => words::duration(Duration::from_millis(milliseconds)),
    };
    let text = format!("a small request takes {duration}");
    let advice = "use a bucket in this machine's region; steps with many small files are affected most";
    check.pass_or_warn(milliseconds < SLOW_ANSWER_MILLISECONDS, text, advice)
}

#[cfg(test)]
mod tests {
    use super::super::subject;
    use super::*;
    use crate::doctor::Outcome;
    use stepvault_core::bandwidth::BandwidthLimit;
    use stepvault_core::error::ErrorKind;

    const FAST: Measured = Measured { bytes: 16 << 20, milliseconds: 80, at_once: 4 };

    #[test]
    fn a_rate_says_how_it_was_measured_and_what_it_means() {
        let finding = rate(&subject("s3://b"), "upload rate", &Ok(FAST));
        assert_eq!((finding.check, finding.outcome), ("upload rate", Outcome::Pass));
        assert_eq!(finding.measured, "200.0 MiB/s (16.0 MiB in 80ms, 4 requests at once): 10 GiB take 51.2s");
        assert_eq!(FAST.bytes_per_second(), 209_715_200);
    }

    #[test]
    fn a_slow_one_is_a_warning_with_the_limit_that_makes_it_so() {
        let slow = Measured { bytes: 256 << 10, milliseconds: 2_500, at_once: 1 };
        let finding = rate(&subject("s3://b"), "download rate", &Ok(slow));
        assert_eq!((finding.check, finding.outcome), ("download rate", Outcome::Warn));
        assert!(finding.measured.contains("one request): 10 GiB take 1day 4h"), "{finding:?}");
        assert!(finding.remedy.unwrap().contains("this machine's region"));
        let mut limited = subject("s3://b");
        limited.bandwidth_limit = BandwidthLimit::all_day(1 << 20);
        let finding = rate(&limited, "download rate", &Ok(slow));
        assert!(finding.measured.contains("bandwidth-limit at 1.0 MiB/s"), "{finding:?}");
        assert!(finding.remedy.unwrap().starts_with("raise bandwidth-limit under [remote.main]"));
    }

    #[test]
    fn no_time_and_no_bytes_divide_nothing_by_zero() {
        let nothing = Measured { bytes: 0, milliseconds: 0, at_once: 1 };
        assert_eq!(nothing.bytes_per_second(), 0);
        assert_eq!(rate(&subject("s3://b"), "upload rate", &Ok(nothing)).outcome, Outcome::Warn);
        let huge = Measured { bytes: u64::MAX, milliseconds: 0, at_once: 1 };
        assert_eq!(huge.bytes_per_second(), u64::MAX);
    }

    #[test]
    fn slow_answers_and_failed_measurements_are_warnings() {
        let subject = subject("s3://b");
        assert_eq!(latency(&subject, 999).outcome, Outcome::Pass);
        assert_eq!(latency(&subject, 0).measured, "a small request takes less than 1ms");
        assert_eq!(latency(&subject, 35).measured, "a small request takes 35ms");
        assert_eq!(latency(&subject, 1_000).outcome, Outcome::Warn);
        let error = Error::new(ErrorKind::Unreachable, "cannot write the object");
        let finding = rate(&subject, "upload rate", &Err(error));
        assert_eq!(finding.outcome, Outcome::Warn);
        assert_eq!(finding.measured, "cannot measure it: cannot write the object");
    }
}

//! Judges the throughput of a disk, and what it means for each step.

use std::fmt::Write as _;

use super::forecast::Forecast;
use super::{Check, Finding, seconds_for};
use stepvault_core::disk_facts::DiskRates;
use stepvault_core::words;

/// Below this rate every save takes noticeable time.
const SLOW_BYTES_PER_SECOND: u64 = 100 << 20;
/// The longest acceptable sync: each sealed step waits for several.
const SLOW_SYNC_SECONDS: f64 = 0.1;

/// Returns the findings on the rates, related to the size of a step.
pub fn speed(subject: &str, rates: &DiskRates, forecast: Option<&Forecast>) -> Vec<Finding> {
    let size = words::bytes(rates.probed_bytes);
    let rate = |check: &'static str, bytes_per_second: u64, how: &str, what: &str, remedy: &str| {
        let mut measured = format!("{} ({size} {how})", words::rate(bytes_per_second));
        if let Some(forecast) = forecast {
            let seconds = seconds_for(forecast.taken.bytes, bytes_per_second);
            let _ = write!(
                measured,
                ": {} for {what} a step of {}",
                words::seconds(seconds),
                words::bytes(forecast.taken.bytes)
            );
        }
        let check = Check::new(check, subject).with("bytes_per_second", bytes_per_second);
        check.pass_or_warn(bytes_per_second >= SLOW_BYTES_PER_SECOND, measured, remedy)
    };
    vec![
        rate(
            "write rate",
            rates.write_bytes_per_second,
            "written and synced",
            "writing",
            "use a local NVMe disk, or save less often, and allow this much time in timeouts around saves: each save \
             waits for the disk, and below 100 MiB/s timeouts are known to expire",
        ),
        rate(
            "read rate",
            rates.read_bytes_per_second,
            "read back",
            "reading",
            "use a local NVMe disk: uploads, restores and the trainer's start wait for it",
        ),
        sync(subject, rates.sync_seconds),
    ]
}

fn sync(subject: &str, seconds: f64) -> Finding {
    let measured = format!("{} to sync a small file", words::seconds(seconds));
    Check::new("sync time", subject).with_seconds("sync_seconds", seconds).pass_or_warn(
        seconds <= SLOW_SYNC_SECONDS,
        measured,
        "use a local disk: each record of a step waits for one or two syncs; another process may be keeping this \
         disk busy",
    )
}

/// Returns the finding if nothing could be measured, and why.
pub fn not_measured(subject: &str, why: &str) -> Finding {
    Check::new("write rate", subject)
        .warn(format!("not measured: {why}"), "first fix the problem that prevented the measurement")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;
    use stepvault_core::forecast::Taken;

    #[test]
    fn a_slow_disk_is_said_in_seconds_a_step() {
        let rates = DiskRates {
            probed_bytes: 64 << 20,
            write_bytes_per_second: 42_000_000,
            read_bytes_per_second: 900_000_000,
            sync_seconds: 0.25,
        };
        let forecast = Forecast {
            taken: Taken { bytes: 12 << 30, files: 8, directories: 1 },
            interval_seconds: None,
            interval_steps: None,
            source: "x".to_owned(),
        };
        let found = speed("vault on /nvme", &rates, Some(&forecast));
        let outcomes: Vec<Outcome> = found.iter().map(|finding| finding.outcome).collect();
        assert_eq!(outcomes, [Outcome::Warn, Outcome::Pass, Outcome::Warn]);
        assert_eq!(
            found[0].measured,
            "40.1 MiB/s (64.0 MiB written and synced): 5m 6s for writing a step of 12.0 GiB"
        );
        assert_eq!(
            found[1].measured,
            "858.3 MiB/s (64.0 MiB read back): 14.3s for reading a step of 12.0 GiB"
        );
        assert_eq!(found[2].measured, "250ms to sync a small file");
        let found = speed("vault on /nvme", &rates, None);
        assert_eq!(found[0].measured, "40.1 MiB/s (64.0 MiB written and synced)");
    }
}

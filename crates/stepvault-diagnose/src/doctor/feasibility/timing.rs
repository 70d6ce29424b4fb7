//! Checks of durations: sealing, uploading, draining, restoring.

use std::time::Duration;

use super::{MeasuredRemote, Situation};
use crate::doctor::links::SealMethod;
use crate::doctor::{Check, Finding, seconds_for};
use stepvault_core::words;

/// Number of syncs of records and names when a step is sealed.
const SYNCS_OF_A_SEAL: f64 = 8.0;
/// Safety factor of a suggested interval.
const SPARE: f64 = 1.25;
/// Fraction of its time that a drain reserves for a falling rate.
const DRAIN_MARGIN: f64 = 0.1;
/// Fraction of its time before the deadline at which a drain ends its uploads, within the bounds below.
const DRAIN_END: f64 = 0.1;
const DRAIN_END_SECONDS: (f64, f64) = (0.5, 5.0);

/// Returns the finding on whether a step is written and sealed before the next save.
pub(super) fn save(situation: &Situation) -> Finding {
    let check = Check::new("save and seal", situation.local.title.as_str());
    let Some(seconds) = save_seconds(situation) else {
        return check.warn(
            "unknown: the disk's rate was not measured",
            "first fix the problem that prevented the measurement",
        );
    };
    let how = match situation.local.seal_method {
        SealMethod::Copy => "written and copied into the vault",
        SealMethod::HardLink => "written and linked into the vault",
        SealMethod::Reflink => "written and cloned into the vault",
    };
    against_interval(situation, &check, how, seconds, "use a faster disk, or save less often")
}

/// Returns, for each remote, the finding on whether a step is uploaded before the next save.
pub(super) fn uploads(situation: &Situation) -> Vec<Finding> {
    const REMEDY: &str = "save less often; otherwise more steps wait in the vault with each save, and from \
        upload.maximum-backlog-steps on those that retention would remove are uploaded last";
    let finding = |remote: &MeasuredRemote| {
        let check = Check::new("upload", format!("{} to {}", situation.local.title, remote.remote));
        match upload_seconds(situation, remote) {
            Some(seconds) => against_interval(situation, &check, "uploaded", seconds, REMEDY),
            None => check.warn(
                "unknown: the rate to the remote was not measured",
                "fix the remote's failed checks, or give a rate: --upload-rate '200 MiB'",
            ),
        }
    };
    situation.remotes.iter().map(finding).collect()
}

/// Returns, for each notice and required remote, the finding on whether the newest step becomes durable in time.
pub(super) fn drains(situation: &Situation) -> Vec<Finding> {
    let mut findings = Vec::new();
    for notice in &situation.notices {
        for remote in situation.remotes.iter().filter(|remote| remote.required) {
            let Some(seconds) = upload_seconds(situation, remote) else {
                continue;
            };
            let check = Check::new("drain", format!("{} to {}", situation.local.title, remote.remote));
            let usable = usable_seconds(seconds_for(notice.seconds, 1));
            let check =
                check.with_seconds("upload_seconds", seconds).with_seconds("available_seconds", usable);
            let measured = format!(
                "{} {}: uploading a step that was just saved takes {}; {} are available for it",
                notice.name,
                words::duration(Duration::from_secs(notice.seconds)),
                words::seconds(seconds),
                words::seconds(usable)
            );
            findings.push(check.pass_or_warn(
                seconds <= usable,
                measured,
                "save smaller steps, or use a faster connection to the store; otherwise another machine resumes \
                 from the previous step, and up to one interval is lost",
            ));
        }
    }
    findings
}

/// Returns, for each remote, the duration of a restore.
pub(super) fn restores(situation: &Situation) -> Vec<Finding> {
    let taken_bytes = situation.forecast.taken.bytes;
    let finding = |remote: &MeasuredRemote| {
        let down = remote.rates.down_bytes_per_second?;
        let disk = situation.local.disk_rates;
        let rate = disk.map_or(down, |disk| down.min(disk.write_bytes_per_second));
        let seconds = seconds_for(taken_bytes, rate);
        let check = Check::new("restore", format!("{} from {}", situation.local.title, remote.remote))
            .with_seconds("restore_seconds", seconds);
        let (seconds, size) = (words::seconds(seconds), words::bytes(taken_bytes));
        Some(check.pass(format!("{seconds} for a step of {size}")))
    };
    situation.remotes.iter().filter_map(finding).collect()
}

/// Returns the save interval that would suffice, as comments, because only the trainer can set it.
pub(super) fn suggestion(situation: &Situation) -> Vec<String> {
    let uploads = situation.remotes.iter().filter_map(|remote| upload_seconds(situation, remote));
    let longest = uploads.chain(save_seconds(situation)).fold(0.0_f64, f64::max);
    let Some(interval) = situation.forecast.interval_seconds else {
        return Vec::new();
    };
    let interval = seconds_for(interval, 1);
    if longest <= interval {
        return Vec::new();
    }
    let minutes = (longest * SPARE / 60.0).ceil();
    let wanted = minutes * 60.0;
    let mut lines = vec![format!(
        "# In the trainer's own configuration: save every {} or less often, in place of every {}.",
        words::seconds(wanted),
        words::seconds(interval)
    )];
    if let Some(steps) = situation.forecast.interval_steps {
        let times = times_of(wanted, interval);
        lines.push(format!("# By steps: interval = {} in place of {steps}.", steps.saturating_mul(times)));
    }
    lines
}

/// Returns the whole factor by which the interval has to be multiplied.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive number, or one that is out of all proportion"
)]
fn times_of(wanted: f64, interval: f64) -> u64 {
    (wanted / interval.max(1.0)).ceil() as u64
}

/// Compares with the interval between two saves the time in which a step is, for example, `uploaded`.
fn against_interval(situation: &Situation, check: &Check, how: &str, seconds: f64, remedy: &str) -> Finding {
    let check = check.clone().with_seconds("step_seconds", seconds);
    let took = format!(
        "a step of {} is {how} in {}",
        words::bytes(situation.forecast.taken.bytes),
        words::seconds(seconds)
    );
    let Some(interval) = situation.forecast.interval_seconds else {
        return check.pass(format!("{took}; the save interval is unknown"));
    };
    let interval = seconds_for(interval, 1);
    let check = check.with_seconds("interval_seconds", interval);
    let measured = format!("{took}; a step is saved every {}", words::seconds(interval));
    check.pass_or_warn(seconds <= interval, measured, remedy)
}

/// Returns the seconds to write a step and seal it.
fn save_seconds(situation: &Situation) -> Option<f64> {
    let rates = situation.local.disk_rates?;
    let bytes = situation.forecast.taken.bytes;
    let written = seconds_for(bytes, rates.write_bytes_per_second);
    let sealed = match situation.local.seal_method {
        SealMethod::Copy => written + seconds_for(bytes, rates.read_bytes_per_second),
        SealMethod::HardLink | SealMethod::Reflink => 0.0,
    };
    Some(written + sealed + SYNCS_OF_A_SEAL * rates.sync_seconds)
}

/// Returns the seconds to upload a step, limited by the rate at which it can be read.
fn upload_seconds(situation: &Situation, remote: &MeasuredRemote) -> Option<f64> {
    let up = remote.rates.up_bytes_per_second?;
    let disk = situation.local.disk_rates;
    let rate = disk.map_or(up, |disk| up.min(disk.read_bytes_per_second));
    Some(seconds_for(situation.forecast.taken.bytes, rate))
}

/// Returns the seconds of a notice that a drain can use for sending.
fn usable_seconds(notice: f64) -> f64 {
    let end = (notice * DRAIN_END).clamp(DRAIN_END_SECONDS.0, DRAIN_END_SECONDS.1);
    ((notice - end) * (1.0 - DRAIN_MARGIN)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::situation;
    use super::*;
    use crate::doctor::Outcome;

    #[test]
    fn what_fits_between_two_saves_passes() {
        let found = save(&situation());
        assert_eq!(found.outcome, Outcome::Pass);
        assert_eq!(
            found.measured,
            "a step of 11.2 GiB is written and linked into the vault in 12.0s; a step is saved every 10m"
        );
        let found = uploads(&situation());
        assert_eq!(found[0].measured, "a step of 11.2 GiB is uploaded in 2m; a step is saved every 10m");
        assert_eq!(found[0].subject, "my-run to s3-main");
    }

    #[test]
    fn a_slow_remote_needs_a_longer_interval() {
        let mut slow = situation();
        slow.remotes[0].rates.up_bytes_per_second = Some(10_000_000);
        let found = uploads(&slow);
        assert_eq!(found[0].outcome, Outcome::Warn);
        assert!(found[0].remedy.as_ref().unwrap().starts_with("save less often"));
        assert_eq!(
            suggestion(&slow),
            [
                "# In the trainer's own configuration: save every 25m or less often, in place of every 10m.",
                "# By steps: interval = 300 in place of 100.",
            ]
        );
        slow.forecast.interval_seconds = None;
        assert_eq!(uploads(&slow)[0].outcome, Outcome::Pass);
        assert!(suggestion(&slow).is_empty());
    }

    #[test]
    fn a_copy_is_read_and_written_once_more() {
        let mut copied = situation();
        copied.local.seal_method = SealMethod::Copy;
        copied.forecast.interval_seconds = Some(20);
        let found = save(&copied);
        assert_eq!(found.outcome, Outcome::Warn);
        assert!(found.measured.contains("copied into the vault in 30.0s"), "{found:?}");
    }

    #[test]
    fn a_drain_has_what_its_notice_leaves() {
        let found = drains(&situation());
        assert_eq!(found[0].outcome, Outcome::Warn);
        assert_eq!(
            found[0].measured,
            "EC2 spot notice 2m: uploading a step that was just saved takes 2m; 1m 43s are available for it"
        );
        let mut small = situation();
        small.forecast.taken.bytes = 10_000_000_000;
        assert_eq!(drains(&small)[0].outcome, Outcome::Pass);
        small.remotes[0].required = false;
        assert!(drains(&small).is_empty());
    }

    #[test]
    fn an_unknown_rate_is_no_answer() {
        let mut unknown = situation();
        unknown.remotes[0].rates.up_bytes_per_second = None;
        unknown.remotes[0].rates.down_bytes_per_second = None;
        assert_eq!(uploads(&unknown)[0].outcome, Outcome::Warn);
        assert!(drains(&unknown).is_empty() && restores(&unknown).is_empty());
        unknown.local.disk_rates = None;
        assert_eq!(save(&unknown).outcome, Outcome::Warn);
    }

    #[test]
    fn a_restore_goes_no_faster_than_the_disk() {
        assert_eq!(restores(&situation())[0].measured, "1m for a step of 11.2 GiB");
        let mut slow = situation();
        slow.local.disk_rates.as_mut().unwrap().write_bytes_per_second = 100_000_000;
        assert_eq!(restores(&slow)[0].measured, "2m for a step of 11.2 GiB");
    }
}

//! What has to be done in time: sealing, uploading, draining, restoring.

use super::super::words;
use super::{MeasuredRemote, Situation};
use crate::doctor::Finding;
use crate::doctor::links::Takeover;

/// Records and names of a step that are each synced when it is sealed.
const SYNCS_OF_A_SEAL: f64 = 8.0;
/// What a suggested interval has to spare.
const SPARE: f64 = 1.25;
/// A drain keeps so much of its time free for a rate that falls.
const DRAIN_MARGIN: f64 = 0.1;
/// … and ends its uploads so much of its time, within these bounds, before the end.
const DRAIN_END: f64 = 0.1;
const DRAIN_END_SECONDS: (f64, f64) = (0.5, 5.0);

/// Whether a step is written and sealed before the next one begins.
pub(super) fn save(situation: &Situation) -> Finding {
    const CHECK: &str = "save and seal";
    let run = situation.run.clone();
    let Some(seconds) = save_seconds(situation) else {
        return Finding::warn(
            CHECK,
            run,
            "not known: the disk's rate was not measured",
            "make what stands in the way of measuring work first",
        );
    };
    let how = match situation.takeover {
        Takeover::Copy => "written, and copied into the vault",
        Takeover::HardLink => "written, and linked into the vault",
        Takeover::Reflink => "written, and cloned into the vault",
    };
    let took = format!(
        "a step of {} is {how} in {}",
        words::bytes(situation.forecast.taken.bytes),
        words::time(seconds)
    );
    against_interval(
        situation,
        CHECK,
        run,
        &took,
        seconds,
        "use a faster disk, or save less often",
    )
}

/// For each remote, whether a step is there before the next one comes.
pub(super) fn uploads(situation: &Situation) -> Vec<Finding> {
    const CHECK: &str = "upload";
    let finding = |remote: &MeasuredRemote| {
        let subject = format!("{} to {}", situation.run, remote.remote);
        let Some(seconds) = upload_seconds(situation, remote) else {
            return unknown_rate(CHECK, subject);
        };
        let took = format!(
            "a step of {} is uploaded in {}",
            words::bytes(situation.forecast.taken.bytes),
            words::time(seconds)
        );
        against_interval(
            situation,
            CHECK,
            subject,
            &took,
            seconds,
            "save less often: steps would wait in the vault, more of them with each save, and be skipped beyond \
             upload.maximum-backlog-steps",
        )
    };
    situation.remotes.iter().map(finding).collect()
}

/// For each notice and required remote, whether the newest step is safe in time.
pub(super) fn drains(situation: &Situation) -> Vec<Finding> {
    const CHECK: &str = "drain";
    let required = || situation.remotes.iter().filter(|remote| remote.required);
    let mut findings = Vec::new();
    for notice in &situation.notices {
        for remote in required() {
            let subject = format!("{} to {}", situation.run, remote.remote);
            let Some(seconds) = upload_seconds(situation, remote) else {
                continue;
            };
            let usable = usable_seconds(words::seconds_for(notice.seconds, 1));
            let measured = format!(
                "{} {}: a step that was just saved is uploaded in {}, and {} are left for it",
                notice.name,
                words::time(words::seconds_for(notice.seconds, 1)),
                words::time(seconds),
                words::time(usable)
            );
            findings.push(if seconds <= usable {
                Finding::pass(CHECK, subject, measured)
            } else {
                Finding::warn(
                    CHECK,
                    subject,
                    measured,
                    "the step before it is what another machine goes on from: save smaller steps or use a faster way \
                     to the store, or count on losing up to one interval",
                )
            });
        }
    }
    findings
}

/// For each remote, how long a restore takes.
pub(super) fn restores(situation: &Situation) -> Vec<Finding> {
    const CHECK: &str = "restore";
    let size = words::bytes(situation.forecast.taken.bytes);
    let finding = |remote: &MeasuredRemote| {
        let subject = format!("{} from {}", situation.run, remote.remote);
        let down = remote.down_bytes_per_second?;
        let rate = situation
            .disk_rates
            .map_or(down, |disk| down.min(disk.write_bytes_per_second));
        let seconds = words::seconds_for(situation.forecast.taken.bytes, rate);
        let measured = format!("{} for a step of {size}", words::time(seconds));
        Some(Finding::pass(CHECK, subject, measured))
    };
    situation.remotes.iter().filter_map(finding).collect()
}

/// The interval that would do, as a comment, since it is the trainer's to set.
pub(super) fn suggestion(situation: &Situation) -> Vec<String> {
    let uploads = situation
        .remotes
        .iter()
        .filter_map(|remote| upload_seconds(situation, remote));
    let longest = uploads.chain(save_seconds(situation)).fold(0.0_f64, f64::max);
    let Some(interval) = situation.forecast.interval_seconds else {
        return Vec::new();
    };
    let interval = words::seconds_for(interval, 1);
    if longest <= interval {
        return Vec::new();
    }
    let minutes = (longest * SPARE / 60.0).ceil();
    let wanted = minutes * 60.0;
    let mut lines = vec![format!(
        "# In the trainer's own configuration: save every {} or less often, in place of every {}.",
        words::time(wanted),
        words::time(interval)
    )];
    if let Some(steps) = situation.forecast.interval_steps {
        let times = times_of(wanted, interval);
        lines.push(format!(
            "# By steps: interval = {} in place of {steps}.",
            steps.saturating_mul(times)
        ));
    }
    lines
}

/// By how much the interval has to be multiplied, as a whole number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive number, or one that is out of all proportion"
)]
fn times_of(wanted: f64, interval: f64) -> u64 {
    (wanted / interval.max(1.0)).ceil() as u64
}

fn against_interval(
    situation: &Situation,
    check: &str,
    subject: String,
    took: &str,
    seconds: f64,
    remedy: &str,
) -> Finding {
    let Some(interval) = situation.forecast.interval_seconds else {
        return Finding::pass(
            check,
            subject,
            format!("{took}; how often steps are saved is not known"),
        );
    };
    let interval = words::seconds_for(interval, 1);
    let measured = format!("{took}; saves come every {}", words::time(interval));
    if seconds <= interval {
        return Finding::pass(check, subject, measured);
    }
    Finding::warn(check, subject, measured, remedy)
}

fn unknown_rate(check: &str, subject: String) -> Finding {
    Finding::warn(
        check,
        subject,
        "not known: the rate to the remote was not measured",
        "let the checks of the remote pass, or give a rate: --upload-rate '200 MB'",
    )
}

/// Writing a step and sealing it.
fn save_seconds(situation: &Situation) -> Option<f64> {
    let rates = situation.disk_rates?;
    let bytes = situation.forecast.taken.bytes;
    let written = words::seconds_for(bytes, rates.write_bytes_per_second);
    let sealed = match situation.takeover {
        Takeover::Copy => {
            words::seconds_for(bytes, rates.read_bytes_per_second)
                + words::seconds_for(bytes, rates.write_bytes_per_second)
        }
        Takeover::HardLink | Takeover::Reflink => 0.0,
    };
    Some(written + sealed + SYNCS_OF_A_SEAL * rates.sync_seconds)
}

/// Uploading one, which goes no faster than it can be read.
fn upload_seconds(situation: &Situation, remote: &MeasuredRemote) -> Option<f64> {
    let up = remote.up_bytes_per_second?;
    let rate = situation
        .disk_rates
        .map_or(up, |disk| up.min(disk.read_bytes_per_second));
    Some(words::seconds_for(situation.forecast.taken.bytes, rate))
}

/// What a drain has of a notice for sending.
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
            "a step of 11.2 GiB is written, and linked into the vault in 12.0 s; saves come every 10m"
        );
        let found = uploads(&situation());
        assert_eq!(
            found[0].measured,
            "a step of 11.2 GiB is uploaded in 2m; saves come every 10m"
        );
        assert_eq!(found[0].subject, "my-run to s3-main");
    }

    #[test]
    fn a_slow_remote_needs_a_longer_interval() {
        let mut slow = situation();
        slow.remotes[0].up_bytes_per_second = Some(10_000_000);
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
        copied.takeover = Takeover::Copy;
        copied.forecast.interval_seconds = Some(20);
        let found = save(&copied);
        assert_eq!(found.outcome, Outcome::Warn);
        assert!(
            found.measured.contains("copied into the vault in 30.0 s"),
            "{found:?}"
        );
    }

    #[test]
    fn a_drain_has_what_its_notice_leaves() {
        let found = drains(&situation());
        assert_eq!(found[0].outcome, Outcome::Warn);
        assert_eq!(
            found[0].measured,
            "EC2 spot notice 2m: a step that was just saved is uploaded in 2m, and 1m 43s are left for it"
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
        unknown.remotes[0].up_bytes_per_second = None;
        unknown.remotes[0].down_bytes_per_second = None;
        assert_eq!(uploads(&unknown)[0].outcome, Outcome::Warn);
        assert!(drains(&unknown).is_empty() && restores(&unknown).is_empty());
        unknown.disk_rates = None;
        assert_eq!(save(&unknown).outcome, Outcome::Warn);
    }

    #[test]
    fn a_restore_goes_no_faster_than_the_disk() {
        assert_eq!(restores(&situation())[0].measured, "1m for a step of 11.2 GiB");
        let mut slow = situation();
        slow.disk_rates.as_mut().unwrap().write_bytes_per_second = 100_000_000;
        assert_eq!(restores(&slow)[0].measured, "2m for a step of 11.2 GiB");
    }
}

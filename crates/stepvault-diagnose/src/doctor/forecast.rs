//! Forecasts the size and the time of the next step from previous steps.

use stepvault_core::file_parts::refusal_ahead;
use stepvault_core::forecast::{Taken, next_step};
use stepvault_core::timestamp::Timestamp;

use super::{Check, Finding};

/// Number of the newest intervals between saves whose median is the forecast.
const PAUSES: usize = 8;

/// A previous step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastStep {
    /// Its size on disk.
    pub step: Option<u64>,
    /// What it takes on a disk.
    pub taken: Taken,
    /// Time of the newest file.
    pub written_at: Timestamp,
}

/// The expected next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    /// Its size on disk.
    pub taken: Taken,
    /// Seconds between two saves; `None` if fewer than two are known.
    pub interval_seconds: Option<u64>,
    /// Difference between the numbers of two successive steps.
    pub interval_steps: Option<u64>,
    /// The source of the forecast: `the newest 3 steps in the vault`.
    pub source: String,
}

impl Forecast {
    /// Computes the forecast from the steps in `place` (`in the vault`), in any order; returns `None` without any.
    pub fn of(steps: &[PastStep], place: &str) -> Option<Self> {
        let mut newest = steps.to_vec();
        newest.sort_by_key(|step| std::cmp::Reverse(step.written_at));
        let so_far: Vec<Taken> = newest.iter().rev().map(|step| step.taken).collect();
        let next = next_step(&so_far)?;
        let pairs = || newest.iter().zip(newest.iter().skip(1)).take(PAUSES);
        let pauses = pairs().map(|(later, earlier)| later.written_at.seconds_since(earlier.written_at));
        let strides = pairs().filter_map(|(later, earlier)| later.step?.checked_sub(earlier.step?));
        let source = match next.from_steps {
            1 => format!("the one step {place}"),
            count => format!("the newest {count} steps {place}"),
        };
        Some(Self {
            taken: next.taken,
            // The files of a restored step are all written at once, long after the trainer's own interval.
            interval_seconds: middle(pauses.filter(|gap| *gap > 0).collect()),
            interval_steps: middle(strides.filter(|stride| *stride > 0).collect()),
            source,
        })
    }
}

/// Returns the finding on files that a push will refuse for their size, as the largest one of the newest step shows.
pub fn file_size(subject: &str, largest_file_bytes: u64) -> Option<Finding> {
    let (why, hint) = refusal_ahead(largest_file_bytes)?;
    Some(Check::new("file size", subject).with("largest_file_bytes", largest_file_bytes).fail(why, hint))
}

/// Returns the median; for an even count, the smaller of the two middle values, because saves that come sooner are the
/// harder case.
fn middle(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let index = values.len().checked_sub(1)? / 2;
    values.get(index).copied()
}

#[cfg(test)]
mod tests {
    use stepvault_core::file_parts::MAXIMUM_FILE_SIZE_BYTES;

    use super::*;
    use crate::doctor::Outcome;

    fn step(number: u64, bytes: u64, at: i64) -> PastStep {
        PastStep {
            step: Some(number),
            taken: Taken { bytes, files: bytes / 10, directories: 2 },
            written_at: Timestamp::from_seconds(at),
        }
    }

    #[test]
    fn the_newest_steps_say_how_large_the_next_one_is_and_when() {
        assert_eq!(Forecast::of(&[], "in the vault"), None);
        let one = Forecast::of(&[step(100, 50, 1000)], "in the vault").unwrap();
        assert_eq!((one.taken.bytes, one.taken.files, one.interval_seconds), (50, 5, None));
        assert_eq!(one.source, "the one step in the vault");
        let steps = [step(400, 70, 2200), step(100, 900, 1000), step(200, 80, 1600), step(300, 60, 1900)];
        let forecast = Forecast::of(&steps, "in the vault").unwrap();
        assert_eq!(forecast.taken.bytes, 80, "the largest of the newest three");
        assert_eq!(forecast.interval_seconds, Some(300));
        assert_eq!(forecast.interval_steps, Some(100));
        assert_eq!(forecast.source, "the newest 3 steps in the vault");
    }

    #[test]
    fn a_file_that_a_push_refuses_is_a_failure_and_any_other_no_finding() {
        assert!(file_size("checkpoints", MAXIMUM_FILE_SIZE_BYTES).is_none());
        let finding = file_size("checkpoints", MAXIMUM_FILE_SIZE_BYTES + 1).unwrap();
        assert_eq!(finding.outcome, Outcome::Fail);
    }

    #[test]
    fn steps_written_in_one_second_tell_no_pause() {
        let steps = [step(100, 1, 5), step(200, 1, 5), step(300, 1, 5)];
        let forecast = Forecast::of(&steps, "in /run").unwrap();
        assert_eq!(forecast.interval_seconds, None);
    }
}

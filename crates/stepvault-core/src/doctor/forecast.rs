//! How large the next step is going to be, and when it comes, from the steps so far.

use crate::forecast::{Taken, next_step};
use crate::timestamp::Timestamp;

/// So many of the newest pauses between saves say how long the next is: the one in the middle counts.
const PAUSES: usize = 8;

/// A step of the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastStep {
    /// Its number, where it has one.
    pub step: Option<u64>,
    /// What it takes on a disk.
    pub taken: Taken,
    /// When its newest file was written.
    pub written_at: Timestamp,
}

/// What the next step is expected to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    /// What it takes on a disk.
    pub taken: Taken,
    /// Seconds from one save to the next; `None` where fewer than two are known.
    pub interval_seconds: Option<u64>,
    /// By how much the step's number grows from one save to the next.
    pub interval_steps: Option<u64>,
    /// Where all this comes from, in words: `the newest 3 steps in the vault`.
    pub source: String,
}

impl Forecast {
    /// From the steps in `place` (`in the vault`), in any order; `None` without any.
    pub fn of(steps: &[PastStep], place: &str) -> Option<Self> {
        let mut newest = steps.to_vec();
        newest.sort_by_key(|step| std::cmp::Reverse(step.written_at));
        let so_far: Vec<Taken> = newest.iter().rev().map(|step| step.taken).collect();
        let next = next_step(&so_far)?;
        let pairs = || newest.windows(2).take(PAUSES);
        let pauses = pairs().filter_map(|pair| match pair {
            // A restored step's files were all written at once, long after the trainer's own pause.
            [later, earlier] => {
                Some(later.written_at.seconds_since(earlier.written_at)).filter(|gap| *gap > 0)
            }
            _ => None,
        });
        let strides = pairs().filter_map(|pair| match pair {
            [later, earlier] => later
                .step?
                .checked_sub(earlier.step?)
                .filter(|stride| *stride > 0),
            _ => None,
        });
        let source = match next.from_steps {
            1 => format!("the one step {place}"),
            count => format!("the newest {count} steps {place}"),
        };
        Some(Self {
            taken: next.taken,
            interval_seconds: middle(pauses.collect()),
            interval_steps: middle(strides.collect()),
            source,
        })
    }
}

/// Of an even number the smaller of the two in the middle: saves that come sooner are the harder case.
fn middle(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let index = values.len().checked_sub(1)? / 2;
    values.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(number: u64, bytes: u64, at: i64) -> PastStep {
        PastStep {
            step: Some(number),
            taken: Taken {
                bytes,
                files: bytes / 10,
                directories: 2,
            },
            written_at: Timestamp::from_seconds(at),
        }
    }

    #[test]
    fn the_newest_steps_say_how_large_the_next_one_is_and_when() {
        assert_eq!(Forecast::of(&[], "in the vault"), None);
        let one = Forecast::of(&[step(100, 50, 1000)], "in the vault").unwrap();
        assert_eq!(
            (one.taken.bytes, one.taken.files, one.interval_seconds),
            (50, 5, None)
        );
        assert_eq!(one.source, "the one step in the vault");
        let steps = [
            step(400, 70, 2200),
            step(100, 900, 1000),
            step(200, 80, 1600),
            step(300, 60, 1900),
        ];
        let forecast = Forecast::of(&steps, "in the vault").unwrap();
        assert_eq!(forecast.taken.bytes, 80, "the largest of the newest three");
        assert_eq!(forecast.interval_seconds, Some(300));
        assert_eq!(forecast.interval_steps, Some(100));
        assert_eq!(forecast.source, "the newest 3 steps in the vault");
    }

    #[test]
    fn steps_written_in_one_second_tell_no_pause() {
        let steps = [step(100, 1, 5), step(200, 1, 5), step(300, 1, 5)];
        let forecast = Forecast::of(&steps, "in /run").unwrap();
        assert_eq!(forecast.interval_seconds, None);
    }
}

//! Steps that are completely removed and whose tombstones are gone. Their names are never used again.
//!
//! A tombstone is an object for each removed step, and every command lists them. Once nothing of a removed step
//! remains, `gc` moves its name into one record of arithmetic progressions: checkpoints are written at regular
//! intervals, so that the whole past of a run needs only a few entries.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, Record};
use crate::{Attempt, Error, ErrorKind, Result, Revision, RunName, Step, StepId};

/// Steps of one attempt at equal intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetiredRange {
    /// The attempt.
    pub attempt: Attempt,
    /// The revision of all of them. Omitted when it is the first.
    #[serde(default, skip_serializing_if = "Revision::is_first")]
    pub revision: Revision,
    /// The first step.
    pub first: Step,
    /// The last step.
    pub last: Step,
    /// The interval between two steps; 1 for a single step.
    pub stride: u64,
}

impl RetiredRange {
    fn single(id: StepId) -> Self {
        Self { attempt: id.attempt, revision: id.revision, first: id.step, last: id.step, stride: 1 }
    }

    fn is_single(&self) -> bool {
        self.first == self.last
    }

    fn contains(&self, id: StepId) -> bool {
        (self.attempt, self.revision) == (id.attempt, id.revision)
            && self.first <= id.step
            && id.step <= self.last
            && (id.step.number() - self.first.number()).is_multiple_of(self.stride)
    }

    /// Returns the id that a step of this range would have.
    fn id_of(&self, step: Step) -> StepId {
        StepId { revision: self.revision, ..StepId::new(self.attempt, step) }
    }

    /// Returns this range joined with a later one, if both have the same interval.
    fn joined(&self, next: &Self) -> Option<Self> {
        if (self.attempt, self.revision) != (next.attempt, next.revision) || next.first <= self.last {
            return None;
        }
        let distance = next.first.number() - self.last.number();
        let fits = |range: &Self| range.is_single() || range.stride == distance;
        (fits(self) && fits(next)).then_some(Self { last: next.last, stride: distance, ..*self })
    }
}

/// The record `retired/<number>.json`. Each includes the content of all lower-numbered ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetiredRecord {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The steps, sorted by attempt, revision and first step. No two ranges contain the same step.
    pub ranges: Vec<RetiredRange>,
}

impl Record for RetiredRecord {
    const WHAT: &'static str = "record of retired steps";

    fn check(&self) -> Result<()> {
        let fault = |why: &str| Err(Error::new(ErrorKind::Damaged, why));
        for range in &self.ranges {
            let length = range.last.number().checked_sub(range.first.number());
            let is_whole =
                range.stride > 0 && length.is_some_and(|length| length.is_multiple_of(range.stride));
            if !is_whole || (range.is_single() && range.stride != 1) {
                return fault("a range does not end at one of its steps");
            }
        }
        if !self.ranges.is_sorted_by(|one, next| one < next) {
            return fault("its ranges are not sorted");
        }
        Ok(())
    }
}

/// A set of retired steps. It is never expanded: its size does not grow with the number of steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetiredSteps {
    ranges: Vec<RetiredRange>,
}

impl RetiredSteps {
    /// Adds the steps of a record.
    pub fn extend(&mut self, record: RetiredRecord) {
        if self.ranges.is_empty() {
            self.ranges = record.ranges;
        } else {
            self.ranges.extend(record.ranges);
            self.ranges.sort_unstable();
            self.ranges.dedup();
        }
    }

    /// Returns whether a step is retired.
    pub fn contains(&self, id: StepId) -> bool {
        self.ranges.iter().any(|range| range.contains(id))
    }

    /// Returns the highest `count` steps, by attempt and step.
    pub fn newest(&self, count: usize) -> BTreeSet<StepId> {
        let mut newest = BTreeSet::new();
        for range in &self.ranges {
            let steps = (range.first.number()..=range.last.number()).rev();
            let stride = usize::try_from(range.stride).unwrap_or(usize::MAX);
            let steps = steps.step_by(stride.max(1)).take(count).filter_map(|step| Step::new(step).ok());
            newest.extend(steps.map(|step| range.id_of(step)));
            while newest.len() > count {
                newest.pop_first();
            }
        }
        newest
    }

    /// Returns the highest step, by attempt and step.
    pub fn last(&self) -> Option<StepId> {
        self.ranges.iter().map(|range| range.id_of(range.last)).max()
    }

    /// Returns the retired steps with this number.
    pub fn of_step(&self, step: Step) -> impl Iterator<Item = StepId> {
        self.ranges.iter().filter_map(move |range| {
            let id = range.id_of(step);
            range.contains(id).then_some(id)
        })
    }

    /// Returns the record that contains these steps and `added`.
    pub fn with(&self, run: &RunName, added: &BTreeSet<StepId>) -> RetiredRecord {
        let mut ranges = self.ranges.clone();
        ranges.extend(added.iter().filter(|id| !self.contains(**id)).map(|id| RetiredRange::single(*id)));
        ranges.sort_unstable();
        let mut joined: Vec<RetiredRange> = Vec::new();
        for range in ranges {
            match joined.last_mut().and_then(|last| Some((last.joined(&range)?, last))) {
                Some((both, last)) => *last = both,
                None => joined.push(range),
            }
        }
        RetiredRecord { format: FORMAT, run: run.clone(), ranges: joined }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::{decode, encode};

    fn id(attempt: u32, step: u64) -> StepId {
        StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
    }

    fn run() -> RunName {
        RunName::new("run").unwrap()
    }

    fn set_of(record: RetiredRecord) -> RetiredSteps {
        let mut set = RetiredSteps::default();
        set.extend(record);
        set
    }

    #[test]
    fn checkpoints_at_equal_distances_take_one_entry_whenever_they_are_retired() {
        let first: BTreeSet<StepId> = (1..=10_000).filter(|n| n % 10 != 0).map(|n| id(1, n * 100)).collect();
        let record = RetiredSteps::default().with(&run(), &first);
        assert_eq!(record.ranges.len(), 1000);
        let rest: BTreeSet<StepId> = (1..=1_000).map(|n| id(1, n * 1000)).collect();
        let record = set_of(record).with(&run(), &rest);
        assert_eq!(record.ranges.len(), 1, "{:?}", &record.ranges[..2]);
        let set = set_of(record);
        assert!(set.contains(id(1, 100)) && set.contains(id(1, 1_000_000)));
        assert!(!set.contains(id(1, 150)) && !set.contains(id(2, 100)));
        assert_eq!(set.last(), Some(id(1, 1_000_000)));
        assert_eq!(set.newest(2), [id(1, 999_900), id(1, 1_000_000)].into());
        assert_eq!(set.of_step(Step::new(300).unwrap()).collect::<Vec<_>>(), [id(1, 300)]);
        assert_eq!(set.of_step(Step::new(301).unwrap()).count(), 0);
    }

    #[test]
    fn a_record_whose_ranges_say_two_things_is_refused() {
        let step = |number| Step::new(number).unwrap();
        let range = |first, last, stride| RetiredRange {
            attempt: Attempt::FIRST,
            revision: Revision::FIRST,
            first: step(first),
            last: step(last),
            stride,
        };
        let read = |ranges: Vec<RetiredRange>| {
            let record = RetiredRecord { format: FORMAT, run: run(), ranges };
            decode::<RetiredRecord>(&encode(&record).unwrap(), "r").is_ok()
        };
        assert!(read(vec![range(0, 100, 50), range(120, 120, 1)]));
        let ranges = vec![range(0, 100, 50), range(90, 90, 1)];
        let set = set_of(RetiredRecord { format: FORMAT, run: run(), ranges });
        assert_eq!(set.newest(3), [id(1, 50), id(1, 90), id(1, 100)].into());
        assert_eq!(set.newest(9).len(), 4);
        for bad in [
            vec![range(0, 100, 0)],
            vec![range(0, 100, 30)],
            vec![range(100, 0, 50)],
            vec![range(5, 5, 2)],
            vec![range(120, 120, 1), range(0, 100, 50)],
            vec![range(5, 5, 1), range(5, 5, 1)],
        ] {
            assert!(!read(bad.clone()), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn the_record_holds_exactly_what_was_retired(
            rounds in prop::collection::vec(prop::collection::btree_set((1_u32..3, 0_u64..60), 0..20), 0..6)
        ) {
            let mut set = RetiredSteps::default();
            let mut expected = BTreeSet::new();
            for round in rounds {
                let added: BTreeSet<StepId> = round.into_iter().map(|(attempt, step)| id(attempt, step)).collect();
                expected.extend(added.iter().copied());
                let record = set.with(&run(), &added);
                let bytes = encode(&record).unwrap();
                set = set_of(decode::<RetiredRecord>(&bytes, "record").unwrap());
            }
            for attempt in 1..3 {
                for step in 0..60 {
                    prop_assert_eq!(set.contains(id(attempt, step)), expected.contains(&id(attempt, step)));
                }
            }
        }
    }
}

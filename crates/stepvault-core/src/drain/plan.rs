//! The plan for one remote.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::{RemoteName, RunName, StepId};
use crate::words::{bytes, first_of, rate};

/// A step that is not durable on a remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The run.
    pub run: RunName,
    /// Step and attempt.
    pub id: StepId,
    /// Bytes that the remote lacks, according to the journal of the upload.
    pub missing_bytes: u64,
}

/// How long uploads may continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLeft {
    /// Time until the last byte must be sent; `None` without a deadline.
    pub until_the_end: Option<Duration>,
    /// Time reserved at the end, in case the rate falls.
    pub margin: Duration,
    /// Time for each step in addition to its bytes: its records are written and read back.
    pub each_step: Duration,
}

/// Whether a step is expected to become durable in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chance {
    /// It is expected to, at the measured rate.
    Fits,
    /// Nothing was measured yet, or there is no deadline.
    Unknown,
    /// It is not expected to, at the measured rate.
    Misses,
}

/// A step in the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStep {
    /// The step.
    pub step: Waiting,
    /// Whether it is expected to become durable in time.
    pub chance: Chance,
    /// Bytes that are expected to be missing at the deadline.
    pub left_bytes: u64,
}

/// What to send to a remote, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePlan {
    /// The remote.
    pub remote: RemoteName,
    /// The recent upload rate; `None` if nothing was measured.
    pub bytes_per_second: Option<u64>,
    /// Every waiting step, in the order of sending.
    pub steps: Vec<PlannedStep>,
}

/// Plans what to send to a remote.
///
/// # Invariants
/// The plan contains every waiting step once. The steps that fit come first, and all of them fit together. If a step
/// of a run fits by itself, the plan finishes a step: one of that run's newest that fit, or one of another run's.
pub fn plan(
    remote: RemoteName,
    waiting: Vec<Waiting>,
    bytes_per_second: Option<u64>,
    time: TimeLeft,
) -> RemotePlan {
    let mut closest_first = waiting;
    closest_first.sort_by(|one, other| {
        (one.missing_bytes, other.id, &one.run).cmp(&(other.missing_bytes, one.id, &other.run))
    });
    let usable = time.until_the_end.map(|left| left.saturating_sub(time.margin).as_nanos());
    let (Some(usable), Some(rate)) = (usable, bytes_per_second) else {
        return RemotePlan {
            remote,
            bytes_per_second,
            steps: closest_first.into_iter().map(unknown).collect(),
        };
    };
    let cost = |step: &Waiting| {
        let sending = (u128::from(step.missing_bytes) * 1_000_000_000)
            .checked_div(u128::from(rate))
            .unwrap_or(if step.missing_bytes == 0 { 0 } else { u128::MAX });
        sending.saturating_add(time.each_step.as_nanos())
    };
    let mut left = usable;
    let mut chosen = BTreeSet::new();
    let newest = newest_that_fit(&closest_first, |step| cost(step) <= usable);
    let others = (0..closest_first.len()).filter(|index| !newest.contains(index));
    // If a run's newest step no longer fits into the remaining time, its older steps compete with the others.
    for index in newest.iter().copied().chain(others) {
        let cost = cost(&closest_first[index]);
        if cost <= left {
            left -= cost;
            chosen.insert(index);
        }
    }
    let mut left_bytes_budget = left.saturating_mul(u128::from(rate)) / 1_000_000_000;
    let mut steps = Vec::with_capacity(closest_first.len());
    let mut missing = Vec::new();
    for (index, step) in closest_first.into_iter().enumerate() {
        if chosen.contains(&index) {
            steps.push(PlannedStep { step, chance: Chance::Fits, left_bytes: 0 });
        } else {
            missing.push(step);
        }
    }
    for step in missing {
        let sent = u64::try_from(left_bytes_budget).unwrap_or(u64::MAX).min(step.missing_bytes);
        left_bytes_budget -= u128::from(sent);
        steps.push(PlannedStep { left_bytes: step.missing_bytes - sent, step, chance: Chance::Misses });
    }
    RemotePlan { remote, bytes_per_second, steps }
}

/// Groups of file parts that are sent one after the other until the deadline.
const GROUPS: u128 = 4;

/// Returns how many file parts to send at once, from 1 to `at_most`, so that the deadline finds few of them unfinished.
///
/// Parts that are sent at once share the rate and end together, so on a slow link none of many is whole at the deadline.
/// With this number, the parts that are cut off hold at most a quarter of what could be sent, unless one part alone
/// takes longer.
pub fn parts_at_once(
    part_bytes: u64,
    bytes_per_second: u64,
    until_the_end: Duration,
    at_most: usize,
) -> usize {
    let sendable_bytes = u128::from(bytes_per_second).saturating_mul(until_the_end.as_millis()) / 1000;
    let parts = sendable_bytes / GROUPS / u128::from(part_bytes.max(1));
    usize::try_from(parts).unwrap_or(at_most).min(at_most).max(1)
}

fn unknown(step: Waiting) -> PlannedStep {
    PlannedStep { left_bytes: step.missing_bytes, step, chance: Chance::Unknown }
}

/// Returns the newest step of each run that fits by itself, as positions in `closest_first`; the run that needs least
/// comes first.
fn newest_that_fit(closest_first: &[Waiting], fits: impl Fn(&Waiting) -> bool) -> Vec<usize> {
    let mut newest: BTreeMap<&RunName, usize> = BTreeMap::new();
    for (index, step) in closest_first.iter().enumerate().filter(|(_, step)| fits(step)) {
        let known = newest.entry(&step.run).or_insert(index);
        if closest_first[*known].id < step.id {
            *known = index;
        }
    }
    let mut positions: Vec<usize> = newest.into_values().collect();
    positions.sort_unstable();
    positions
}

impl RemotePlan {
    /// Returns whether an upload in progress should be preempted by the first step of the plan.
    ///
    /// Preempting loses the parts in progress, so it happens only if much is gained: another step fits and this one
    /// does not, or the chances are unknown and another step has at most half as much left.
    pub fn gives_way(&self, run: &RunName, id: StepId) -> bool {
        let is_it = |planned: &&PlannedStep| planned.step.run == *run && planned.step.id == id;
        let (Some(first), Some(current)) = (self.steps.first(), self.steps.iter().find(is_it)) else {
            return false;
        };
        match (first.chance, current.chance) {
            _ if is_it(&first) => false,
            (_, Chance::Fits) => false,
            (Chance::Fits, _) => true,
            _ => first.step.missing_bytes <= current.step.missing_bytes / 2,
        }
    }

    /// Returns the plan in one line.
    pub fn summary(&self) -> String {
        let rate = self.bytes_per_second.map_or_else(|| "the upload rate is unknown".to_owned(), rate);
        let mut parts = Vec::new();
        for (chance, word) in [
            (Chance::Fits, "will finish"),
            (Chance::Unknown, "may finish"),
            (Chance::Misses, "will not finish"),
        ] {
            let its: Vec<&PlannedStep> = self.steps.iter().filter(|step| step.chance == chance).collect();
            if its.is_empty() {
                continue;
            }
            let named = its.iter().map(|PlannedStep { step, .. }| {
                let missing = bytes(step.missing_bytes);
                format!("{} of {} ({missing} missing)", step.id, step.run)
            });
            parts.push(format!("{} {word}", first_of(named, MAX_NAMED, 0)));
        }
        if parts.is_empty() {
            parts.push("no step waits".to_owned());
        }
        format!("{}, {rate}: {}", self.remote, parts.join("; "))
    }
}

/// Maximum number of steps of one kind that the summary names.
const MAX_NAMED: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Attempt, Step};

    const MIB: u64 = 1 << 20;

    fn id(step: u64) -> StepId {
        StepId::new(Attempt::FIRST, Step::new(step).unwrap())
    }

    fn run(name: &str) -> RunName {
        RunName::new(name).unwrap()
    }

    fn planned(waiting: &[(&str, u64, u64)], rate: Option<u64>, seconds: u64) -> RemotePlan {
        let waiting = waiting.iter().map(|(name, step, mib)| Waiting {
            run: run(name),
            id: id(*step),
            missing_bytes: mib * MIB,
        });
        let time = TimeLeft {
            until_the_end: Some(Duration::from_secs(seconds)),
            margin: Duration::ZERO,
            each_step: Duration::ZERO,
        };
        plan(RemoteName::new("main").unwrap(), waiting.collect(), rate.map(|mib| mib * MIB), time)
    }

    fn order(plan: &RemotePlan) -> Vec<(u64, Chance)> {
        let steps = plan.steps.iter();
        steps.map(|planned| (planned.step.id.step.number(), planned.chance)).collect()
    }

    #[test]
    fn the_closest_goes_first_and_among_equals_the_newest() {
        use Chance::Fits;
        let all = [("a", 1, 30), ("a", 2, 10), ("a", 3, 10), ("a", 4, 20)];
        let plan = planned(&all, Some(10), 60);
        assert_eq!(order(&plan), [(3, Fits), (2, Fits), (4, Fits), (1, Fits)]);
    }

    #[test]
    fn an_older_step_stands_back_where_it_would_cost_the_newest() {
        use Chance::{Fits, Misses};
        let both = [("a", 290, 10), ("a", 300, 95)];
        assert_eq!(order(&planned(&both, Some(10), 10)), [(300, Fits), (290, Misses)]);
        assert_eq!(order(&planned(&both, Some(10), 11)), [(290, Fits), (300, Fits)]);
        // The newest does not fit at all: the older one is what can be had.
        assert_eq!(order(&planned(&both, Some(10), 9)), [(290, Fits), (300, Misses)]);
    }

    #[test]
    fn each_run_has_its_newest_before_any_has_a_second() {
        use Chance::{Fits, Misses};
        let two = [("a", 9, 10), ("a", 10, 20), ("b", 5, 30)];
        let plan = planned(&two, Some(10), 5);
        assert_eq!(order(&plan), [(10, Fits), (5, Fits), (9, Misses)]);
    }

    #[test]
    fn what_does_not_fit_says_how_much_will_be_missing() {
        let plan = planned(&[("a", 1, 10), ("a", 2, 100), ("a", 3, 300)], Some(10), 5);
        let left: Vec<u64> = plan.steps.iter().map(|step| step.left_bytes / MIB).collect();
        assert_eq!(left, [0, 60, 300]);
        assert_eq!(
            plan.summary(),
            "main, 10.0 MiB/s: step 1 (attempt 1) of a (10.0 MiB missing) will finish; step 2 (attempt 1) of \
             a (100.0 MiB missing), step 3 (attempt 1) of a (300.0 MiB missing) will not finish"
        );
    }

    #[test]
    fn without_a_rate_the_closest_is_tried() {
        use Chance::{Fits, Misses, Unknown};
        let plan = planned(&[("a", 1, 10), ("a", 2, 100)], None, 5);
        assert_eq!(order(&plan), [(1, Unknown), (2, Unknown)]);
        assert_eq!(planned(&[], None, 5).summary(), "main, the upload rate is unknown: no step waits");
        // A rate of nothing moves nothing, and what has all its bytes there still has its records to write.
        let stalled = planned(&[("a", 1, 0), ("a", 2, 100)], Some(0), 5);
        assert_eq!(order(&stalled), [(1, Fits), (2, Misses)]);
    }

    #[test]
    fn as_many_parts_are_sent_at_once_as_are_finished_in_a_quarter_of_the_time() {
        let at_once = |rate, seconds| parts_at_once(8 * MIB, rate, Duration::from_secs(seconds), 16);
        assert_eq!(at_once(100 * MIB, 60), 16);
        assert_eq!(at_once(2 * MIB, 60), 3);
        assert_eq!(at_once(MIB / 2, 60), 1);
        assert_eq!(at_once(MIB / 2, 0), 1);
        assert_eq!(parts_at_once(0, u64::MAX, Duration::MAX, 0), 1);
    }

    #[test]
    fn an_upload_under_way_gives_way_only_where_much_is_gained() {
        let gives_way = |all: &[(&str, u64, u64)], rate, current| {
            planned(all, rate, 10).gives_way(&run("a"), id(current))
        };
        assert!(gives_way(&[("a", 1, 50), ("a", 2, 500)], Some(10), 2));
        assert!(!gives_way(&[("a", 1, 50), ("a", 2, 500)], Some(10), 1));
        assert!(!gives_way(&[("a", 1, 20), ("a", 2, 50)], Some(10), 2));
        assert!(!gives_way(&[("a", 1, 400), ("a", 2, 500)], Some(10), 2));
        assert!(!gives_way(&[("a", 1, 400), ("a", 2, 500)], None, 2));
        assert!(gives_way(&[("a", 1, 200), ("a", 2, 500)], None, 2));
        assert!(!gives_way(&[("a", 1, 200)], None, 2));
    }
}

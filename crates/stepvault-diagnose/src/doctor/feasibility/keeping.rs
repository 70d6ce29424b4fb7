//! Checks whether the disk has room for the steps that the rules keep.

use super::Situation;
use crate::doctor::room::RECORDS_OF_A_STEP;
use crate::doctor::{Check, Finding, seconds_for};
use stepvault_core::retention::KeepRules;
use stepvault_core::words;

/// How many steps the rules keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// All of them.
    Every,
    /// A number that grows without limit.
    Growing,
    /// At most this many.
    AtMost(u64),
    /// Unknown, because it depends on the save interval.
    Unknown,
}

fn kept(rules: &KeepRules, interval_seconds: Option<u64>) -> Kept {
    if rules.is_unset() {
        return Kept::Every;
    }
    if rules.every_steps.is_some_and(|steps| steps > 0) {
        return Kept::Growing;
    }
    let counts = [rules.last, rules.hourly, rules.daily, rules.weekly];
    let best = rules.best.iter().map(|rule| u64::from(rule.count)).sum::<u64>();
    let counted = counts.into_iter().flatten().map(u64::from).sum::<u64>() + best;
    let within = rules.within_seconds.filter(|seconds| *seconds > 0);
    match (within, interval_seconds) {
        (None, _) => Kept::AtMost(counted),
        (Some(_), None) => Kept::Unknown,
        (Some(within), Some(interval)) => Kept::AtMost(counted + within / interval.max(1) + 1),
    }
}

/// How many steps fit into the vault in addition to the one that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Capacity {
    steps: u64,
    /// Whether inodes run out before bytes.
    by_inodes: bool,
}

fn capacity(situation: &Situation) -> Option<Capacity> {
    let (room, kept) = (situation.local.room?, situation.local.kept);
    let fits = |free: u64, kept: u64, each: u64| free.saturating_add(kept) / each.max(1);
    let by_bytes = fits(room.free_bytes, kept.bytes, situation.forecast.taken.bytes);
    let by_inodes = room
        .free_inodes
        .map(|free| fits(free, kept.inodes(), inodes_of_a_step(situation)))
        .filter(|fits| *fits < by_bytes);
    let steps = by_inodes.unwrap_or(by_bytes);
    Some(Capacity {
        steps: steps.saturating_sub(u64::from(situation.local.shares_disk)),
        by_inodes: by_inodes.is_some(),
    })
}

impl Capacity {
    /// Returns what this many steps take of what runs out first.
    fn taken_by(&self, steps: u64, situation: &Situation) -> String {
        if self.by_inodes {
            words::count(inodes_of_a_step(situation).saturating_mul(steps), "inode")
        } else {
            words::bytes(situation.forecast.taken.bytes.saturating_mul(steps))
        }
    }
}

/// Returns the number of files and directories of a step in the vault. Files shared with the trainer's copy count,
/// because the vault alone holds them once that copy is removed.
fn inodes_of_a_step(situation: &Situation) -> u64 {
    let own = situation.forecast.taken.inodes();
    own.saturating_add(RECORDS_OF_A_STEP)
}

/// Returns the finding on whether the disk has room for the steps that the rules keep; `None` without a vault.
pub(super) fn steps(situation: &Situation) -> Option<Finding> {
    let capacity = capacity(situation)?;
    let beside = if situation.local.shares_disk { " in addition to the one being written" } else { "" };
    let there = format!(
        "room for {} of {}{beside}",
        words::count(capacity.steps, "step"),
        capacity.taken_by(1, situation)
    );
    let check = Check::new("steps on disk", situation.local.title.as_str()).with("steps", capacity.steps);
    let warn = |what: &str| Some(check.warn(format!("{there}; {what}"), REMEDY));
    let pass = |what: &str| Some(check.pass(format!("{there}; {what}")));
    let limits = &situation.limits;
    let too_small = |most: &u64| *most < situation.forecast.taken.bytes;
    if let Some(most) = limits.maximum_bytes.filter(too_small) {
        let most = words::bytes(most);
        return warn(&format!("local.maximum-size is {most}, less than one step"));
    }
    if capacity.steps == 0 {
        return warn("the vault cannot hold any step");
    }
    let is_limited = limits.maximum_bytes.is_some() || limits.free_space_low_bytes.is_some();
    match kept(&situation.keep_local, situation.forecast.interval_seconds) {
        Kept::AtMost(count) if count < capacity.steps => {
            pass(&format!("[keep.local] keeps at most {count}, plus one that waits for its upload"))
        }
        _ if is_limited => pass("limits on the local tier evict durable steps before the disk is full"),
        Kept::AtMost(count) => {
            warn(&format!("[keep.local] keeps up to {count}, plus one that waits for its upload"))
        }
        Kept::Every => {
            warn(&format!("without [keep.local] every step is kept{}", full_after(situation, capacity.steps)))
        }
        Kept::Growing => warn("the number of steps that keep.local.every-steps keeps grows without limit"),
        Kept::Unknown => {
            pass("the number of steps that [keep.local] keeps depends on the save interval, which is unknown")
        }
    }
}

const REMEDY: &str =
    "keep fewer steps in the vault, or let limits evict them: local.maximum-size, local.free-space-low";

fn full_after(situation: &Situation, capacity: u64) -> String {
    match situation.forecast.interval_seconds {
        Some(interval) if situation.local.kept.bytes == 0 => {
            let seconds = seconds_for(interval.saturating_mul(capacity), 1);
            format!(": the disk is full after {}", words::seconds(seconds))
        }
        _ => String::new(),
    }
}

/// Returns a configuration table that would fit, to replace the run's own; empty if the effective one fits.
pub(super) fn suggestion(situation: &Situation) -> Vec<String> {
    let warned = steps(situation).is_some_and(|finding| finding.remedy.is_some());
    let Some(capacity) = capacity(situation).filter(|_| warned) else {
        return Vec::new();
    };
    let Some(last) = capacity.steps.checked_sub(1).filter(|last| *last > 0) else {
        let two = capacity.taken_by(2, situation);
        return vec![format!(
            "# No value of keep.local fits: the newest step and the one that waits for its upload need at least \
             {two}."
        )];
    };
    let rules = &situation.keep_local;
    let last = last.min(rules.last.map_or(DEFAULT_LAST, u64::from).max(1));
    let mut lines = vec![format!("[{}]", situation.keep_table), format!("last = {last}")];
    // Rules that the run's table does not name are inherited from [keep.local].
    let inherited = [
        ("every-steps = 0", rules.every_steps.unwrap_or(0)),
        ("hourly = 0", rules.hourly.map_or(0, u64::from)),
        ("daily = 0", rules.daily.map_or(0, u64::from)),
        ("weekly = 0", rules.weekly.map_or(0, u64::from)),
        ("within = \"0s\"", rules.within_seconds.unwrap_or(0)),
        ("best = []", rules.best.len() as u64),
    ];
    let set = inherited.iter().filter(|(_, value)| *value > 0);
    lines.extend(set.map(|(unset, _)| (*unset).to_owned()));
    lines
}

/// The number of steps to keep if none is configured: a few to go back to.
const DEFAULT_LAST: u64 = 3;

#[cfg(test)]
mod tests {
    use super::super::tests::situation;
    use super::*;
    use crate::doctor::Outcome;

    #[test]
    fn what_the_rules_keep_has_to_fit() {
        let found = steps(&situation()).unwrap();
        assert_eq!(found.outcome, Outcome::Pass);
        assert_eq!(
            found.measured,
            "room for 7 steps of 11.2 GiB in addition to the one being written; [keep.local] keeps at most 2, plus \
             one that waits for its upload"
        );
        let mut many = situation();
        many.keep_local.last = Some(20);
        many.keep_local.daily = Some(7);
        let found = steps(&many).unwrap();
        assert_eq!(found.outcome, Outcome::Warn);
        assert!(found.measured.ends_with("[keep.local] keeps up to 27, plus one that waits for its upload"));
        assert_eq!(suggestion(&many), ["[run.\"my-run\".keep.local]", "last = 6", "daily = 0"]);
        many.limits.free_space_low_bytes = Some(1);
        assert_eq!(steps(&many).unwrap().outcome, Outcome::Pass);
    }

    #[test]
    fn without_rules_the_disk_is_full_some_day() {
        let mut every = situation();
        every.keep_local = KeepRules::default();
        let found = steps(&every).unwrap();
        assert!(
            found.measured.ends_with("every step is kept: the disk is full after 1h 10m"),
            "{}",
            found.measured
        );
        assert_eq!(suggestion(&every), ["[run.\"my-run\".keep.local]", "last = 3"]);
    }

    #[test]
    fn steps_within_a_time_are_as_many_as_the_interval_makes_them() {
        let mut within = situation();
        within.keep_local = KeepRules { within_seconds: Some(7200), ..KeepRules::default() };
        assert_eq!(kept(&within.keep_local, Some(600)), Kept::AtMost(13));
        assert_eq!(steps(&within).unwrap().outcome, Outcome::Warn);
        assert_eq!(suggestion(&within), ["[run.\"my-run\".keep.local]", "last = 3", "within = \"0s\""]);
        within.forecast.interval_seconds = None;
        assert_eq!(steps(&within).unwrap().outcome, Outcome::Pass);
    }

    #[test]
    fn a_disk_for_less_than_two_steps_fits_nothing() {
        let mut small = situation();
        small.local.room.as_mut().unwrap().free_bytes = 20_000_000_000;
        let found = steps(&small).unwrap();
        assert_eq!(found.outcome, Outcome::Warn);
        assert!(found.measured.ends_with("the vault cannot hold any step"), "{}", found.measured);
        assert_eq!(
            suggestion(&small),
            [
                "# No value of keep.local fits: the newest step and the one that waits for its upload need at least \
                 22.4 GiB."
            ]
        );
    }

    #[test]
    fn inodes_count_where_they_run_out_before_bytes() {
        let mut few = situation();
        let room = few.local.room.as_mut().unwrap();
        (room.free_inodes, room.total_inodes) = (Some(70), Some(1000));
        let found = steps(&few).unwrap();
        assert_eq!(found.outcome, Outcome::Warn);
        assert!(
            found.measured.starts_with(
                "room for 2 steps of 22 inodes in addition to the one being written; [keep.local] keeps up to 2"
            ),
            "{}",
            found.measured
        );
        // What the vault holds already is room for what comes after it.
        few.local.kept.files = 22;
        assert_eq!(steps(&few).unwrap().outcome, Outcome::Pass);
        few.local.kept.files = 0;
        few.local.room.as_mut().unwrap().free_inodes = Some(43);
        assert_eq!(
            suggestion(&few),
            [
                "# No value of keep.local fits: the newest step and the one that waits for its upload need at least \
                 44 inodes."
            ]
        );
    }

    #[test]
    fn a_limit_below_one_step_is_a_mistake() {
        let mut limited = situation();
        limited.limits.maximum_bytes = Some(1 << 30);
        let found = steps(&limited).unwrap();
        assert!(
            found.measured.ends_with("local.maximum-size is 1.0 GiB, less than one step"),
            "{}",
            found.measured
        );
    }
}

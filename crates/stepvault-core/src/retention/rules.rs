//! The keep rules: which steps each of them keeps.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::facts::{StepFacts, Verified};
use crate::{Error, ErrorKind, Result, StepId, Timestamp};

const HOUR_SECONDS: i64 = 3_600;
const DAY_SECONDS: i64 = 86_400;
const WEEK_SECONDS: i64 = 7 * DAY_SECONDS;
/// 1970-01-01 was a Thursday, three days after the start of its week.
const WEEK_OFFSET_SECONDS: i64 = 3 * DAY_SECONDS;

/// Returns the steps that rules keep, with each rule in plain words. `steps` are sorted, oldest first.
pub(super) fn kept_by_rules(
    steps: &[&StepFacts],
    rules: &KeepRules,
    now: Timestamp,
) -> BTreeMap<StepId, Vec<String>> {
    let mut kept = Kept::default();
    if rules.is_unset() {
        for step in steps {
            kept.name(step.id, "no rule is configured");
        }
        return kept.reasons;
    }
    if let Some(count) = rules.last {
        keep_last(&mut kept, steps, count);
    }
    if let Some(interval) = rules.every_steps.filter(|interval| *interval > 0) {
        keep_every(&mut kept, steps, interval);
    }
    if let Some(seconds) = rules.within_seconds.filter(|seconds| *seconds > 0) {
        let reason =
            format!("within {}", humantime::format_duration(std::time::Duration::from_secs(seconds)));
        let recent = steps.iter().filter(|step| now.seconds_since(step.created) <= seconds);
        recent.for_each(|step| kept.name(step.id, &reason));
    }
    let calendars = [
        ("hourly", rules.hourly, HOUR_SECONDS, 0),
        ("daily", rules.daily, DAY_SECONDS, 0),
        ("weekly", rules.weekly, WEEK_SECONDS, WEEK_OFFSET_SECONDS),
    ];
    for (word, count, length_seconds, offset_seconds) in calendars {
        if let Some(count) = count.filter(|count| *count > 0) {
            let bucket = |step: &StepFacts| {
                step.created.seconds.saturating_add(offset_seconds).div_euclid(length_seconds)
            };
            keep_buckets(&mut kept, steps, count, &format!("{word} {count}"), bucket);
        }
    }
    rules.best.iter().for_each(|rule| keep_best(&mut kept, steps, rule));
    kept.reasons
}

#[derive(Default)]
struct Kept {
    reasons: BTreeMap<StepId, Vec<String>>,
}

impl Kept {
    fn name(&mut self, id: StepId, reason: &str) {
        self.reasons.entry(id).or_default().push(reason.to_owned());
    }
}

/// Keeps the newest `count` steps that count, and every step that does not count but is newer than the oldest of
/// those.
fn keep_last(kept: &mut Kept, steps: &[&StepFacts], count: u32) {
    let mut places_left = count;
    for step in steps.iter().rev() {
        if places_left == 0 {
            break;
        }
        places_left -= u32::from(step.counts());
        kept.name(step.id, &format!("last {count}"));
    }
}

/// Keeps every multiple of `interval`. On an abandoned branch this holds only until a later attempt has come as far: a
/// run that is started over by mistake must not delete the archive of the run before it.
fn keep_every(kept: &mut Kept, steps: &[&StepFacts], interval: u64) {
    let reason = format!("every {interval} steps");
    // The furthest step that counts, over the attempts after the current one.
    let (mut later, mut own) = (None, None);
    let mut attempt = None;
    for step in steps.iter().rev() {
        if attempt != Some(step.id.attempt) {
            later = later.max(own);
            attempt = Some(step.id.attempt);
        }
        if step.counts() {
            own = own.max(Some(step.id.step));
        }
        let superseded = step.abandoned && later >= Some(step.id.step);
        if step.id.step.number().is_multiple_of(interval) && !superseded {
            kept.name(step.id, &reason);
        }
    }
}

/// Keeps the newest step that counts in each of the `count` most recent buckets that have one. A step that does not
/// count is kept while it is the newest of its bucket and the bucket is not older than those.
fn keep_buckets(
    kept: &mut Kept,
    steps: &[&StepFacts],
    count: u32,
    reason: &str,
    bucket_of: impl Fn(&StepFacts) -> i64,
) {
    let mut newest: BTreeMap<i64, StepId> = BTreeMap::new();
    let mut newest_counting: BTreeMap<i64, StepId> = BTreeMap::new();
    for step in steps {
        // In order of age: a later step replaces the one before.
        newest.insert(bucket_of(step), step.id);
        if step.counts() {
            newest_counting.insert(bucket_of(step), step.id);
        }
    }
    // With fewer buckets than requested, none is too old.
    let oldest = newest_counting.keys().rev().nth(count as usize - 1).copied().unwrap_or(i64::MIN);
    newest_counting.range(oldest..).for_each(|(_, id)| kept.name(*id, reason));
    for (bucket, id) in newest.range(oldest..) {
        if newest_counting.get(bucket) != Some(id) {
            kept.name(*id, reason);
        }
    }
}

/// Keeps the best `count` verified steps, the newer first among equal values, on any branch. A step that is not
/// verified is kept if it would be among them.
fn keep_best(kept: &mut Kept, steps: &[&StepFacts], rule: &BestRule) {
    let value_of =
        |step: &StepFacts| step.metrics.get(&rule.metric).copied().filter(|value| value.is_finite());
    let mut ranked: Vec<(f64, &StepFacts)> =
        steps.iter().filter_map(|step| Some((value_of(step)?, *step))).collect();
    ranked.sort_by(|(left_value, left), (right_value, right)| {
        let by_value = left_value.partial_cmp(right_value).unwrap_or(Ordering::Equal);
        let best_first = if rule.prefer == Prefer::Lowest { by_value } else { by_value.reverse() };
        best_first.then(right.id.cmp(&left.id))
    });
    let reason = format!("best {} by {} ({})", rule.count, rule.metric, rule.prefer);
    let mut places_left = rule.count;
    for (_, step) in ranked {
        if places_left == 0 {
            break;
        }
        places_left -= u32::from(step.verified == Verified::Yes);
        kept.name(step.id, &reason);
    }
}

/// Which values of a metric are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display, strum::EnumString)]
#[strum(serialize_all = "kebab-case")]
pub enum Prefer {
    /// A loss: the lower the better.
    Lowest,
    /// An accuracy or a reward: the higher the better.
    Highest,
}

/// Keeps the best few steps by one metric. Steps without the metric, or with a value that is not a number, are not
/// ranked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BestRule {
    /// The metric's name.
    pub metric: String,
    /// How many steps to keep.
    pub count: u32,
    /// Which values are better.
    pub prefer: Prefer,
}

/// Rules that keep steps; a step stays if any of them names it. A rule that is `None` or 0 keeps nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct KeepRules {
    /// Number of the newest steps to keep.
    pub last: Option<u32>,
    /// Steps whose number is a multiple of this.
    pub every_steps: Option<u64>,
    /// Keeps steps that were stored on the tier at most this many seconds ago.
    pub within_seconds: Option<u64>,
    /// Number of hours (UTC): keeps the newest step of each of the most recent hours that have one.
    pub hourly: Option<u32>,
    /// The same for days.
    pub daily: Option<u32>,
    /// The same for weeks, which begin on Monday.
    pub weekly: Option<u32>,
    /// Keeps the best steps by metrics.
    pub best: Vec<BestRule>,
}

impl KeepRules {
    /// Returns whether no rule is configured: every step is then kept.
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether some rule can keep a step.
    pub fn keeps_something(&self) -> bool {
        let counts = [self.last, self.hourly, self.daily, self.weekly];
        counts.into_iter().flatten().any(|count| count > 0)
            || [self.every_steps, self.within_seconds].into_iter().flatten().any(|value| value > 0)
            || self.best.iter().any(|rule| rule.count > 0)
    }

    /// Rejects rules that would delete everything.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when rules are given and every one of them is 0.
    pub fn check(&self) -> Result<()> {
        if self.is_unset() || self.keeps_something() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Refused, "the keep rules would delete everything")
            .because("every given rule is 0")
            .hint("set at least one rule above 0, or remove all rules to keep every step"))
    }
}

/// Limits on the disk space of the local tier. They override the keep rules, but never the guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LocalLimits {
    /// Maximum number of bytes of sealed steps, over all runs.
    pub maximum_bytes: Option<u64>,
    /// When the filesystem has fewer free bytes than this, local copies are evicted …
    pub free_space_low_bytes: Option<u64>,
    /// … until it has this many; the low mark if `None`.
    pub free_space_high_bytes: Option<u64>,
    /// Whether [`make_room`](super::make_room) gives up steps that are not durable when evicting all others is not enough.
    pub give_up_undurable: bool,
}

impl LocalLimits {
    /// Returns whether nothing limits the local tier.
    pub fn is_unset(&self) -> bool {
        self.maximum_bytes.is_none() && self.free_space_low_bytes.is_none()
    }
}

//! What each tier holds over a run, by the planner that decides it when the run is real.

use std::collections::BTreeMap;

use super::amount::times;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Attempt, RemoteName, Step, StepId};
use crate::observe::Tier;
use crate::retention::{
    Guards, KeepRules, ListingState, LocalLimits, Prefer, StepFacts, TierView, Verdict, Verified, plan,
};
use crate::timestamp::Timestamp;

/// Most saves of a run that are played through.
pub const MOST_SAVES: u64 = 100_000;
/// The remote of a run of which nobody has said where it goes.
const SOME_REMOTE: &str = "remote";

/// The saves of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saves {
    count: u64,
    every_steps: u64,
    /// Seconds between two of them, where that is known. Rules that go by time keep everything without it.
    seconds_between: u64,
}

impl Saves {
    /// A run of so many steps with a save every so many.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] where nothing is ever saved, or more than [`MOST_SAVES`] times.
    pub fn new(steps: u64, every_steps: u64, seconds_between: Option<u64>) -> Result<Self> {
        let count = steps.checked_div(every_steps).unwrap_or_default();
        let fault = |why: String, hint: String| {
            Err(Error::new(ErrorKind::Usage, "cannot play the run through")
                .because(why)
                .hint(hint))
        };
        if count == 0 {
            return fault(
                format!("of {steps} steps none is saved when every {every_steps} are"),
                "give --every at most as large as --steps, and at least 1".to_owned(),
            );
        }
        if count > MOST_SAVES {
            return fault(
                format!("it saves {count} times, and at most {MOST_SAVES} are played through"),
                "give fewer --steps: what a tier holds hardly changes once each rule has all it keeps"
                    .to_owned(),
            );
        }
        // The largest is a step's number.
        Step::new(times(count, every_steps)?)?;
        Ok(Self {
            count,
            every_steps,
            seconds_between: seconds_between.unwrap_or_default(),
        })
    }

    /// How many there are.
    pub const fn count(self) -> u64 {
        self.count
    }

    /// All but the last; none where there is one.
    pub fn before_last(self) -> Option<Self> {
        let count = self.count.checked_sub(1).filter(|count| *count > 0)?;
        Some(Self { count, ..self })
    }
}

/// What decides about one tier.
#[derive(Debug, Clone, Copy)]
pub struct TierRules<'a> {
    /// The tier.
    pub tier: &'a Tier,
    /// Its rules.
    pub rules: &'a KeepRules,
    /// Limits of the local tier.
    pub limits: LocalLimits,
    /// Whether steps become durable on some remote: without one the local tier lets none go.
    pub has_remote: bool,
}

/// The positions, from 0 on, of the saves that a tier still holds after all of them, with every one durable.
///
/// By the rules that rank by a metric the oldest are taken for the best, so that they keep as much as they can.
///
/// # Errors
/// [`ErrorKind::Refused`](crate::ErrorKind::Refused) for rules that would delete everything.
pub fn held(saves: Saves, step_bytes: u64, tier: TierRules<'_>) -> Result<Vec<u64>> {
    let remote = RemoteName::new(SOME_REMOTE)?;
    let durable_on: Vec<RemoteName> = tier.has_remote.then(|| remote.clone()).into_iter().collect();
    let mut steps = Vec::new();
    let mut now = Timestamp::from_seconds(0);
    for position in 0..saves.count {
        let step = Step::new(times(position.saturating_add(1), saves.every_steps)?)?;
        let seconds = times(position, saves.seconds_between)?;
        now = Timestamp::from_seconds(i64::try_from(seconds).unwrap_or(i64::MAX));
        steps.push(StepFacts {
            id: StepId::new(Attempt::FIRST, step),
            name: String::new(),
            created: now,
            written_at: now,
            bytes: step_bytes,
            metrics: worst_metrics(tier.rules, position),
            pinned: false,
            leased: false,
            verified: Verified::Yes,
            durable_on: durable_on.clone(),
            retired_on: Vec::new(),
            uploading: false,
            abandoned: false,
        });
    }
    let view = TierView {
        tier: tier.tier.clone(),
        steps,
        unreadable: Vec::new(),
        listing: ListingState::Complete,
        now,
        free_bytes: None,
    };
    let guards = Guards {
        required_remotes: durable_on,
        maximum_deletions: None,
    };
    // What is free on the disk is not known: only the budget counts.
    let limits = LocalLimits {
        maximum_bytes: tier.limits.maximum_bytes,
        ..LocalLimits::default()
    };
    let plan = plan(&view, tier.rules, &limits, &guards)?;
    let kept = (0..).zip(&plan.decisions);
    Ok(kept
        .filter(|(_, decision)| decision.verdict == Verdict::Keep)
        .map(|(position, _)| position)
        .collect())
}

/// Metrics by which the oldest steps are the best.
#[expect(clippy::cast_precision_loss, reason = "positions are far below 2^53")]
fn worst_metrics(rules: &KeepRules, position: u64) -> BTreeMap<String, f64> {
    let value = |prefer| match prefer {
        Prefer::Lowest => position as f64,
        Prefer::Highest => -(position as f64),
    };
    let ranked = rules.best.iter();
    ranked
        .map(|rule| (rule.metric.clone(), value(rule.prefer)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retention::BestRule;

    fn held_by(rules: &KeepRules, saves: Saves, has_remote: bool) -> Vec<u64> {
        let tier = TierRules {
            tier: &Tier::Local,
            rules,
            limits: LocalLimits::default(),
            has_remote,
        };
        held(saves, 10, tier).unwrap()
    }

    #[test]
    fn each_rule_keeps_what_it_keeps_in_a_run() {
        let saves = Saves::new(1000, 100, Some(3600)).unwrap();
        assert_eq!(saves.count(), 10);
        let last = KeepRules {
            last: Some(2),
            ..KeepRules::default()
        };
        assert_eq!(held_by(&last, saves, true), [8, 9]);
        // Without a remote each is the last copy.
        assert_eq!(held_by(&last, saves, false).len(), 10);
        assert_eq!(held_by(&KeepRules::default(), saves, true).len(), 10);
        let every = KeepRules {
            every_steps: Some(400),
            ..last.clone()
        };
        assert_eq!(held_by(&every, saves, true), [3, 7, 8, 9]);
        let within = KeepRules {
            within_seconds: Some(2 * 3600),
            ..KeepRules::default()
        };
        assert_eq!(held_by(&within, saves, true), [7, 8, 9]);
        let best = KeepRules {
            best: vec![BestRule {
                metric: "loss".to_owned(),
                count: 2,
                prefer: Prefer::Lowest,
            }],
            ..last
        };
        assert_eq!(held_by(&best, saves, true), [0, 1, 8, 9]);
    }

    #[test]
    fn a_budget_is_kept() {
        let rules = KeepRules {
            last: Some(8),
            ..KeepRules::default()
        };
        let tier = TierRules {
            tier: &Tier::Local,
            rules: &rules,
            limits: LocalLimits {
                maximum_bytes: Some(35),
                ..LocalLimits::default()
            },
            has_remote: true,
        };
        let saves = Saves::new(10, 1, None).unwrap();
        assert_eq!(held(saves, 10, tier).unwrap(), [7, 8, 9]);
        assert_eq!(saves.before_last().unwrap().count(), 9);
        assert_eq!(Saves::new(1, 1, None).unwrap().before_last(), None);
    }

    #[test]
    fn runs_that_cannot_be_played_are_refused() {
        for (steps, every, why) in [
            (10, 0, "of 10 steps none is saved when every 0 are"),
            (10, 11, "of 10 steps none is saved when every 11 are"),
            (
                100_001,
                1,
                "it saves 100001 times, and at most 100000 are played through",
            ),
        ] {
            let error = Saves::new(steps, every, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert_eq!(error.to_string(), format!("cannot play the run through: {why}"));
        }
        assert!(Saves::new(u64::MAX, u64::MAX, None).is_err());
    }
}

//! Simulates what each tier holds over a run, with the planner that real runs use.

use std::collections::BTreeMap;

use super::amount::times;
use stepvault_core::retention::{
    Elsewhere, Guards, KeepRules, LocalLimits, Needed, Prefer, Selection, SelectionState, StepFacts,
    TargetSteps, TierView, Verdict, Verified, plan,
};
use stepvault_core::{Attempt, Error, ErrorKind, RemoteName, Result, Step, StepId, Tier, Timestamp};

/// Maximum number of saves that are simulated.
pub const MAX_SAVES: u64 = 100_000;
/// The remote of a run without configured remotes.
const SOME_REMOTE: &str = "remote";

/// The saves of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saves {
    count: u64,
    every_steps: u64,
    /// Seconds between two saves, if known. Without it, rules based on time keep everything.
    seconds_between: u64,
}

impl Saves {
    /// Returns a run of `steps` steps with a save every `every_steps`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if nothing is ever saved, or more than [`MAX_SAVES`] times.
    pub fn new(steps: u64, every_steps: u64, seconds_between: Option<u64>) -> Result<Self> {
        let count = steps.checked_div(every_steps).unwrap_or_default();
        let fault = |why: String, hint: String| {
            Err(Error::new(ErrorKind::Usage, "cannot simulate the run").because(why).hint(hint))
        };
        if count == 0 {
            return fault(
                format!("no step is saved: the run has {steps} steps and saves every {every_steps}"),
                "set --every between 1 and --steps".to_owned(),
            );
        }
        if count > MAX_SAVES {
            return fault(
                format!("it saves {count} times, and at most {MAX_SAVES} saves can be simulated"),
                "use fewer --steps: the size of a tier hardly changes once each rule keeps its maximum"
                    .to_owned(),
            );
        }
        // The largest number must be a valid step.
        Step::new(times(count, every_steps)?)?;
        Ok(Self { count, every_steps, seconds_between: seconds_between.unwrap_or_default() })
    }

    /// Returns the number of saves.
    pub const fn count(self) -> u64 {
        self.count
    }

    /// Returns all saves but the last; `None` if there is one.
    pub fn before_last(self) -> Option<Self> {
        let count = self.count.checked_sub(1).filter(|count| *count > 0)?;
        Some(Self { count, ..self })
    }
}

/// What determines the steps on one tier.
#[derive(Debug, Clone, Copy)]
pub struct TierRules<'a> {
    /// The tier.
    pub tier: &'a Tier,
    /// Its rules.
    pub rules: &'a KeepRules,
    /// Limits of the local tier.
    pub limits: LocalLimits,
    /// Whether steps become durable on a remote: without one the local tier evicts nothing.
    pub has_remote: bool,
}

/// Returns the positions, from 0, of the saves that a tier holds after all of them, if every one becomes durable.
///
/// For rules that rank by a metric, the oldest saves are assumed to be the best, so that the rules keep as much as
/// possible.
///
/// # Errors
/// [`ErrorKind::Usage`](stepvault_core::ErrorKind::Usage) for rules that would delete everything.
pub fn held(saves: Saves, step_bytes: u64, tier: TierRules<'_>) -> Result<Vec<u64>> {
    let remote = RemoteName::new(SOME_REMOTE)?;
    let elsewhere = Elsewhere {
        durable_on: tier.has_remote.then(|| remote.clone()).into_iter().collect(),
        ..Elsewhere::default()
    };
    let (steps, now) = facts(saves, step_bytes, tier.rules, &elsewhere)?;
    let view = TierView { tier: tier.tier.clone(), steps, unreadable: Vec::new(), now, free_bytes: None };
    let guards = Guards { required_remotes: elsewhere.durable_on, ..Guards::default() };
    // The free space of the disk is unknown: only the byte budget counts.
    let limits = LocalLimits { maximum_bytes: tier.limits.maximum_bytes, ..LocalLimits::default() };
    let plan = plan(&view, tier.rules, &limits, &guards)?;
    let kept = (0..).zip(&plan.decisions);
    Ok(kept.filter(|(_, decision)| decision.verdict == Verdict::Keep).map(|(position, _)| position).collect())
}

/// Returns the number of saves that a selective remote gets, by its rules after all of them.
///
/// # Errors
/// [`ErrorKind::Usage`] if a number is too large.
pub fn selected(saves: Saves, step_bytes: u64, selection: &Selection) -> Result<u64> {
    let (steps, now) = facts(saves, step_bytes, &selection.rules, &Elsewhere::default())?;
    let states = selection.states(&steps, &TargetSteps::default(), now).into_values();
    Ok(states.filter(|state| matches!(state, SelectionState::Planned { .. })).count() as u64)
}

/// Returns the steps of all saves, the oldest first, and the time of the last one.
fn facts(
    saves: Saves,
    step_bytes: u64,
    rules: &KeepRules,
    elsewhere: &Elsewhere,
) -> Result<(Vec<StepFacts>, Timestamp)> {
    let mut steps = Vec::new();
    let mut now = Timestamp::from_seconds(0);
    for position in 0..saves.count {
        let step = Step::new(times(position.saturating_add(1), saves.every_steps)?)?;
        let seconds = times(position, saves.seconds_between)?;
        now = Timestamp::from_seconds(i64::try_from(seconds).unwrap_or(i64::MAX));
        steps.push(StepFacts {
            amends: false,
            id: StepId::new(Attempt::FIRST, step),
            name: String::new(),
            created: now,
            bytes: step_bytes,
            reclaimable_bytes: step_bytes,
            best: Vec::new(),
            metrics: worst_metrics(rules, position),
            verified: Verified::Yes,
            needed: Needed::default(),
            elsewhere: elsewhere.clone(),
            abandoned: false,
        });
    }
    Ok((steps, now))
}

/// Returns metrics by which the oldest steps are the best.
#[expect(clippy::cast_precision_loss, reason = "positions are far below 2^53")]
fn worst_metrics(rules: &KeepRules, position: u64) -> BTreeMap<String, f64> {
    let value = |prefer| match prefer {
        Prefer::Lowest => position as f64,
        Prefer::Highest => -(position as f64),
    };
    let ranked = rules.best.iter();
    ranked.map(|rule| (rule.metric.clone(), value(rule.prefer))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepvault_core::retention::BestRule;

    fn held_by(rules: &KeepRules, saves: Saves, has_remote: bool) -> Vec<u64> {
        let tier = TierRules { tier: &Tier::Local, rules, limits: LocalLimits::default(), has_remote };
        held(saves, 10, tier).unwrap()
    }

    #[test]
    fn each_rule_keeps_what_it_keeps_in_a_run() {
        let saves = Saves::new(1000, 100, Some(3600)).unwrap();
        assert_eq!(saves.count(), 10);
        let last = KeepRules { last: Some(2), ..KeepRules::default() };
        assert_eq!(held_by(&last, saves, true), [8, 9]);
        // Without a remote each is the last copy.
        assert_eq!(held_by(&last, saves, false).len(), 10);
        assert_eq!(held_by(&KeepRules::default(), saves, true).len(), 10);
        let every = KeepRules { every_steps: Some(400), ..last.clone() };
        assert_eq!(held_by(&every, saves, true), [3, 7, 8, 9]);
        let within = KeepRules { within_seconds: Some(2 * 3600), ..KeepRules::default() };
        assert_eq!(held_by(&within, saves, true), [7, 8, 9]);
        let best = KeepRules {
            best: vec![BestRule { metric: "loss".to_owned(), count: 2, prefer: Prefer::Lowest }],
            ..last
        };
        assert_eq!(held_by(&best, saves, true), [0, 1, 8, 9]);
    }

    #[test]
    fn a_budget_is_kept() {
        let rules = KeepRules { last: Some(8), ..KeepRules::default() };
        let tier = TierRules {
            tier: &Tier::Local,
            rules: &rules,
            limits: LocalLimits { maximum_bytes: Some(35), ..LocalLimits::default() },
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
            (10, 0, "no step is saved: the run has 10 steps and saves every 0"),
            (10, 11, "no step is saved: the run has 10 steps and saves every 11"),
            (100_001, 1, "it saves 100001 times, and at most 100000 saves can be simulated"),
        ] {
            let error = Saves::new(steps, every, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert_eq!(error.to_string(), format!("cannot simulate the run: {why}"));
        }
        assert!(Saves::new(u64::MAX, u64::MAX, None).is_err());
    }
}

//! Properties of every plan.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::ids::{Attempt, RemoteName, RunName, Step, StepId};

fn waiting() -> impl Strategy<Value = Vec<Waiting>> {
    let one = (0..3_usize, 0..40_u64, 1..3_u32, prop_oneof![Just(0), 0..2_000_u64]);
    proptest::collection::vec(one, 0..14).prop_map(|all| {
        let mut steps: Vec<Waiting> = Vec::new();
        for (run, step, attempt, missing_bytes) in all {
            let run = RunName::new(["a", "b", "c"][run]).unwrap();
            let id = StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap());
            if !steps.iter().any(|other| other.run == run && other.id == id) {
                steps.push(Waiting { run, id, missing_bytes });
            }
        }
        steps
    })
}

fn seconds(until_the_end: u64, margin: u64, each_step: u64) -> TimeLeft {
    TimeLeft {
        until_the_end: Some(Duration::from_secs(until_the_end)),
        margin: Duration::from_secs(margin),
        each_step: Duration::from_secs(each_step),
    }
}

fn planned(waiting: &[Waiting], rate: Option<u64>, time: TimeLeft) -> RemotePlan {
    plan(RemoteName::new("main").unwrap(), waiting.to_vec(), rate, time)
}

/// Returns the nanoseconds that a step takes.
fn cost(step: &Waiting, rate: u64, time: TimeLeft) -> u128 {
    let sending = if step.missing_bytes == 0 {
        0
    } else if rate == 0 {
        u128::MAX / 100
    } else {
        u128::from(step.missing_bytes) * 1_000_000_000 / u128::from(rate)
    };
    sending + time.each_step.as_nanos()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn every_step_stands_in_the_plan_once_and_what_fits_comes_first(
        waiting in waiting(), rate in proptest::option::of(0..300_u64), left in 0..20_u64, each in 0..3_u64,
    ) {
        let plan = planned(&waiting, rate, seconds(left, 1, each));
        let mut there: Vec<_> = plan.steps.iter().map(|planned| planned.step.clone()).collect();
        let mut wanted = waiting;
        let key = |step: &Waiting| (step.run.clone(), step.id);
        there.sort_by_key(key);
        wanted.sort_by_key(key);
        prop_assert_eq!(there, wanted);
        let fits: Vec<bool> = plan.steps.iter().map(|planned| planned.chance == Chance::Fits).collect();
        prop_assert!(fits.is_sorted_by(|one, other| one >= other), "{:?}", fits);
        prop_assert!(rate.is_some() || plan.steps.iter().all(|planned| planned.chance == Chance::Unknown));
        for chance in [Chance::Fits, Chance::Unknown, Chance::Misses] {
            let steps = plan.steps.iter().filter(|planned| planned.chance == chance);
            let missing: Vec<u64> = steps.map(|planned| planned.step.missing_bytes).collect();
            prop_assert!(missing.is_sorted(), "{:?}", missing);
        }
        for planned in &plan.steps {
            prop_assert!(planned.left_bytes <= planned.step.missing_bytes);
            prop_assert!(planned.chance != Chance::Fits || planned.left_bytes == 0);
        }
    }

    #[test]
    fn what_is_said_to_fit_fits_together(
        waiting in waiting(), rate in 0..300_u64, left in 0..20_u64, margin in 0..5_u64, each in 0..3_u64,
    ) {
        let time = seconds(left, margin, each);
        let plan = planned(&waiting, Some(rate), time);
        let fits = plan.steps.iter().filter(|planned| planned.chance == Chance::Fits);
        let total: u128 = fits.map(|planned| cost(&planned.step, rate, time)).sum();
        prop_assert!(total <= Duration::from_secs(left.saturating_sub(margin)).as_nanos());
    }

    /// A run resumes from its newest durable step: of one run, the newest step that can become durable does.
    #[test]
    fn of_one_run_the_newest_step_that_fits_is_never_given_up_for_older_ones(
        waiting in waiting(), rate in 0..300_u64, left in 0..20_u64,
    ) {
        let mut waiting = waiting;
        waiting.retain(|step| step.run.as_str() == "a");
        let time = seconds(left, 0, 0);
        let plan = planned(&waiting, Some(rate), time);
        let fitting = waiting.iter().filter(|step| cost(step, rate, time) <= u128::from(left) * 1_000_000_000);
        let chosen = plan.steps.iter().filter(|planned| planned.chance == Chance::Fits);
        prop_assert_eq!(
            chosen.map(|planned| planned.step.id).max(),
            fitting.map(|step| step.id).max()
        );
    }

    /// Every step that still fits in addition to the others is in the plan.
    #[test]
    fn no_time_is_left_that_a_step_would_fit_into(
        waiting in waiting(), rate in 1..300_u64, left in 0..20_u64,
    ) {
        let time = seconds(left, 0, 0);
        let plan = planned(&waiting, Some(rate), time);
        let fits = plan.steps.iter().filter(|planned| planned.chance == Chance::Fits);
        let total: u128 = fits.map(|planned| cost(&planned.step, rate, time)).sum();
        for planned in plan.steps.iter().filter(|planned| planned.chance == Chance::Misses) {
            prop_assert!(total + cost(&planned.step, rate, time) > u128::from(left) * 1_000_000_000);
        }
    }

    /// A step that preempted another one is not preempted by it: uploads do not alternate.
    #[test]
    fn the_first_step_of_a_plan_never_gives_way(
        waiting in waiting(), rate in proptest::option::of(0..300_u64), left in 0..20_u64,
    ) {
        let plan = planned(&waiting, rate, seconds(left, 0, 0));
        if let Some(first) = plan.steps.first() {
            prop_assert!(!plan.gives_way(&first.step.run, first.step.id));
        }
    }
}

//! Each keep rule, with the reason that it gives.

use super::*;

#[test]
fn a_step_stays_if_any_rule_names_it_and_says_which() {
    let rules = KeepRules { last: Some(2), every_steps: Some(4), ..KeepRules::default() };
    let plan = planned(&steps([1, 2, 3, 4, 5, 6]), &rules);
    assert_eq!(
        told(&plan),
        [
            "-1 no rule keeps it",
            "-2 no rule keeps it",
            "-3 no rule keeps it",
            "+4 every 4 steps",
            "+5 last 2",
            "+6 last 2, newest valid step",
        ]
    );
    assert_eq!((plan.freed_bytes, plan.kept_bytes), (30, 30));
}

#[test]
fn without_any_rule_every_step_stays() {
    assert_eq!(
        told(&planned(&steps([1]), &KeepRules::default())),
        ["+1 no rule is configured, newest valid step"]
    );
}

#[test]
fn within_counts_from_the_tiers_own_clock() {
    let rules = KeepRules { within_seconds: Some(7_200), ..KeepRules::default() };
    let plan = planned(&steps([1, 2, 3, 4, 5]), &rules);
    assert_eq!(dropped(&plan), [1, 2]);
    assert_eq!(told(&plan)[2], "+3 within 2h");
}

#[test]
fn calendars_keep_the_newest_of_each_bucket_that_has_one() {
    let days = |count| KeepRules { daily: Some(count), ..KeepRules::default() };
    // Hours 1 to 80 are on four days, whose last ones are 23, 47, 71 and 80.
    let plan = planned(&steps(1..=80), &days(3));
    let kept: Vec<String> = told(&plan).into_iter().filter(|line| line.starts_with('+')).collect();
    assert_eq!(kept, ["+47 daily 3", "+71 daily 3", "+80 daily 3, newest valid step"]);
    // A gap does not count.
    assert_eq!(dropped(&planned(&steps([1, 2, 200, 300]), &days(3))), [1]);
    let hours = KeepRules { hourly: Some(2), ..KeepRules::default() };
    assert_eq!(dropped(&planned(&steps([1, 5, 9]), &hours)), [1]);
}

#[test]
fn weeks_begin_on_monday() {
    // 1970-01-04 was a Sunday, 1970-01-05 a Monday.
    let rules = KeepRules { weekly: Some(1), ..KeepRules::default() };
    let sunday = 3 * 24;
    let mut all = steps([sunday, sunday + 23, sunday + 24, sunday + 7 * 24 + 23]);
    assert_eq!(dropped(&planned(&all, &rules)), [sunday, sunday + 23, sunday + 24]);
    all.steps.truncate(3);
    all.now = Timestamp::from_seconds(20 * DAY);
    let two = KeepRules { weekly: Some(2), ..KeepRules::default() };
    assert_eq!(dropped(&planned(&all, &two)), [sunday]);
}

#[test]
fn the_best_are_kept_by_either_end_and_ties_go_to_the_newer() {
    let best = |count, prefer| KeepRules {
        best: vec![BestRule { metric: "loss".to_owned(), count, prefer }],
        ..KeepRules::default()
    };
    let mut all = steps([1, 2, 3, 4, 5]);
    let plan = planned(&all, &best(2, Prefer::Lowest));
    assert_eq!(told(&plan)[0], "+1 best 2 by loss (lowest)");
    assert_eq!(dropped(&plan), [3, 4]);
    assert_eq!(dropped(&planned(&all, &best(2, Prefer::Highest))), [1, 2, 3]);
    all.steps[0].metrics.insert("loss".to_owned(), f64::NAN);
    all.steps[1].metrics.clear();
    all.steps[2].metrics.insert("loss".to_owned(), 4.0);
    assert_eq!(dropped(&planned(&all, &best(1, Prefer::Lowest))), [1, 2, 3]);
}

#[test]
fn a_hundred_thousand_steps_are_planned() {
    let rules = KeepRules {
        last: Some(10),
        every_steps: Some(1000),
        within_seconds: Some(3_600),
        hourly: Some(24),
        daily: Some(7),
        weekly: Some(4),
        best: vec![BestRule { metric: "loss".to_owned(), count: 5, prefer: Prefer::Lowest }],
    };
    let plan = planned(&steps(0..100_000), &rules);
    assert!((99_800..99_890).contains(&plan.deletions().len()), "{}", plan.deletions().len());
}

#[test]
fn a_rule_of_0_keeps_nothing_beside_one_that_keeps_something() {
    let mut all = steps([0, 1, 2, 3]);
    // All were stored at the same time, by the tier's clock.
    let now = all.now;
    all.steps.iter_mut().for_each(|step| step.created = now);
    let zeros = KeepRules {
        last: Some(0),
        every_steps: Some(0),
        within_seconds: Some(0),
        hourly: Some(0),
        daily: Some(0),
        weekly: Some(0),
        best: vec![BestRule { metric: "loss".to_owned(), count: 0, prefer: Prefer::Lowest }],
    };
    let rules = KeepRules { last: Some(1), ..zeros.clone() };
    assert_eq!(dropped(&planned(&all, &rules)), [0, 1, 2]);
    let rules = KeepRules { every_steps: Some(2), ..zeros };
    assert_eq!(dropped(&planned(&all, &rules)), [1]);
}

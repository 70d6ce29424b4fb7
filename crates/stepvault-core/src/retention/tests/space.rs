//! Budgets and free-space marks of the local tier.

use super::*;

#[test]
fn a_byte_budget_evicts_the_oldest_and_says_what_it_cannot_reach() {
    let limits = |bytes| LocalLimits { maximum_bytes: Some(bytes), ..LocalLimits::default() };
    let mut all = local([1, 2, 3, 4]);
    all.steps[1].elsewhere.durable_on.clear();
    let plan_at = |bytes| plan(&all, &last(3), &limits(bytes), &Guards::default()).unwrap();
    let enough = plan_at(20);
    assert_eq!((told(&enough)[2].as_str(), enough.kept_bytes), ("-3 over local.maximum-size", 20));
    assert!(enough.warnings.is_empty());
    let short = plan_at(5);
    assert_eq!(dropped(&short), [1, 3]);
    assert_eq!(
        short.warnings,
        ["the local tier stays 15 B over local.maximum-size: the remaining steps must be kept"]
    );
}

#[test]
fn free_space_marks_evict_from_low_to_high() {
    let limits = LocalLimits {
        maximum_bytes: None,
        free_space_low_bytes: Some(50),
        free_space_high_bytes: Some(75),
        give_up_undurable: true,
    };
    let mut all = local([1, 2, 3, 4, 5]);
    let mut at = |free_bytes| {
        all.free_bytes = free_bytes;
        plan(&all, &KeepRules::default(), &limits, &Guards::default()).unwrap()
    };
    assert_eq!(dropped(&at(Some(50))), [0; 0]);
    assert_eq!(dropped(&at(None)), [0; 0]);
    let low = at(Some(49));
    assert_eq!(
        (dropped(&low), told(&low)[0].as_str()),
        (vec![1, 2, 3], "-1 free space is below local.free-space-low")
    );
    assert!(low.warnings.is_empty(), "{:?}", low.warnings);
    assert_eq!(
        at(Some(10)).warnings,
        ["the local disk stays 25 B short of free space: the remaining steps must be kept"]
    );
}

#[test]
fn several_runs_give_way_to_each_other_by_age() {
    let mut plans = [
        planned(&local([1, 4, 5]), &KeepRules::default()),
        planned(&local([2, 3, 9]), &KeepRules::default()),
    ];
    let limits = LocalLimits { maximum_bytes: Some(35), ..LocalLimits::default() };
    evict_for_space(&mut plans, &limits, None);
    assert_eq!((dropped(&plans[0]), dropped(&plans[1])), (vec![1], vec![2, 3]));
    assert_eq!((plans[1].freed_bytes, plans[1].kept_bytes), (20, 10));
}

#[test]
fn what_frees_nothing_is_not_evicted() {
    let mut all = local([1, 2, 3]);
    all.steps[0].bytes = 0;
    all.steps[0].reclaimable_bytes = 0;
    let limits = LocalLimits { maximum_bytes: Some(10), ..LocalLimits::default() };
    let plan = plan(&all, &KeepRules::default(), &limits, &Guards::default()).unwrap();
    assert_eq!(dropped(&plan), [2]);
}

#[test]
fn abandoned_branches_are_evicted_before_anything_else() {
    let old = [100, 200, 300].map(|number| step(1, number));
    let new = [150, 160].map(|number| StepFacts { created: Timestamp::default(), ..step(2, number) });
    let all = view(Tier::Local, old.into_iter().chain(new).collect());
    let limits = LocalLimits { maximum_bytes: Some(20), ..LocalLimits::default() };
    let plan = plan(&all, &KeepRules::default(), &limits, &Guards::default()).unwrap();
    assert_eq!(dropped(&plan), [200, 300, 150]);
}

#[test]
fn only_local_copies_are_evicted_for_space() {
    let mut plans = [
        planned(&steps([1, 2, 3]), &KeepRules::default()),
        planned(&local([4, 5, 6]), &KeepRules::default()),
    ];
    let limits = LocalLimits { maximum_bytes: Some(0), ..LocalLimits::default() };
    evict_for_space(&mut plans, &limits, None);
    assert_eq!((dropped(&plans[0]), dropped(&plans[1])), (vec![], vec![4, 5]));
}

#[test]
fn a_plan_for_a_remote_knows_no_space_limits() {
    let mut all = steps([1, 2, 3]);
    all.free_bytes = Some(0);
    let limits = LocalLimits {
        maximum_bytes: Some(0),
        free_space_low_bytes: Some(100),
        free_space_high_bytes: None,
        give_up_undurable: true,
    };
    let plan = plan(&all, &KeepRules::default(), &limits, &Guards::default()).unwrap();
    assert_eq!(dropped(&plan), [0; 0]);
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
}

#[test]
fn what_retention_frees_and_what_the_budget_takes_count_towards_free_space() {
    let limits = LocalLimits {
        maximum_bytes: Some(30),
        free_space_low_bytes: Some(50),
        free_space_high_bytes: Some(65),
        give_up_undurable: true,
    };
    let mut all = local([1, 2, 3, 4, 5, 6]);
    all.free_bytes = Some(35);
    // The rules drop two steps and the budget one, which leaves 65 bytes free.
    let plan = plan(&all, &last(4), &limits, &Guards::default()).unwrap();
    assert_eq!(dropped(&plan), [1, 2, 3]);
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
}

#[test]
fn evictions_count_towards_the_most_that_one_plan_may_delete() {
    let limits = LocalLimits { maximum_bytes: Some(0), ..LocalLimits::default() };
    let guards = Guards { maximum_deletions: Some(2), ..Guards::default() };
    let plan = plan(&local([1, 2, 3, 4, 5]), &last(4), &limits, &guards).unwrap();
    assert_eq!(dropped(&plan), [1, 2]);
    assert_eq!(
        plan.warnings,
        ["the local tier stays 30 B over local.maximum-size: the remaining steps must be kept"]
    );
}

/// Returns three undurable steps before a newest valid one; 0 bytes are free and `low` are required.
fn room(all: &TierView, low: u64, uploads_below_bytes: u64) -> RetentionPlan {
    let limits =
        LocalLimits { free_space_low_bytes: Some(low), give_up_undurable: true, ..LocalLimits::default() };
    let mut plans = [planned(all, &KeepRules::default())];
    make_room(&mut plans, &limits, Some(0), uploads_below_bytes);
    let [plan] = plans;
    plan
}

fn given_up(plan: &RetentionPlan) -> Vec<u64> {
    let steps = plan.given_up().into_iter();
    steps.map(|decision| decision.id.step.number()).collect()
}

fn undurable(numbers: impl IntoIterator<Item = u64>) -> TierView {
    let mut all = local(numbers);
    all.steps.iter_mut().for_each(|step| step.elsewhere.durable_on.clear());
    all
}

#[test]
fn the_oldest_undurable_steps_are_given_up_when_the_disk_has_no_room() {
    let plan = room(&undurable([1, 2, 3, 4]), 15, 0);
    assert_eq!((given_up(&plan), dropped(&plan)), (vec![1, 2], vec![]));
    assert_eq!(
        told(&plan),
        [
            "-1 given up: the disk has no space for the next step, last verified copy",
            "-2 given up: the disk has no space for the next step, last verified copy",
            "+3 no rule is configured, last verified copy",
            "+4 no rule is configured, newest valid step, last verified copy",
        ]
    );
    assert_eq!((plan.freed_bytes, plan.kept_bytes), (20, 20));
    // The newest valid step is kept, however little space there is.
    assert_eq!(given_up(&room(&undurable([1, 2, 3, 4]), 1_000, 1_000)), [1, 2, 3]);
}

#[test]
fn nothing_is_given_up_where_the_configuration_keeps_undurable_steps() {
    let limits = LocalLimits { free_space_low_bytes: Some(15), ..LocalLimits::default() };
    let mut plans = [planned(&undurable([1, 2, 3]), &KeepRules::default())];
    make_room(&mut plans, &limits, Some(0), u64::MAX);
    assert!(plans[0].given_up().is_empty());
    assert_eq!(
        plans[0].warnings,
        ["the local disk stays 15 B short of free space: the remaining steps must be kept"]
    );
}

#[test]
fn durable_steps_are_evicted_before_one_is_given_up() {
    let mut all = undurable([1, 2, 3, 4]);
    all.steps[1].elsewhere.durable_on = vec![remote("s3-main")];
    let plan = room(&all, 10, 0);
    assert_eq!((given_up(&plan), dropped(&plan)), (vec![], vec![2]));
    let plan = room(&all, 11, 0);
    assert_eq!((given_up(&plan), dropped(&plan)), (vec![1], vec![2]));
}

#[test]
fn a_step_that_a_remote_acknowledged_is_given_up_before_a_last_copy() {
    let mut all = undurable([1, 2, 3, 4]);
    for step in &mut all.steps[1..3] {
        step.elsewhere.durable_on = vec![remote("s3-main")];
    }
    all.steps[1].elsewhere.unproven = Some(Unproven::Lost("its data is missing".to_owned()));
    all.steps[2].elsewhere.unproven = Some(Unproven::Unanswered("s3-main cannot be asked".to_owned()));
    let order = [10, 20, 30].map(|low| given_up(&room(&all, low, 0)));
    assert_eq!(order, [vec![3], vec![3, 1], vec![3, 1, 2]]);
}

#[test]
fn a_step_that_is_being_uploaded_is_given_up_last_and_only_below_the_configured_mark() {
    let mut all = undurable([1, 2, 3]);
    all.steps[0].needed.uploading = true;
    assert_eq!(given_up(&room(&all, 10, 0)), [2]);
    assert_eq!(given_up(&room(&all, 20, 0)), [2]);
    assert_eq!(given_up(&room(&all, 20, 10)), [2], "10 bytes are free with step 2 gone");
    assert_eq!(given_up(&room(&all, 20, 20)), [2, 1]);
}

#[test]
fn what_the_trainer_still_has_is_not_given_up_as_that_frees_nothing() {
    let mut all = undurable([1, 2, 3]);
    all.steps[0].reclaimable_bytes = 0;
    let plan = room(&all, 20, 0);
    assert_eq!(given_up(&plan), [2]);
    assert_eq!(
        plan.warnings,
        [
            "the local disk stays 10 B short of free space: the remaining steps must be kept; 10 B of them are hard \
          links to files of the trainer, and removing those frees no space"
        ]
    );
}

#[test]
fn pinned_steps_and_those_that_are_restored_are_never_given_up() {
    let mut all = undurable([1, 2, 3, 4]);
    all.steps[0].needed.pinned = true;
    all.steps[1].needed.leased = true;
    assert_eq!(given_up(&room(&all, 1_000, 1_000)), [3]);
}

#[test]
fn of_steps_that_several_nodes_write_the_one_before_the_newest_stays_too() {
    let mut all = undurable([1, 2, 3, 4]);
    all.steps.iter_mut().for_each(|step| step.elsewhere.needs_other_nodes = true);
    assert_eq!(given_up(&room(&all, 1_000, 1_000)), [1, 2]);
    // The only step is kept, as in all cases.
    all.steps.truncate(1);
    assert!(given_up(&room(&all, 1_000, 1_000)).is_empty());
}

#[test]
fn two_runs_give_up_by_age_and_keep_a_valid_step_each() {
    let mut plans = [
        planned(&undurable([1, 4]), &KeepRules::default()),
        planned(&undurable([2, 3, 9]), &KeepRules::default()),
    ];
    let limits =
        LocalLimits { free_space_low_bytes: Some(1_000), give_up_undurable: true, ..LocalLimits::default() };
    make_room(&mut plans, &limits, Some(0), 0);
    assert_eq!((given_up(&plans[0]), given_up(&plans[1])), (vec![1], vec![2, 3]));
}

#[test]
fn either_limit_limits_the_local_tier() {
    let limits = |maximum_bytes, free_space_low_bytes| LocalLimits {
        maximum_bytes,
        free_space_low_bytes,
        give_up_undurable: true,
        ..LocalLimits::default()
    };
    assert!(limits(None, None).is_unset());
    for limits in [limits(Some(1), None), limits(None, Some(1)), limits(Some(1), Some(1))] {
        assert!(!limits.is_unset(), "{limits:?}");
    }
}

#[test]
fn no_more_steps_are_given_up_than_may_be_deleted_at_once() {
    let mut all = local([1, 2, 3, 4, 5]);
    for step in &mut all.steps {
        step.elsewhere.durable_on.clear();
    }
    let limits = LocalLimits {
        free_space_low_bytes: Some(u64::MAX),
        give_up_undurable: true,
        ..LocalLimits::default()
    };
    let guards = Guards { maximum_deletions: Some(2), ..Guards::default() };
    let mut plans = vec![plan(&all, &KeepRules::default(), &LocalLimits::default(), &guards).unwrap()];
    make_room(&mut plans, &limits, Some(0), 0);
    let given_up: Vec<u64> = plans[0].given_up().iter().map(|decision| decision.id.step.number()).collect();
    assert_eq!(given_up, [1, 2]);
}

//! Budgets and free-space marks of the local tier.

use super::*;

#[test]
fn a_byte_budget_evicts_the_oldest_and_says_what_it_cannot_reach() {
    let limits = |bytes| LocalLimits {
        maximum_bytes: Some(bytes),
        ..LocalLimits::default()
    };
    let mut all = local([1, 2, 3, 4]);
    all.steps[1].durable_on.clear();
    let plan_at = |bytes| plan(&all, &last(3), &limits(bytes), &Guards::default()).unwrap();
    let enough = plan_at(20);
    assert_eq!(
        (told(&enough)[2].as_str(), enough.kept_bytes),
        ("-3 over local.maximum-size", 20)
    );
    assert!(enough.warnings.is_empty());
    let short = plan_at(5);
    assert_eq!(dropped(&short), [1, 3]);
    assert_eq!(
        short.warnings,
        ["the local tier stays 15 B over local.maximum-size: the rest must be kept"]
    );
}

#[test]
fn free_space_marks_evict_from_low_to_high() {
    let limits = LocalLimits {
        maximum_bytes: None,
        free_space_low_bytes: Some(50),
        free_space_high_bytes: Some(75),
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
        ["the local disk stays 25 B short of free space: the rest must be kept"]
    );
}

#[test]
fn several_runs_give_way_to_each_other_by_age() {
    let mut plans = [
        planned(&local([1, 4, 5]), &KeepRules::default()),
        planned(&local([2, 3, 9]), &KeepRules::default()),
    ];
    let limits = LocalLimits {
        maximum_bytes: Some(35),
        ..LocalLimits::default()
    };
    evict_for_space(&mut plans, &limits, None);
    assert_eq!((dropped(&plans[0]), dropped(&plans[1])), (vec![1], vec![2, 3]));
    assert_eq!((plans[1].freed_bytes, plans[1].kept_bytes), (20, 10));
}

#[test]
fn what_frees_nothing_is_not_evicted() {
    let mut all = local([1, 2, 3]);
    all.steps[0].bytes = 0;
    let limits = LocalLimits {
        maximum_bytes: Some(10),
        ..LocalLimits::default()
    };
    let plan = plan(&all, &KeepRules::default(), &limits, &Guards::default()).unwrap();
    assert_eq!(dropped(&plan), [2]);
}

#[test]
fn abandoned_branches_are_evicted_before_anything_else() {
    let old = [100, 200, 300].map(|number| step(1, number));
    let new = [150, 160].map(|number| StepFacts {
        created: Timestamp::default(),
        ..step(2, number)
    });
    let all = view(Tier::Local, old.into_iter().chain(new).collect());
    let limits = LocalLimits {
        maximum_bytes: Some(20),
        ..LocalLimits::default()
    };
    let plan = plan(&all, &KeepRules::default(), &limits, &Guards::default()).unwrap();
    assert_eq!(dropped(&plan), [200, 300, 150]);
}

#[test]
fn only_local_copies_are_evicted_for_space() {
    let mut plans = [
        planned(&steps([1, 2, 3]), &KeepRules::default()),
        planned(&local([4, 5, 6]), &KeepRules::default()),
    ];
    let limits = LocalLimits {
        maximum_bytes: Some(0),
        ..LocalLimits::default()
    };
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
    };
    let mut all = local([1, 2, 3, 4, 5, 6]);
    all.free_bytes = Some(35);
    // Two go by the rules and one by the budget: 65 bytes are free then.
    let plan = plan(&all, &last(4), &limits, &Guards::default()).unwrap();
    assert_eq!(dropped(&plan), [1, 2, 3]);
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
}

#[test]
fn evictions_count_towards_the_most_that_one_plan_may_delete() {
    let limits = LocalLimits {
        maximum_bytes: Some(0),
        ..LocalLimits::default()
    };
    let guards = Guards {
        maximum_deletions: Some(2),
        ..Guards::default()
    };
    let plan = plan(&local([1, 2, 3, 4, 5]), &last(4), &limits, &guards).unwrap();
    assert_eq!(dropped(&plan), [1, 2]);
    assert_eq!(
        plan.warnings,
        ["the local tier stays 30 B over local.maximum-size: the rest must be kept"]
    );
}

//! Steps that do not count: damaged, or on an abandoned branch.

use super::*;

#[test]
fn a_damaged_step_takes_no_place_and_keeps_its_own() {
    let mut all = steps([1, 2, 3, 4, 5]);
    all.steps[3].verified = Verified::Damaged("a part is missing".to_owned());
    assert_eq!(dropped(&planned(&all, &last(2))), [1, 2]);
    let lowest = BestRule { metric: "loss".to_owned(), count: 1, prefer: Prefer::Lowest };
    all.steps[0].verified = Verified::Damaged("cut off".to_owned());
    let best = KeepRules { best: vec![lowest], ..KeepRules::default() };
    assert_eq!(dropped(&planned(&all, &best)), [3, 4]);
}

#[test]
fn abandoned_branches_go_first_once_the_new_one_has_filled_its_places() {
    let remote_tier = || Tier::Remote(remote("s3-main"));
    let branched = |new: &[u64]| {
        let old = [100, 200, 300].map(|number| step(1, number));
        view(remote_tier(), old.into_iter().chain(new.iter().map(|number| step(2, *number))).collect())
    };
    // The run started over at 150: 200 and 300 are kept while 'last 2' is not filled.
    assert_eq!(dropped(&planned(&branched(&[150]), &last(2))), [0; 0]);
    let plan = planned(&branched(&[150, 160]), &last(2));
    assert_eq!(dropped(&plan), [200, 300, 100]);
    assert_eq!(plan.decision(id(1, 200)).unwrap().reasons, ["no rule keeps it", "on an abandoned branch"]);
    // The archive is kept until the new branch has come as far.
    let every = KeepRules { every_steps: Some(100), ..KeepRules::default() };
    assert_eq!(dropped(&planned(&branched(&[150]), &every)), [0; 0]);
    assert_eq!(dropped(&planned(&branched(&[150, 200]), &every)), [200, 150]);
}

#[test]
fn abandoned_are_the_earlier_attempts_at_or_above_a_later_ones_beginning() {
    let ids = [id(1, 1), id(1, 5), id(1, 9), id(2, 5), id(2, 7), id(3, 8), id(3, 9)];
    let found: Vec<StepId> = abandoned_steps(ids).into_iter().collect();
    assert_eq!(found, [id(1, 5), id(1, 9)]);
    // Any later attempt counts, not only the next one.
    let found: Vec<StepId> = abandoned_steps([id(1, 4), id(2, 8), id(3, 3)]).into_iter().collect();
    assert_eq!(found, [id(1, 4), id(2, 8)]);
    assert!(abandoned_steps([id(3, 1), id(3, 9)]).is_empty());
}

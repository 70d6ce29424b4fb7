//! Guards, which apply whatever the configuration is.

use super::*;
use crate::step_origin::BestName;

#[test]
fn rules_that_would_delete_everything_are_refused() {
    let rules = KeepRules { last: Some(0), daily: Some(0), ..KeepRules::default() };
    let refused = plan(&steps([1, 2]), &rules, &LocalLimits::default(), &Guards::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert_eq!(refused.to_string(), "the keep rules would delete everything: every given rule is 0");
    let best = BestRule { metric: "loss".to_owned(), count: 0, prefer: Prefer::Lowest };
    let zeros = [
        KeepRules { every_steps: Some(0), ..KeepRules::default() },
        KeepRules { within_seconds: Some(0), ..KeepRules::default() },
        KeepRules { best: vec![best], ..KeepRules::default() },
    ];
    for rules in zeros {
        assert!(rules.check().is_err(), "{rules:?}");
    }
}

#[test]
fn guards_name_themselves() {
    let mut all = steps([1, 2, 3, 4, 5, 6]);
    all.steps[0].needed.pinned = true;
    all.steps[1].needed.leased = true;
    all.steps[2].needed.uploading = true;
    all.steps[4].verified = Verified::Damaged("cut off".to_owned());
    all.steps[5].verified = Verified::Damaged("a part is missing".to_owned());
    assert_eq!(
        told(&planned(&all, &KeepRules { every_steps: Some(100), ..KeepRules::default() })),
        [
            "+1 pinned",
            "+2 being restored",
            "+3 being uploaded",
            "+4 newest valid step",
            "+5 newer than the newest valid step, damaged (cut off)",
            "+6 newer than the newest valid step, damaged (a part is missing)",
        ]
    );
}

#[test]
fn local_copies_wait_for_the_required_remotes() {
    let mut all = local([1, 2, 3, 4, 5]);
    all.steps[0].elsewhere.durable_on = vec![remote("gcs"), remote("s3-main")];
    all.steps[1].elsewhere.durable_on = vec![remote("s3-main")];
    all.steps[2].elsewhere.durable_on.clear();
    all.steps[3].elsewhere.durable_on = vec![remote("s3-main")];
    all.steps[3].elsewhere.retired_on = vec![remote("gcs")];
    let guards = Guards { required_remotes: vec![remote("s3-main"), remote("gcs")], ..Guards::default() };
    let plan = plan(&all, &last(1), &LocalLimits::default(), &guards).unwrap();
    assert_eq!(
        told(&plan),
        [
            "-1 no rule keeps it",
            "+2 not durable on gcs",
            "+3 not durable on s3-main, not durable on gcs, last verified copy",
            "-4 no rule keeps it",
            "+5 last 1, newest valid step, not durable on gcs",
        ]
    );
}

#[test]
fn without_a_required_remote_a_local_copy_still_needs_another_one() {
    let mut all = local([1, 2, 3]);
    all.steps[0].elsewhere.durable_on.clear();
    assert_eq!(told(&planned(&all, &last(1)))[0], "+1 last verified copy");
}

#[test]
fn what_is_not_known_for_sure_deletes_nothing() {
    let refused = |view: &TierView| {
        let plan = planned(view, &last(1));
        assert!(plan.deletions().is_empty());
        let refusal = plan.refusal.unwrap();
        (refusal.kind, refusal.reason)
    };
    let mut all = steps([1, 2, 3]);
    all.unreadable =
        vec![("a.json".to_owned(), "not JSON".to_owned()), ("b.json".to_owned(), "x".to_owned())];
    let reason = "cannot read a record on 's3-main': a.json: not JSON (and 1 more)".to_owned();
    assert_eq!(refused(&all), (RefusalKind::UnreadableRecord, reason));
    assert_eq!(refused(&steps([])), (RefusalKind::ListingEmpty, "no step is listed on 's3-main'".to_owned()));
    let reason = "step 1 (attempt 1) is listed twice on 's3-main'".to_owned();
    assert_eq!(refused(&steps([1, 1, 2])), (RefusalKind::Contradiction, reason));
    let mut all = steps([1, 2, 3]);
    for step in &mut all.steps {
        step.verified = Verified::Damaged("cut off".to_owned());
    }
    assert_eq!(refused(&all), (RefusalKind::NoneVerified, "no step on 's3-main' is verified".to_owned()));
}

#[test]
fn the_cap_lets_the_oldest_go_and_keeps_the_rest() {
    let guards = Guards { maximum_deletions: Some(2), ..Guards::default() };
    let plan = plan(&steps([1, 2, 3, 4, 5]), &last(1), &LocalLimits::default(), &guards).unwrap();
    assert_eq!(dropped(&plan), [1, 2]);
    assert_eq!(told(&plan)[2], "+3 over --max-delete");
}

#[test]
fn what_was_carried_out_before_is_part_of_the_plan_once() {
    let earlier = planned(&steps([1, 2, 3, 4]), &last(2));
    let mut plan = planned(&steps([2, 3, 4]), &last(1));
    assert_eq!((dropped(&plan), plan.freed_bytes, plan.kept_bytes), (vec![2, 3], 20, 10));
    let carried_out: Vec<Decision> = earlier.deletions().into_iter().cloned().collect();
    plan.add_carried_out(carried_out);
    assert_eq!((dropped(&plan), plan.freed_bytes, plan.kept_bytes), (vec![1, 2, 3], 30, 10));
    let numbers: Vec<u64> = plan.decisions.iter().map(|decision| decision.id.step.number()).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert_eq!(plan.decision(id(1, 1)).map(|decision| decision.verdict), Some(Verdict::Drop));
}

#[test]
fn a_copy_that_was_not_confirmed_says_why() {
    for unproven in [Unproven::Unanswered("no answer".to_owned()), Unproven::Lost("no answer".to_owned())] {
        assert_eq!(unproven.reason(), "no answer");
    }
}

#[test]
fn a_plan_is_written_as_json_with_units_in_its_names() {
    let json = serde_json::to_value(planned(&steps([1, 2]), &last(1))).unwrap();
    assert_eq!(json["tier"], "s3-main");
    assert_eq!((&json["freed_bytes"], &json["refusal"]), (&10.into(), &serde_json::Value::Null));
    let first = &json["decisions"][0];
    assert_eq!(
        (&first["step"], &first["attempt"], &first["verdict"]),
        (&1.into(), &1.into(), &"drop".into())
    );
}

fn best_name(name: &str, step: Option<u64>) -> BestName {
    BestName { name: name.to_owned(), step: step.map(|step| Step::new(step).unwrap()) }
}

#[test]
fn the_best_step_according_to_the_newest_valid_one_stays_on_a_remote() {
    let mut all = steps([1, 2, 3, 4, 5]);
    let naming = |name: &str| vec![best_name(name, None)];
    all.steps[1].best = naming("step_1");
    all.steps[3].best = naming("step_2");
    all.steps[4].best = naming("step_3");
    assert_eq!(dropped(&planned(&all, &last(1))), [1, 2, 4]);
    assert_eq!(told(&planned(&all, &last(1)))[2], "+3 the best according to step 5");
    // The trainer has its own.
    let local = TierView { tier: Tier::Local, ..all.clone() };
    assert_eq!(dropped(&planned(&local, &last(1))), [1, 2, 3, 4]);
    // A damaged step names nothing.
    all.steps[4].verified = Verified::Damaged("cut off".to_owned());
    assert_eq!(dropped(&planned(&all, &last(1))), [1, 3]);
    // It may name itself, or what no longer exists.
    all.steps[3].best = vec![best_name("step_4", None), best_name("step_9", None)];
    assert_eq!(dropped(&planned(&all, &last(1))), [1, 2, 3]);
}

#[test]
fn the_best_step_is_the_newest_of_its_name_from_which_the_run_did_not_go_back() {
    let at = |attempt, number| (id(attempt, number), "best");
    let best = |named_by, steps: &[(StepId, &'static str)]| {
        best_step(named_by, &best_name("best", Some(20)), steps.iter().copied())
    };
    assert_eq!(best(id(1, 3), &[at(1, 1), at(1, 2), at(1, 3)]), Some(id(1, 3)));
    assert_eq!(best(id(1, 2), &[at(1, 3), at(1, 4)]), None);
    // A step that was sealed under another of its names is found by its number.
    let other = |number| (id(1, number), "other");
    assert_eq!(best(id(1, 30), &[other(10), other(20), other(30)]), Some(id(1, 20)));
    assert_eq!(best(id(1, 30), &[at(1, 10), other(20)]), Some(id(1, 10)));
    // The second attempt began at 20: it went back from 30, and never to it.
    let went_back = [at(1, 10), at(1, 30), (id(2, 20), "other"), (id(2, 40), "other")];
    assert_eq!(best(id(2, 40), &went_back), Some(id(1, 10)));
    // What came later does not count.
    assert_eq!(best(id(1, 40), &[at(1, 30), (id(1, 40), "other"), at(2, 10)]), Some(id(1, 30)));
}

//! A step counts once, not once for each revision.

use super::*;

/// Returns a later revision of a step.
fn revision(number: u64, revision: u32, amends: bool) -> StepFacts {
    let mut facts = step(1, number);
    facts.amends = amends;
    while facts.id.revision.number() < revision {
        facts.id = facts.id.next_revision().unwrap();
    }
    facts
}

fn dropped_ids(plan: &RetentionPlan) -> Vec<(u64, u32)> {
    let deletions = plan.deletions();
    let ids = deletions.iter().map(|decision| decision.id);
    ids.map(|id| (id.step.number(), id.revision.number())).collect()
}

fn on_remote(steps: Vec<StepFacts>) -> TierView {
    view(Tier::Remote(remote("s3-main")), steps)
}

#[test]
fn the_revision_before_goes_once_the_next_one_has_all_its_files() {
    let view = on_remote(vec![
        step(1, 100),
        step(1, 200),
        revision(200, 2, true),
        step(1, 300),
        revision(300, 2, true),
        revision(300, 3, true),
    ]);
    let plan = planned(&view, &last(2));
    assert_eq!(dropped_ids(&plan), [(100, 1), (200, 1), (300, 1), (300, 2)]);
    assert_eq!(dropped_ids(&planned(&view, &KeepRules::default())), []);
}

#[test]
fn another_save_under_the_number_stays_as_long_as_the_step() {
    let view = on_remote(vec![step(1, 100), revision(100, 2, false), step(1, 200)]);
    assert_eq!(dropped_ids(&planned(&view, &last(2))), []);
    assert_eq!(dropped_ids(&planned(&view, &last(1))), [(100, 1), (100, 2)]);
}

#[test]
fn a_damaged_revision_takes_no_place_and_removes_nothing() {
    let mut damaged = revision(200, 2, true);
    damaged.verified = Verified::Damaged("cut off".to_owned());
    let view = on_remote(vec![step(1, 100), step(1, 200), damaged, step(1, 300)]);
    assert_eq!(dropped_ids(&planned(&view, &last(2))), [(100, 1)]);
}

#[test]
fn a_revision_that_may_lack_files_of_an_earlier_one_removes_nothing() {
    // The second one is gone, and what the third one was made from is not known.
    let view = on_remote(vec![step(1, 100), revision(100, 3, true)]);
    assert_eq!(dropped_ids(&planned(&view, &last(1))), []);
}

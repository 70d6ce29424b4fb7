//! Which steps a selective remote gets.

use super::*;

fn selection(rules: KeepRules) -> Selection {
    Selection { from: remote("hot"), rules, includes_newest: false, after_seconds: 0 }
}

fn every(interval: u64) -> KeepRules {
    KeepRules { every_steps: Some(interval), ..KeepRules::default() }
}

/// The steps that wait, each with the hour from which it may be copied.
fn planned_hours(selection: &Selection, view: &TierView, target: &TargetSteps) -> Vec<(u64, i64)> {
    let states = selection.states(&view.steps, target, view.now);
    let planned = states.into_iter().filter_map(|(id, state)| match state {
        SelectionState::Planned { due_at } => Some((id.step.number(), due_at.seconds / HOUR)),
        _ => None,
    });
    planned.collect()
}

fn planned_steps(selection: &Selection, view: &TierView) -> Vec<u64> {
    planned_hours(selection, view, &TargetSteps::default()).into_iter().map(|(step, _)| step).collect()
}

#[test]
fn rules_select_steps_and_without_any_every_step_is_selected() {
    let view = steps([10, 15, 20, 25, 30, 31]);
    assert_eq!(planned_steps(&selection(KeepRules::default()), &view), [10, 15, 20, 25, 30, 31]);
    assert_eq!(planned_steps(&selection(every(10)), &view), [10, 20, 30]);
    assert_eq!(planned_steps(&selection(last(2)), &view), [30, 31]);
    let best = BestRule { metric: "loss".to_owned(), count: 2, prefer: Prefer::Lowest };
    assert_eq!(
        planned_steps(&selection(KeepRules { best: vec![best], ..KeepRules::default() }), &view),
        [10, 15]
    );
    assert_eq!(planned_steps(&selection(KeepRules { daily: Some(1), ..KeepRules::default() }), &view), [31]);
}

#[test]
fn the_newest_step_is_selected_beside_the_rules_or_alone() {
    let view = steps([10, 15, 20, 25]);
    let with_newest = |rules| Selection { includes_newest: true, ..selection(rules) };
    assert_eq!(planned_steps(&with_newest(every(10)), &view), [10, 20, 25]);
    assert_eq!(planned_steps(&with_newest(KeepRules::default()), &view), [25]);
    assert_eq!(planned_steps(&with_newest(KeepRules::default()), &steps([])), [0; 0]);
}

#[test]
fn no_guard_selects_a_step() {
    let mut view = steps([10, 15, 17]);
    view.steps[1].needed = Needed { pinned: true, leased: true, uploading: true };
    assert_eq!(planned_steps(&selection(every(10)), &view), [10]);
}

#[test]
fn a_step_waits_until_it_is_old_enough() {
    let late = Selection { after_seconds: 24 * 3_600, ..selection(every(10)) };
    let hours = planned_hours(&late, &steps([10, 20, 21]), &TargetSteps::default());
    assert_eq!(hours, [(10, 34), (20, 44)]);
    let never = Selection { after_seconds: u64::MAX, ..late };
    let hours = planned_hours(&never, &steps([10]), &TargetSteps::default());
    assert_eq!(hours, [(10, i64::MAX / HOUR)]);
}

#[test]
fn what_the_remote_has_or_has_removed_does_not_wait() {
    let view = steps([10, 20, 25, 30]);
    let target = TargetSteps { copied: [id(1, 10), id(1, 25)].into(), removed: [id(1, 20)].into() };
    let states = selection(every(10)).states(&view.steps, &target, view.now);
    let states: Vec<SelectionState> = states.into_values().collect();
    let due_at = view.steps[3].created;
    assert_eq!(
        states,
        [
            SelectionState::Copied,
            SelectionState::Removed,
            SelectionState::Copied,
            SelectionState::Planned { due_at },
        ]
    );
    let target = TargetSteps::default();
    let states = selection(every(10)).states(&view.steps, &target, view.now);
    assert_eq!(states[&id(1, 25)], SelectionState::NotSelected);
}

#[test]
fn of_the_revisions_of_a_step_the_one_that_stands_for_it_is_selected() {
    let mut second = step(1, 10);
    second.id = second.id.next_revision().unwrap();
    second.amends = true;
    let view = view(Tier::Remote(remote("hot")), vec![step(1, 10), second.clone(), step(1, 15)]);
    let states = selection(every(10)).states(&view.steps, &TargetSteps::default(), view.now);
    assert_eq!(states[&id(1, 10)], SelectionState::NotSelected);
    assert_eq!(states[&second.id], SelectionState::Planned { due_at: second.created });
}

#[test]
fn a_step_that_waits_to_be_copied_stays_on_the_remote_that_feeds_it() {
    let view = steps([10, 20, 30, 40]);
    let awaited = [(id(1, 10), vec![remote("cold"), remote("ice")])].into();
    let guards = Guards { awaited, ..Guards::default() };
    let plan = plan(&view, &last(1), &LocalLimits::default(), &guards).unwrap();
    assert_eq!(dropped(&plan), [20, 30]);
    assert_eq!(told(&plan)[0], "+10 waits to be copied to cold, waits to be copied to ice");
    assert_eq!(dropped(&planned(&view, &last(1))), [10, 20, 30]);
}

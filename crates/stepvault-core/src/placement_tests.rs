use super::*;

fn id(attempt: u32, step: u64) -> StepId {
    StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
}

fn step(number: u64) -> Step {
    Step::new(number).unwrap()
}

/// Returns a known step that was written at this second.
fn known(attempt: u32, step: u64, written: i64) -> KnownStep {
    with(attempt, step, written, Content::Other)
}

fn with(attempt: u32, step: u64, written: i64, content: Content) -> KnownStep {
    KnownStep {
        id: id(attempt, step),
        written_at: Some(Timestamp::from_seconds(written)),
        content,
        amends: false,
        is_here: false,
        began: None,
        unnumbered: false,
    }
}

fn removed(attempt: u32, step: u64) -> KnownStep {
    KnownStep {
        id: id(attempt, step),
        written_at: None,
        content: Content::Removed,
        amends: false,
        is_here: false,
        began: None,
        unnumbered: false,
    }
}

fn facts(known: &[KnownStep], number: u64, written: i64) -> Facts<'_> {
    Facts {
        known,
        step: step(number),
        written_at: Timestamp::from_seconds(written),
        line: Line::Steps,
        live: None,
        is_one_of_several: false,
        is_overwritten: false,
        unnumbered: false,
    }
}

fn live(after: Option<u64>) -> LiveSave {
    LiveSave { after: after.map(step) }
}

fn placed(facts: &Facts<'_>) -> Placement {
    decide(facts).unwrap().placement
}

fn restored(attempt: u32, step: u64, since: i64, joined: Option<u32>) -> Line<'static> {
    restored_below(None, attempt, step, since, joined)
}

fn restored_below(
    below: Option<u32>,
    attempt: u32,
    step: u64,
    since: i64,
    joined: Option<u32>,
) -> Line<'static> {
    let attempt_of = |attempt| Attempt::new(attempt).unwrap();
    Line::Restored {
        resumed: ResumedFrom {
            id: id(attempt, step),
            since: Timestamp::from_seconds(since),
            attempt: joined.map(attempt_of),
        },
        below: below.map(attempt_of),
    }
}

fn span(attempt: u32, since: i64) -> LaunchSpan {
    LaunchSpan { attempt: Attempt::new(attempt).unwrap(), since: Timestamp::from_seconds(since) }
}

#[test]
fn the_first_step_begins_attempt_one_and_the_next_joins_it() {
    assert_eq!(placed(&facts(&[], 100, 1000)), Placement::New(id(1, 100)));
    assert_eq!(placed(&facts(&[known(1, 100, 1000)], 200, 2000)), Placement::New(id(1, 200)));
}

#[test]
fn a_lower_number_that_was_written_later_is_a_late_find_and_said() {
    let steps = [known(1, 100, 1000), known(1, 200, 2000)];
    let decision = decide(&facts(&steps, 150, 3000)).unwrap();
    assert_eq!(decision.placement, Placement::New(id(1, 150)));
    assert_eq!(decision.concern, Some(Concern::WrittenAfter(id(1, 200))));
    for written in [1500, 2000] {
        assert_eq!(decide(&facts(&steps, 150, written)).unwrap().concern, None, "{written}");
    }
}

#[test]
fn files_that_are_added_to_a_step_are_its_next_revision() {
    let steps = [with(1, 100, 1000, Content::Amended), known(1, 200, 2000)];
    let decision = decide(&facts(&steps, 100, 5000)).unwrap();
    assert_eq!(decision.placement, Placement::New(id(1, 100).next_revision().unwrap()));
    assert!(decision.amends && decision.is_below_highest);
    assert_eq!((decision.began, decision.completes), (None, None));
    // Whatever else would begin an attempt.
    let spans = [span(1, 0), span(3, 1500)];
    for line in [restored(1, 100, 2500, None), Line::Launches { spans: &spans, in_latest: true }] {
        let after = Facts { line, live: Some(live(Some(50))), ..facts(&steps, 100, 5000) };
        assert_eq!(placed(&after), decision.placement, "{line:?}");
    }
    let lost = [with(1, 100, 1000, Content::AmendedWithLosses)];
    assert_eq!(placed(&facts(&lost, 100, 5000)), Placement::Left(id(1, 100), LeftAlone::LostFiles));
    let here = lost.map(|known| KnownStep { is_here: true, ..known });
    let completed = decide(&facts(&here, 100, 5000)).unwrap();
    assert_eq!((completed.placement, completed.completes), (decision.placement, Some(id(1, 100))));
    let several = Facts { is_one_of_several: true, ..facts(&steps, 100, 5000) };
    assert_eq!(placed(&several), Placement::Left(id(1, 100), LeftAlone::OneOfSeveral));
}

#[test]
fn the_same_files_are_the_same_step_in_whichever_attempt() {
    let steps = [with(1, 100, 1000, Content::Same), with(2, 50, 3000, Content::Other)];
    assert_eq!(placed(&facts(&steps, 100, 1000)), Placement::Known(id(1, 100)));
    let twice = [with(1, 100, 1000, Content::Same), with(2, 100, 3000, Content::Same)];
    assert_eq!(placed(&facts(&twice, 100, 1000)), Placement::Known(id(2, 100)));
    let began = Some(Evidence::Restored(id(1, 50)));
    let revision = [KnownStep { amends: true, began, ..twice[1] }];
    let decision = decide(&facts(&revision, 100, 1000)).unwrap();
    assert_eq!((decision.amends, decision.began), (true, began));
}

#[test]
fn one_whole_save_below_the_highest_number_is_stored_in_its_place_and_the_second_begins_an_attempt() {
    let steps = [known(1, 100, 1000), known(1, 200, 2000), known(1, 300, 3000)];
    let first = Facts { live: Some(live(None)), ..facts(&steps, 100, 4000) };
    let decision = decide(&first).unwrap();
    let again = id(1, 100).next_revision().unwrap();
    assert_eq!(decision.placement, Placement::New(again));
    assert_eq!(decision.concern, Some(Concern::Replaces(id(1, 100))));
    assert!(decision.is_below_highest && !decision.amends);
    let second = Facts { live: Some(live(Some(100))), ..facts(&steps, 200, 5000) };
    let decision = decide(&second).unwrap();
    assert_eq!(decision.placement, Placement::New(id(2, 200)));
    assert_eq!(decision.began, Some(Evidence::SeenAfter(step(100))));
    assert!(decision.is_below_highest);
    // In decreasing order, or twice the same number, it is no evidence.
    for before in [200, 100] {
        let reverse = Facts { live: Some(live(Some(before))), ..facts(&steps, 100, 5000) };
        assert_eq!(placed(&reverse), Placement::New(again), "{before}");
    }
    // Nor above the highest number.
    let above = Facts { live: Some(live(Some(200))), ..facts(&steps, 400, 5000) };
    assert_eq!(placed(&above), Placement::New(id(1, 400)));
}

#[test]
fn another_save_of_a_number_that_nobody_saw_stays_beside_it() {
    let decision = decide(&facts(&[known(1, 100, 1000)], 100, 1200)).unwrap();
    assert_eq!(decision.placement, Placement::New(id(1, 100).next_revision().unwrap()));
    assert_eq!(decision.concern, Some(Concern::Replaces(id(1, 100))));
    assert!(!decision.amends);
    let converted = [with(1, 100, 1000, Content::OtherWithLosses)];
    assert_eq!(placed(&facts(&converted, 100, 1200)), Placement::Left(id(1, 100), LeftAlone::LostFiles));
}

#[test]
fn a_step_that_retention_removed_is_left_alone_until_it_is_saved_anew() {
    let steps = [removed(1, 50), known(1, 100, 1000)];
    let left = Placement::Left(id(1, 50), LeftAlone::Removed);
    assert_eq!(placed(&facts(&steps, 50, 500)), left);
    assert_eq!(placed(&facts(&steps, 50, 5000)), left);
    let seen = Facts { live: Some(live(None)), ..facts(&steps, 50, 5000) };
    assert_eq!(placed(&seen), Placement::New(id(1, 50).next_revision().unwrap()));
}

#[test]
fn a_restore_of_a_step_with_later_ones_begins_an_attempt() {
    let steps = [known(1, 100, 1000), known(1, 200, 2000)];
    let after = |line, number| Facts { line, ..facts(&steps, number, 5000) };
    let decision = decide(&after(restored(1, 100, 4000, None), 150)).unwrap();
    assert_eq!(decision.placement, Placement::New(id(2, 150)));
    assert_eq!(decision.began, Some(Evidence::Restored(id(1, 100))));
    // After the newest, the run goes on.
    let on = decide(&after(restored(1, 200, 4000, None), 300)).unwrap();
    assert_eq!((on.placement, on.began), (Placement::New(id(1, 300)), None));
    // Later saves stay in the attempt, at whatever number.
    let joined = [known(1, 200, 2000), known(2, 150, 5000)];
    let later = Facts { line: restored(1, 100, 4000, Some(2)), ..facts(&joined, 160, 5100) };
    assert_eq!(placed(&later), Placement::New(id(2, 160)));
}

#[test]
fn what_is_found_late_belongs_to_the_attempt_that_was_under_way() {
    let steps = [known(1, 100, 1000), known(1, 500, 1500), known(2, 100, 2000)];
    assert_eq!(placed(&facts(&steps, 200, 3000)), Placement::New(id(2, 200)));
    assert_eq!(placed(&facts(&steps, 300, 1200)), Placement::New(id(1, 300)));
    assert_eq!(placed(&facts(&steps, 300, 500)), Placement::New(id(1, 300)));
    let seen = Facts { live: Some(live(None)), ..facts(&steps, 300, 500) };
    assert_eq!(placed(&seen), Placement::New(id(2, 300)));
}

#[test]
fn a_launch_writes_its_own_attempt_whatever_others_have() {
    let spans = [span(1, 0), span(3, 1000)];
    let steps = [known(1, 100, 500), known(1, 200, 600)];
    let at = |number, written, in_latest| Facts {
        line: Line::Launches { spans: &spans, in_latest },
        ..facts(&steps, number, written)
    };
    let decision = decide(&at(150, 1100, false)).unwrap();
    assert_eq!(decision.placement, Placement::New(id(3, 150)));
    assert_eq!(decision.began, Some(Evidence::Launch));
    let above = decide(&at(300, 1100, false)).unwrap();
    assert_eq!((above.placement, above.began), (Placement::New(id(3, 300)), None));
    // Left by the launch before, and found late.
    assert_eq!(placed(&at(300, 900, false)), Placement::New(id(1, 300)));
    assert_eq!(placed(&at(300, 900, true)), Placement::New(id(3, 300)));
    // One of several nodes adds nothing to a launch that is over where another step stands.
    let several = |number| Facts { is_one_of_several: true, ..at(number, 900, false) };
    assert_eq!(placed(&several(100)), Placement::Left(id(1, 100), LeftAlone::Removed));
    assert_eq!(placed(&several(300)), Placement::New(id(1, 300)));
}

#[test]
fn an_attempt_begins_with_the_first_step_of_a_launch_alone() {
    let spans = [span(2, 1000)];
    let began = |steps: &[KnownStep], number| {
        let line = Line::Launches { spans: &spans, in_latest: true };
        decide(&Facts { line, ..facts(steps, number, 1100) }).unwrap().began
    };
    assert_eq!(began(&[known(1, 500, 500)], 100), Some(Evidence::Launch));
    assert_eq!(began(&[known(1, 500, 500), known(2, 100, 1050)], 200), None);
    // The launch did not go back from its own step if no number of that step is known.
    assert_eq!(began(&[KnownStep { unnumbered: true, ..known(2, 500, 1050) }], 100), None);
}

#[test]
fn a_launch_that_is_over_takes_another_save_of_a_node_that_writes_alone() {
    let steps = [known(1, 100, 500), known(2, 300, 1500)];
    let line = Line::Ended(Attempt::FIRST);
    let late = Facts { line, ..facts(&steps, 100, 900) };
    assert_eq!(placed(&late), Placement::New(id(1, 100).next_revision().unwrap()));
    let several = Facts { is_one_of_several: true, ..late };
    assert_eq!(placed(&several), Placement::Left(id(1, 100), LeftAlone::Removed));
}

#[test]
fn the_nodes_of_a_launch_agree_on_the_attempt_after_it_went_back() {
    let spans = [span(2, 1000)];
    let steps = [known(2, 100, 1100), known(2, 200, 1200)];
    let second = Facts {
        line: Line::Launches { spans: &spans, in_latest: true },
        live: Some(live(Some(100))),
        is_one_of_several: true,
        ..facts(&steps, 200, 1300)
    };
    assert_eq!(placed(&second), Placement::LaunchWentBack(id(2, 200)));
}

#[test]
fn what_is_older_than_every_launch_of_several_nodes_is_of_the_first() {
    let spans = [span(2, 1000), span(3, 2000)];
    let steps = [known(2, 100, 1100)];
    let old = |number| Facts {
        line: Line::Launches { spans: &spans, in_latest: false },
        is_one_of_several: true,
        ..facts(&steps, number, 500)
    };
    assert_eq!(placed(&old(150)), Placement::New(id(2, 150)));
    assert_eq!(placed(&old(100)), Placement::Left(id(2, 100), LeftAlone::Removed));
    // Of a node that writes alone it is of the attempt that was under way, which began before the launches.
    let before = [known(1, 100, 400), known(2, 100, 1100)];
    let alone = Facts { known: &before, is_one_of_several: false, ..old(150) };
    assert_eq!(placed(&alone), Placement::New(id(1, 150)));
}

#[test]
fn a_given_attempt_holds_one_checkpoint_under_each_number() {
    let attempt = |number| Line::Given(Attempt::new(number).unwrap());
    let steps = [known(1, 100, 1000)];
    let given = |line| Facts { line, ..facts(&steps, 100, 2000) };
    assert_eq!(placed(&given(attempt(1))), Placement::Left(id(1, 100), LeftAlone::Taken));
    let decision = decide(&given(attempt(2))).unwrap();
    assert_eq!(decision.placement, Placement::New(id(2, 100)));
    assert_eq!(decision.began, Some(Evidence::Given));
    // The first attempt of a run begins without evidence, and an attempt begins once.
    let first = Facts { line: attempt(1), ..facts(&[], 100, 2000) };
    let begun = [known(1, 100, 1000), known(2, 100, 1500)];
    let again = Facts { line: attempt(2), ..facts(&begun, 200, 2000) };
    for facts in [first, again] {
        assert_eq!(decide(&facts).unwrap().began, None, "{facts:?}");
    }
}

#[test]
fn times_against_the_order_of_numbers_are_found() {
    let at = |attempt, step, written| (id(attempt, step), Timestamp::from_seconds(written));
    assert_eq!(contradiction([at(1, 100, 10), at(1, 200, 20)]), None);
    assert_eq!(contradiction([at(1, 100, 30), at(1, 200, 20)]), Some((id(1, 200), id(1, 100))));
    assert_eq!(contradiction([at(1, 100, 30), at(2, 50, 20)]), None);
    assert_eq!(contradiction([at(1, 100, 20), at(1, 200, 20)]), None);
    // Two saves of one number are no contradiction.
    let revision = (id(1, 100).next_revision().unwrap(), Timestamp::from_seconds(20));
    assert_eq!(contradiction([at(1, 100, 30), revision]), None);
    assert_eq!(contradiction([]), None);
}

#[test]
fn a_step_that_is_written_over_another_at_the_only_path_begins_an_attempt() {
    let steps = [known(1, 10, 1000), known(1, 20, 2000)];
    let over = Facts { is_overwritten: true, ..facts(&steps, 10, 500) };
    let decision = decide(&over).unwrap();
    assert_eq!(decision.placement, Placement::New(id(2, 10)));
    assert_eq!(decision.began, Some(Evidence::Overwrote));
    // A vault that has not seen the step before goes by the number.
    let found = Facts { is_overwritten: false, ..over };
    assert_eq!(placed(&found), Placement::New(id(1, 10).next_revision().unwrap()));
}

#[test]
fn a_revision_keeps_the_evidence_with_which_its_attempt_began() {
    let mut steps = [with(2, 100, 1000, Content::Amended), known(1, 300, 500)];
    steps[0].began = Some(Evidence::Restored(id(1, 50)));
    assert_eq!(decide(&facts(&steps, 100, 5000)).unwrap().began, steps[0].began);
}

#[test]
fn what_an_unfinished_upload_has_claimed_is_no_other_save() {
    let claimed = [KnownStep { content: Content::Unknown, ..known(1, 100, 0) }];
    let decision = decide(&facts(&claimed, 100, 1000)).unwrap();
    assert_eq!(decision.placement, Placement::New(id(1, 100).next_revision().unwrap()));
    assert_eq!(decision.concern, None);
}

#[test]
fn numbers_that_nothing_told_are_compared_with_no_others() {
    let best = KnownStep { unnumbered: true, ..known(1, 4, 1000) };
    let steps = [known(1, 3, 900), best];
    let live = Some(live(Some(3)));
    let numbered = decide(&Facts { live, ..facts(&steps, 4, 2000) });
    let numbered = numbered.unwrap();
    let second = best.id.next_revision().unwrap();
    assert_eq!(numbered.placement, Placement::New(second));
    assert_eq!((numbered.began, numbered.concern), (None, None));
    assert!(!numbered.is_below_highest && !numbered.amends);

    let later = |steps| Facts { unnumbered: true, live, ..facts(steps, 4, 3000) };
    let overwritten = decide(&later(&steps)).unwrap();
    assert_eq!(overwritten.placement, Placement::New(second));
    assert!(overwritten.amends, "the content before is gone");
    let without = |content| [known(1, 3, 900), KnownStep { content, ..best }];
    for gone in [without(Content::Unknown), without(Content::Removed)] {
        let facts = Facts { unnumbered: true, live, ..facts(&gone, 4, 3000) };
        assert!(!decide(&facts).unwrap().amends, "{gone:?}");
    }
    let beside = [known(1, 3, 900), known(1, 4, 1000)];
    assert!(!decide(&later(&beside)).unwrap().amends, "a step is never dropped for it");
}

#[test]
fn what_is_older_than_the_launches_stays_below_the_first_of_them() {
    let before_and_since =
        [known(1, 100, 1000), known(1, 200, 1000), known(2, 300, 5010), known(3, 200, 5110)];
    let place = |known: &[KnownStep], below, joined| {
        placed(&Facts { line: restored_below(below, 1, 100, 5000, joined), ..facts(known, 400, 5020) })
    };
    assert_eq!(place(&before_and_since, None, None), Placement::New(id(4, 400)));
    assert_eq!(place(&before_and_since, Some(3), None), Placement::New(id(2, 400)));
    for joined in [1, 2] {
        assert_eq!(place(&before_and_since, Some(3), Some(joined)), Placement::New(id(joined, 400)));
    }
    // The launch began the first attempt after the restored step.
    assert_eq!(place(&before_and_since[..2], Some(2), None), Placement::New(id(1, 400)));
}

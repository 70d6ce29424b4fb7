//! Decides which attempt a newly found checkpoint belongs to.
//!
//! A run that goes back to an earlier step and saves again starts a new attempt. Its saves therefore never mix with
//! the abandoned ones, and the newest step is always the highest (attempt, step). A step that is found late (a
//! backlog, a copy pushed by hand) does not start an attempt. The write times of the files tell the two apart: after a
//! regression they are newer than the newest known step, and for a late find they are older.

use crate::error::Result;
use crate::ids::{Attempt, Step, StepId};
use crate::timestamp::Timestamp;

/// A step of the run that is known to some tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownStep {
    /// Its identity.
    pub id: StepId,
    /// The newest modification time of its files; `None` when only its tombstone or claim remains.
    pub written_at: Option<Timestamp>,
    /// Whether its files are identical to those of the checkpoint at hand.
    pub same_content: bool,
}

/// What to do with a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// It is this known step.
    Known(StepId),
    /// It is a new step under this identity.
    New(StepId),
    /// It is an old save that another one replaced, or that retention removed: leave it alone.
    Stale(StepId),
}

/// Decides where the checkpoint of `step`, whose newest file was written at `written_at`, belongs.
pub fn place(known: &[KnownStep], step: Step, written_at: Timestamp) -> Result<Placement> {
    let same = known
        .iter()
        .filter(|entry| entry.id.step == step && entry.same_content)
        .max_by_key(|entry| entry.id);
    if let Some(entry) = same {
        return Ok(Placement::Known(entry.id));
    }
    let current = known
        .iter()
        .map(|entry| entry.id.attempt)
        .max()
        .unwrap_or(Attempt::FIRST);
    let attempt = attempt_at(known, current, written_at);
    let taken = known.iter().find(|entry| entry.id == StepId::new(attempt, step));
    if attempt < current {
        return Ok(match taken {
            Some(entry) => Placement::Stale(entry.id),
            None => Placement::New(StepId::new(attempt, step)),
        });
    }
    let later_steps = known
        .iter()
        .filter(|entry| entry.id.attempt == current && entry.id.step > step);
    let newest_write = later_steps.filter_map(|entry| entry.written_at).max();
    let went_back = newest_write.is_some_and(|newest| newest < written_at);
    match taken {
        // The content of the step is gone; an old save of it must not return as the newest step of a new attempt.
        Some(entry) if entry.written_at.is_none() && !went_back => Ok(Placement::Stale(entry.id)),
        // Either the rest of that save after a part of it was removed (verl removes `actor/` alone), or an older save.
        // It was not written later, so it is not a new save.
        Some(entry) if entry.written_at.is_some_and(|taken_at| written_at <= taken_at) => {
            Ok(Placement::Stale(entry.id))
        }
        // The step was saved again with different bytes.
        Some(_) => Ok(Placement::New(StepId::new(current.next()?, step))),
        None if went_back => Ok(Placement::New(StepId::new(current.next()?, step))),
        None => Ok(Placement::New(StepId::new(current, step))),
    }
}

/// An attempt that this node has taken part in, as the launches record it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchSpan {
    /// The attempt.
    pub attempt: Attempt,
    /// When this node joined it, by its own clock.
    pub since: Timestamp,
}

/// What to do with a checkpoint whose attempt depends on launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchPlacement {
    /// The placement is the same as without launches.
    Placed(Placement),
    /// The launch went back without a restart and saved this step again: the launch continues under another attempt.
    WentBack(StepId),
    /// It is older than every launch that this node knows, so the launch that wrote it is unknown.
    OfUnknownLaunch,
}

/// Decides where the checkpoint of `step`, written at `written_at`, belongs, from the launches that this node has
/// taken part in, the latest last. `known` contains only what this node itself has saved, because other nodes' clocks
/// say nothing about its files.
///
/// A file older than the latest launch was written during the launch before it. It must not become a step of the
/// latest launch, which may have gone back to an earlier step. `in_latest` is true when the file is known to belong to
/// the latest launch, whatever its time is.
pub fn place_by_launch(
    known: &[KnownStep],
    spans: &[LaunchSpan],
    step: Step,
    written_at: Timestamp,
    in_latest: bool,
) -> Option<LaunchPlacement> {
    let current = spans.last()?.attempt;
    let same = known
        .iter()
        .filter(|entry| entry.id.step == step && entry.same_content)
        .max_by_key(|entry| entry.id);
    if let Some(entry) = same {
        return Some(LaunchPlacement::Placed(Placement::Known(entry.id)));
    }
    let Some(attempt) = spans
        .iter()
        .rev()
        .find(|span| in_latest || span.since <= written_at)
        .map(|span| span.attempt)
    else {
        return Some(LaunchPlacement::OfUnknownLaunch);
    };
    let id = StepId::new(attempt, step);
    let taken = known.iter().find(|entry| entry.id == id);
    if attempt < current {
        return Some(LaunchPlacement::Placed(match taken {
            Some(_) => Placement::Stale(id),
            None => Placement::New(id),
        }));
    }
    let later = known
        .iter()
        .filter(|entry| entry.id.attempt == attempt && entry.id.step > step);
    let newest_write = later.filter_map(|entry| entry.written_at).max();
    let went_back = newest_write.is_some_and(|newest| newest < written_at);
    Some(match taken.map(|entry| entry.written_at) {
        Some(None) if !went_back => LaunchPlacement::Placed(Placement::Stale(id)),
        Some(Some(taken_at)) if written_at <= taken_at => LaunchPlacement::Placed(Placement::Stale(id)),
        Some(_) => LaunchPlacement::WentBack(id),
        None if went_back => LaunchPlacement::WentBack(id),
        None => LaunchPlacement::Placed(Placement::New(id)),
    })
}

/// A restore from which this node's trainer resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumedFrom {
    /// The restored step.
    pub id: StepId,
    /// The time of the restore, by this node's clock.
    pub since: Timestamp,
    /// The attempt of the steps saved since; `None` before the first such save.
    pub attempt: Option<Attempt>,
}

/// Decides where the checkpoint of `step` belongs that this node wrote after it had restored a step.
///
/// The restore abandoned every step after the restored one, whichever node wrote it and whatever its time is. The
/// first save therefore joins the attempt of the restored step only if no later step exists in it; otherwise it starts
/// a new attempt.
pub fn place_resumed(
    known: &[KnownStep],
    resumed: &ResumedFrom,
    step: Step,
    written_at: Timestamp,
) -> Result<Placement> {
    let ids = known.iter().map(|entry| entry.id);
    let newest = ids.fold(resumed.id, StepId::max);
    let attempt = resumed.attempt.unwrap_or(resumed.id.attempt);
    let span = LaunchSpan {
        attempt,
        since: resumed.since,
    };
    let id = StepId::new(attempt, step);
    match place_by_launch(known, &[span], step, written_at, true) {
        Some(LaunchPlacement::Placed(placement @ Placement::Known(_))) => Ok(placement),
        _ if resumed.attempt.is_none() && newest == resumed.id && id > newest => Ok(Placement::New(id)),
        Some(LaunchPlacement::Placed(placement)) if resumed.attempt.is_some() => Ok(placement),
        _ => Ok(Placement::New(StepId::new(newest.attempt.next()?, step))),
    }
}

/// Returns the attempt that was active at a time: the highest one that had written a step by then, or the lowest
/// known.
fn attempt_at(known: &[KnownStep], current: Attempt, written_at: Timestamp) -> Attempt {
    let begun = known
        .iter()
        .filter(|entry| entry.written_at.is_some_and(|first| first <= written_at));
    let lowest = known
        .iter()
        .filter(|entry| entry.written_at.is_some())
        .map(|entry| entry.id.attempt)
        .min();
    begun
        .map(|entry| entry.id.attempt)
        .max()
        .or(lowest)
        .unwrap_or(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(attempt: u32, step: u64) -> StepId {
        StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
    }

    fn known(attempt: u32, step: u64, written: i64) -> KnownStep {
        KnownStep {
            id: id(attempt, step),
            written_at: Some(Timestamp::from_seconds(written)),
            same_content: false,
        }
    }

    fn placed(known: &[KnownStep], step: u64, written: i64) -> Placement {
        place(known, Step::new(step).unwrap(), Timestamp::from_seconds(written)).unwrap()
    }

    #[test]
    fn the_first_step_begins_attempt_one_and_the_next_joins_it() {
        assert_eq!(placed(&[], 100, 1000), Placement::New(id(1, 100)));
        assert_eq!(
            placed(&[known(1, 100, 1000)], 200, 2000),
            Placement::New(id(1, 200))
        );
    }

    #[test]
    fn going_back_starts_a_new_attempt_and_a_late_find_does_not() {
        let steps = [known(1, 100, 1000), known(1, 200, 2000)];
        assert_eq!(placed(&steps, 150, 3000), Placement::New(id(2, 150)));
        assert_eq!(placed(&steps, 150, 1500), Placement::New(id(1, 150)));
    }

    #[test]
    fn a_save_of_the_very_time_of_a_higher_step_is_a_late_find() {
        let steps = [known(1, 100, 1000), known(1, 200, 2000)];
        assert_eq!(placed(&steps, 150, 2000), Placement::New(id(1, 150)));
    }

    #[test]
    fn how_far_an_earlier_attempt_came_says_nothing_of_the_current_one() {
        let steps = [known(1, 100, 1000), known(1, 500, 1500), known(2, 100, 2000)];
        assert_eq!(placed(&steps, 200, 3000), Placement::New(id(2, 200)));
        // Found late: it was written while the first attempt was under way.
        assert_eq!(placed(&steps, 300, 1200), Placement::New(id(1, 300)));
        assert_eq!(placed(&steps, 500, 1600), Placement::Stale(id(1, 500)));
        // To the second: the second attempt had begun by then.
        assert_eq!(placed(&steps, 300, 2000), Placement::New(id(2, 300)));
        // Before anything that is known was written.
        assert_eq!(placed(&steps, 300, 500), Placement::New(id(1, 300)));
    }

    #[test]
    fn the_same_files_are_the_same_step_in_whichever_attempt() {
        let mut steps = [known(1, 100, 1000), known(2, 50, 3000)];
        steps[0].same_content = true;
        assert_eq!(placed(&steps, 100, 1000), Placement::Known(id(1, 100)));
        // Of another step, whatever it holds.
        assert_eq!(placed(&steps, 60, 4000), Placement::New(id(2, 60)));
        // Of two, the later one.
        let mut twice = [known(1, 100, 1000), known(2, 100, 3000)];
        for entry in &mut twice {
            entry.same_content = true;
        }
        assert_eq!(placed(&twice, 100, 1000), Placement::Known(id(2, 100)));
    }

    #[test]
    fn saving_a_step_again_with_other_bytes_starts_a_new_attempt() {
        assert_eq!(
            placed(&[known(1, 100, 1000)], 100, 1200),
            Placement::New(id(2, 100))
        );
    }

    #[test]
    fn the_remains_of_a_save_are_no_new_save() {
        let steps = [known(1, 100, 1000), known(1, 200, 2000)];
        assert_eq!(placed(&steps, 100, 1000), Placement::Stale(id(1, 100)));
        assert_eq!(placed(&steps, 100, 900), Placement::Stale(id(1, 100)));
        assert_eq!(placed(&steps[..1], 100, 1000), Placement::Stale(id(1, 100)));
    }

    #[test]
    fn an_old_save_of_a_removed_step_never_becomes_the_newest() {
        let removed = KnownStep {
            id: id(1, 50),
            written_at: None,
            same_content: false,
        };
        assert_eq!(
            placed(&[removed, known(1, 100, 1000)], 50, 500),
            Placement::Stale(id(1, 50))
        );
        let later_attempt = [removed, known(1, 100, 1000), known(2, 10, 2000)];
        assert_eq!(placed(&later_attempt, 50, 500), Placement::Stale(id(1, 50)));
        assert_eq!(placed(&[removed], 50, 500), Placement::Stale(id(1, 50)));
        assert_eq!(
            placed(&[removed, known(1, 100, 1000)], 50, 2000),
            Placement::New(id(2, 50))
        );
    }

    fn span(attempt: u32, since: i64) -> LaunchSpan {
        LaunchSpan {
            attempt: Attempt::new(attempt).unwrap(),
            since: Timestamp::from_seconds(since),
        }
    }

    fn by_launch(known: &[KnownStep], spans: &[LaunchSpan], step: u64, written: i64) -> LaunchPlacement {
        place_by_launch(
            known,
            spans,
            Step::new(step).unwrap(),
            Timestamp::from_seconds(written),
            false,
        )
        .unwrap()
    }

    #[test]
    fn a_launch_writes_its_own_attempt_whatever_stands_there_of_others() {
        let new = |attempt, step| LaunchPlacement::Placed(Placement::New(id(attempt, step)));
        let spans = [span(1, 0), span(3, 1000)];
        let steps = [known(1, 100, 500), known(1, 200, 600)];
        assert_eq!(by_launch(&steps, &spans, 150, 1100), new(3, 150));
        assert_eq!(by_launch(&steps, &spans, 300, 1100), new(3, 300));
        // Left by the launch before, and found late.
        assert_eq!(by_launch(&steps, &spans, 300, 900), new(1, 300));
        assert_eq!(
            by_launch(&steps, &spans[1..], 300, 900),
            LaunchPlacement::OfUnknownLaunch
        );
        assert_eq!(
            place_by_launch(&steps, &[], Step::new(1).unwrap(), Timestamp::default(), false),
            None
        );
    }

    #[test]
    fn what_is_known_to_be_of_the_latest_launch_is_of_it_whatever_the_clock_says() {
        let spans = [span(1, 0), span(3, 1000)];
        let (step, early) = (Step::new(300).unwrap(), Timestamp::from_seconds(900));
        assert_eq!(
            place_by_launch(&[], &spans, step, early, true),
            Some(LaunchPlacement::Placed(Placement::New(id(3, 300))))
        );
    }

    #[test]
    fn a_launch_that_goes_back_without_a_restart_is_noticed() {
        let spans = [span(2, 1000)];
        let steps = [known(2, 100, 1100), known(2, 200, 1200)];
        assert_eq!(
            by_launch(&steps, &spans, 150, 1300),
            LaunchPlacement::WentBack(id(2, 150))
        );
        assert_eq!(
            by_launch(&steps, &spans, 200, 1300),
            LaunchPlacement::WentBack(id(2, 200))
        );
        assert_eq!(
            by_launch(&steps, &spans, 200, 1200),
            LaunchPlacement::Placed(Placement::Stale(id(2, 200)))
        );
        let removed = KnownStep {
            id: id(2, 50),
            written_at: None,
            same_content: false,
        };
        assert_eq!(
            by_launch(&[removed], &spans, 50, 1050),
            LaunchPlacement::Placed(Placement::Stale(id(2, 50)))
        );
    }

    fn resumed(id: StepId, attempt: Option<u32>) -> ResumedFrom {
        ResumedFrom {
            id,
            since: Timestamp::from_seconds(5000),
            attempt: attempt.map(|number| Attempt::new(number).unwrap()),
        }
    }

    fn after_restore(known: &[KnownStep], from: &ResumedFrom, step: u64, written: i64) -> Placement {
        let written_at = Timestamp::from_seconds(written);
        place_resumed(known, from, Step::new(step).unwrap(), written_at).unwrap()
    }

    #[test]
    fn the_first_save_after_a_restore_joins_its_attempt_where_nothing_stands_beyond() {
        let first = resumed(id(2, 300), None);
        assert_eq!(after_restore(&[], &first, 400, 6000), Placement::New(id(2, 400)));
        let older = [known(1, 900, 9000), known(2, 300, 9000)];
        // Whatever the clocks of other nodes say.
        assert_eq!(
            after_restore(&older, &first, 400, 6000),
            Placement::New(id(2, 400))
        );
        let beyond = [known(2, 300, 100), known(2, 350, 9000)];
        assert_eq!(
            after_restore(&beyond, &first, 400, 6000),
            Placement::New(id(3, 400))
        );
        let taken = [known(2, 300, 100), known(2, 400, 9000)];
        assert_eq!(
            after_restore(&taken, &first, 400, 6000),
            Placement::New(id(3, 400))
        );
        let later_attempt = [known(2, 300, 100), known(4, 10, 9000)];
        assert_eq!(
            after_restore(&later_attempt, &first, 400, 6000),
            Placement::New(id(5, 400))
        );
        // The very step that was restored, saved again.
        assert_eq!(after_restore(&[], &first, 300, 6000), Placement::New(id(3, 300)));
    }

    #[test]
    fn a_name_that_is_used_up_never_holds_up_what_was_saved_after_a_restore() {
        let removed = KnownStep {
            written_at: None,
            ..known(2, 400, 0)
        };
        let first = resumed(id(2, 300), None);
        assert_eq!(
            after_restore(&[removed], &first, 400, 6000),
            Placement::New(id(3, 400))
        );
    }

    #[test]
    fn later_saves_after_a_restore_stay_in_the_attempt_of_the_first_unless_they_go_back() {
        let later = resumed(id(2, 300), Some(3));
        let steps = [known(2, 500, 9000), known(3, 400, 6000)];
        assert_eq!(
            after_restore(&steps, &later, 500, 7000),
            Placement::New(id(3, 500))
        );
        assert_eq!(
            after_restore(&steps, &later, 350, 7000),
            Placement::New(id(4, 350))
        );
        assert_eq!(
            after_restore(&steps, &later, 400, 7000),
            Placement::New(id(4, 400))
        );
        assert_eq!(
            after_restore(&steps, &later, 400, 6000),
            Placement::Stale(id(3, 400))
        );
        let mut same = steps;
        same[0].same_content = true;
        assert_eq!(
            after_restore(&same, &later, 500, 7000),
            Placement::Known(id(2, 500))
        );
    }

    #[test]
    fn by_launches_too_the_same_files_are_the_same_step() {
        let spans = [span(1, 0), span(2, 1000)];
        let mut steps = [known(1, 100, 500), known(2, 50, 1100)];
        steps[0].same_content = true;
        let placed = |placement| LaunchPlacement::Placed(placement);
        assert_eq!(
            by_launch(&steps, &spans, 100, 1200),
            placed(Placement::Known(id(1, 100)))
        );
        assert_eq!(
            by_launch(&steps, &spans, 60, 1200),
            placed(Placement::New(id(2, 60)))
        );
    }

    #[test]
    fn by_launches_too_a_late_find_is_no_way_back() {
        let placed = |placement| LaunchPlacement::Placed(placement);
        let spans = [span(1, 0), span(2, 1000)];
        let steps = [
            known(1, 100, 500),
            known(1, 500, 600),
            known(2, 100, 1100),
            known(2, 200, 1200),
        ];
        // Written before the launch, and taken: another save of it is left alone.
        assert_eq!(
            by_launch(&steps, &spans, 500, 700),
            placed(Placement::Stale(id(1, 500)))
        );
        // To the second of the launch, and of the step above.
        assert_eq!(
            by_launch(&steps, &spans, 300, 1000),
            placed(Placement::New(id(2, 300)))
        );
        assert_eq!(
            by_launch(&steps, &spans, 150, 1200),
            placed(Placement::New(id(2, 150)))
        );
        // An earlier save of a step that is taken.
        assert_eq!(
            by_launch(&steps, &spans, 200, 1100),
            placed(Placement::Stale(id(2, 200)))
        );
        // What the launch before wrote above it is not of this one.
        assert_eq!(
            by_launch(&steps, &spans, 300, 1300),
            placed(Placement::New(id(2, 300)))
        );
    }

    #[test]
    fn by_launches_too_going_back_to_a_removed_step_is_another_attempt() {
        let removed = KnownStep {
            id: id(2, 50),
            written_at: None,
            same_content: false,
        };
        assert_eq!(
            by_launch(&[removed, known(2, 100, 1100)], &[span(2, 1000)], 50, 1200),
            LaunchPlacement::WentBack(id(2, 50))
        );
        assert_eq!(
            by_launch(&[removed, known(2, 100, 1100)], &[span(2, 1000)], 50, 1050),
            LaunchPlacement::Placed(Placement::Stale(id(2, 50)))
        );
    }
}

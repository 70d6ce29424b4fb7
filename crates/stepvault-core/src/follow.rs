//! Which step a follower takes next: a pure decision over the durable steps and what was followed before.

use std::collections::BTreeSet;

use crate::StepId;
use crate::retention::abandoned_steps;

/// Which steps are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FollowRules {
    /// Only steps whose number is a multiple of this; `None` for all.
    pub every: Option<u64>,
    /// Whether each step is followed, the oldest first. Otherwise only the newest waiting one is.
    pub each: bool,
}

/// The steps that need no further work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowedSteps {
    /// The newest step that was finished: it and all older ones are not followed again.
    pub finished: Option<StepId>,
    /// Newer steps that cannot be followed.
    pub skipped: BTreeSet<StepId>,
}

impl FollowedSteps {
    /// Records that a step is finished.
    pub fn finish(&mut self, id: StepId) {
        self.finished = self.finished.max(Some(id));
        let finished = self.finished;
        self.skipped.retain(|skipped| Some(*skipped) > finished);
    }
}

/// The step to follow next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextStep {
    /// The step.
    pub id: StepId,
    /// Older steps that became durable since the last one and are not followed, the oldest first.
    pub passed_over: Vec<StepId>,
}

/// Returns the durable step to follow next; `None` if none is new.
///
/// A step of an attempt that a later one has left behind is not followed. At first only the newest step is, unless each
/// step is.
pub fn next_step(
    durable: &BTreeSet<StepId>,
    followed: &FollowedSteps,
    rules: FollowRules,
) -> Option<NextStep> {
    let abandoned = abandoned_steps(durable.iter().copied());
    let is_selected = |id: &StepId| rules.every.is_none_or(|every| id.step.number().is_multiple_of(every));
    let is_new = |id: &StepId| followed.finished.is_none_or(|finished| *id > finished);
    let mut waiting: Vec<StepId> = durable.iter().copied().collect();
    waiting.retain(|id| {
        is_new(id) && is_selected(id) && !abandoned.contains(id) && !followed.skipped.contains(id)
    });
    if rules.each {
        let id = *waiting.first()?;
        return Some(NextStep { id, passed_over: Vec::new() });
    }
    let id = waiting.pop()?;
    let passed_over = if followed.finished.is_some() { waiting } else { Vec::new() };
    Some(NextStep { id, passed_over })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attempt, Step};

    fn id(attempt: u32, step: u64) -> StepId {
        StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
    }

    fn next(
        durable: &[StepId],
        followed: &FollowedSteps,
        rules: FollowRules,
    ) -> Option<(StepId, Vec<StepId>)> {
        let durable = durable.iter().copied().collect();
        next_step(&durable, followed, rules).map(|next| (next.id, next.passed_over))
    }

    #[test]
    fn the_newest_is_followed_and_those_between_are_passed_over() {
        let rules = FollowRules::default();
        let mut followed = FollowedSteps::default();
        assert_eq!(next(&[], &followed, rules), None);
        assert_eq!(next(&[id(1, 1), id(1, 2)], &followed, rules), Some((id(1, 2), vec![])));
        followed.finish(id(1, 2));
        assert_eq!(next(&[id(1, 1), id(1, 2)], &followed, rules), None);
        let later = [id(1, 1), id(1, 2), id(1, 3), id(1, 4)];
        assert_eq!(next(&later, &followed, rules), Some((id(1, 4), vec![id(1, 3)])));
        followed.skipped.insert(id(1, 4));
        assert_eq!(next(&later, &followed, rules), Some((id(1, 3), vec![])));
        followed.finish(id(1, 3));
        assert_eq!(next(&later, &followed, rules), None);
        followed.finish(id(1, 4));
        assert!(followed.skipped.is_empty());
    }

    #[test]
    fn each_step_is_followed_in_order_where_that_is_wanted() {
        let rules = FollowRules { each: true, every: Some(2) };
        let mut followed = FollowedSteps::default();
        let durable = [id(1, 1), id(1, 2), id(1, 3), id(1, 4)];
        assert_eq!(next(&durable, &followed, rules), Some((id(1, 2), vec![])));
        followed.finish(id(1, 2));
        assert_eq!(next(&durable, &followed, rules), Some((id(1, 4), vec![])));
    }

    #[test]
    fn a_run_that_went_back_is_followed_from_there() {
        let mut followed = FollowedSteps::default();
        followed.finish(id(1, 300));
        // 400 of the first attempt became durable late, and is abandoned.
        let durable = [id(1, 100), id(1, 300), id(1, 400), id(2, 200)];
        for each in [false, true] {
            let rules = FollowRules { each, every: None };
            assert_eq!(next(&durable, &followed, rules), Some((id(2, 200), vec![])));
        }
    }

    #[test]
    fn a_later_revision_is_a_new_step() {
        let mut followed = FollowedSteps::default();
        let first = id(1, 100);
        let second = first.next_revision().unwrap();
        followed.finish(first);
        let found = next(&[first, second], &followed, FollowRules::default());
        assert_eq!(found, Some((second, vec![])));
    }
}

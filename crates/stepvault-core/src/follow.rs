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

/// How many steps that were finished one by one are recorded. Beyond it, all up to the oldest of them count as finished.
const MAX_FINISHED: usize = 10_000;

/// The steps that need no further work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowedSteps {
    /// This step and all older ones are not followed again.
    pub all_until: Option<StepId>,
    /// Newer steps that were finished. Those between may become durable later.
    pub finished: BTreeSet<StepId>,
    /// Newer steps that cannot be followed.
    pub skipped: BTreeSet<StepId>,
}

impl FollowedSteps {
    /// Returns the newest step that was finished.
    pub fn newest(&self) -> Option<StepId> {
        self.finished.last().copied().max(self.all_until)
    }

    /// Returns whether a step is to be followed, if it is durable and not abandoned.
    pub fn is_waiting(&self, id: StepId, rules: FollowRules) -> bool {
        let after = if rules.each { self.all_until } else { self.newest() };
        let is_selected = rules.every.is_none_or(|every| id.step.number().is_multiple_of(every));
        is_selected && Some(id) > after && !self.finished.contains(&id) && !self.skipped.contains(&id)
    }

    /// Records that a step is finished. If not each step is followed, all older ones are too.
    pub fn finish(&mut self, id: StepId, rules: FollowRules) {
        if rules.each {
            self.finished.insert(id);
        } else {
            self.all_until = self.newest().max(Some(id));
        }
        while self.finished.len() > MAX_FINISHED {
            self.all_until = self.finished.pop_first().max(self.all_until);
        }
        let all_until = self.all_until;
        self.finished.retain(|finished| Some(*finished) > all_until);
        self.skipped.retain(|skipped| Some(*skipped) > all_until);
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
/// A step of an attempt that a later one has left behind is not followed, also if the first steps of the later one were
/// removed since they were followed. At first only the newest step is, unless each step is. Then a step is followed also
/// if it became durable after newer ones.
pub fn next_step(
    durable: &BTreeSet<StepId>,
    followed: &FollowedSteps,
    rules: FollowRules,
) -> Option<NextStep> {
    let known = durable.iter().chain(&followed.finished).chain(&followed.skipped);
    let abandoned = abandoned_steps(known.copied());
    let mut waiting: Vec<StepId> = durable.iter().copied().collect();
    waiting.retain(|id| followed.is_waiting(*id, rules) && !abandoned.contains(id));
    if rules.each {
        let id = *waiting.first()?;
        return Some(NextStep { id, passed_over: Vec::new() });
    }
    let id = waiting.pop()?;
    let passed_over = if followed.newest().is_some() { waiting } else { Vec::new() };
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

    const EACH: FollowRules = FollowRules { each: true, every: None };
    const NEWEST: FollowRules = FollowRules { each: false, every: None };

    #[test]
    fn the_newest_is_followed_and_those_between_are_passed_over() {
        let rules = NEWEST;
        let mut followed = FollowedSteps::default();
        assert_eq!(next(&[], &followed, rules), None);
        assert_eq!(next(&[id(1, 1), id(1, 2)], &followed, rules), Some((id(1, 2), vec![])));
        followed.finish(id(1, 2), rules);
        assert_eq!(next(&[id(1, 1), id(1, 2)], &followed, rules), None);
        let later = [id(1, 1), id(1, 2), id(1, 3), id(1, 4)];
        assert_eq!(next(&later, &followed, rules), Some((id(1, 4), vec![id(1, 3)])));
        followed.skipped.insert(id(1, 4));
        assert_eq!(next(&later, &followed, rules), Some((id(1, 3), vec![])));
        followed.finish(id(1, 3), rules);
        assert_eq!(next(&later, &followed, rules), None);
        followed.finish(id(1, 4), rules);
        assert!(followed.skipped.is_empty());
    }

    #[test]
    fn each_step_is_followed_in_order_where_that_is_wanted() {
        let rules = FollowRules { each: true, every: Some(2) };
        let mut followed = FollowedSteps::default();
        let durable = [id(1, 1), id(1, 2), id(1, 3), id(1, 4)];
        assert_eq!(next(&durable, &followed, rules), Some((id(1, 2), vec![])));
        followed.finish(id(1, 2), rules);
        assert_eq!(next(&durable, &followed, rules), Some((id(1, 4), vec![])));
    }

    #[test]
    fn a_run_that_went_back_is_followed_from_there() {
        // 400 of the first attempt became durable late, and is abandoned.
        let durable = [id(1, 300), id(1, 400), id(2, 200)];
        for rules in [NEWEST, EACH] {
            let mut followed = FollowedSteps::default();
            followed.finish(id(1, 300), rules);
            assert_eq!(next(&durable, &followed, rules), Some((id(2, 200), vec![])));
            followed.finish(id(2, 200), rules);
            // It stays so when no step shows any more where the second attempt began.
            assert_eq!(next(&[id(1, 400), id(2, 600)], &followed, rules), Some((id(2, 600), vec![])));
            followed.finish(id(2, 600), rules);
            assert_eq!(next(&[id(1, 400), id(2, 600)], &followed, rules), None);
        }
    }

    #[test]
    fn each_step_is_followed_once_however_late_it_is_durable() {
        let mut followed = FollowedSteps::default();
        followed.finish(id(1, 2), EACH);
        followed.finish(id(1, 5), EACH);
        followed.skipped.insert(id(1, 4));
        let durable = [1, 2, 3, 4, 5].map(|step| id(1, step));
        assert_eq!(next(&durable, &followed, NEWEST), None);
        assert_eq!(next(&durable, &followed, EACH), Some((id(1, 1), vec![])));
        followed.finish(id(1, 1), EACH);
        assert_eq!(next(&durable, &followed, EACH), Some((id(1, 3), vec![])));
        followed.finish(id(1, 3), EACH);
        assert_eq!(next(&durable, &followed, EACH), None);
        // Those that were passed over once do not come again.
        followed.finish(id(1, 9), NEWEST);
        assert_eq!(followed, FollowedSteps { all_until: Some(id(1, 9)), ..FollowedSteps::default() });
        assert_eq!(next(&[id(1, 7), id(1, 10)], &followed, EACH), Some((id(1, 10), vec![])));
    }

    #[test]
    fn the_record_is_bounded() {
        let mut followed = FollowedSteps::default();
        let steps = MAX_FINISHED as u64 + 10;
        (1..=steps).for_each(|step| followed.finish(id(1, step), EACH));
        assert_eq!(followed.finished.len(), MAX_FINISHED);
        assert_eq!((followed.all_until, followed.newest()), (Some(id(1, 10)), Some(id(1, steps))));
        assert_eq!(next(&[id(1, 10), id(1, 11)], &followed, EACH), None);
    }

    #[test]
    fn a_later_revision_is_a_new_step() {
        let mut followed = FollowedSteps::default();
        let first = id(1, 100);
        let second = first.next_revision().unwrap();
        followed.finish(first, NEWEST);
        let found = next(&[first, second], &followed, NEWEST);
        assert_eq!(found, Some((second, vec![])));
    }
}

//! Properties of [`decide`] over random histories of one run. Each one finds the bug that is planted for it.

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};

use super::*;

type Decide = fn(&Facts<'_>) -> Result<Decision>;

/// What happens to the directory of a run.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A step is found, or saved where an agent sees it.
    Save { number: u64, seen: bool },
    /// A file is added to a known step.
    Amend(usize),
    /// A known step is found again, with other times.
    Touch(usize),
    /// Retention removes a known step that is not the newest.
    Remove(usize),
    /// stepvault restores a known step, and the trainer saves the next number.
    Restore(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_u64..12, any::<bool>()).prop_map(|(number, seen)| Event::Save { number: number * 10, seen }),
        2 => any::<usize>().prop_map(Event::Amend),
        1 => any::<usize>().prop_map(Event::Touch),
        1 => any::<usize>().prop_map(Event::Remove),
    ]
}

/// The steps of a run, as the tiers know them.
struct Run {
    decide: Decide,
    known: Vec<KnownStep>,
    resumed: Option<ResumedFrom>,
    seen_below: Option<Step>,
}

impl Run {
    fn new(decide: Decide) -> Self {
        Self { decide, known: Vec::new(), resumed: None, seen_below: None }
    }

    fn newest(&self) -> Option<StepId> {
        let stored = self.known.iter().filter(|known| known.content != Content::Removed);
        stored.map(|known| known.id).max()
    }

    /// Places a checkpoint that compares so with the steps of its number, and stores it if that is decided.
    fn place(&mut self, number: Step, content: Content, live: Option<LiveSave>, written: i64) -> Decision {
        let of_number = |known: &KnownStep| KnownStep {
            content: match known.content {
                Content::Removed => Content::Removed,
                _ if known.id.step == number => content,
                _ => Content::Other,
            },
            ..*known
        };
        let known: Vec<KnownStep> = self.known.iter().map(of_number).collect();
        let decision = (self.decide)(&Facts {
            known: &known,
            step: number,
            written_at: Timestamp::from_seconds(written),
            line: self.resumed.map_or(Line::Steps, |resumed| Line::Restored { resumed, below: None }),
            live,
            is_one_of_several: false,
            is_overwritten: false,
            unnumbered: false,
        })
        .unwrap();
        if let Placement::New(id) = decision.placement {
            assert!(self.known.iter().all(|known| known.id != id), "{id} is used twice");
            self.known.push(KnownStep {
                id,
                written_at: Some(Timestamp::from_seconds(written)),
                content: Content::Other,
                amends: false,
                is_here: false,
                began: None,
                unnumbered: false,
            });
            if let Some(resumed) = self.resumed.as_mut().filter(|_| !decision.amends) {
                resumed.attempt = Some(id.attempt);
            }
        }
        decision
    }

    fn stored(&self, index: usize) -> Option<StepId> {
        let stored = || self.known.iter().filter(|known| known.content != Content::Removed);
        let count = stored().count();
        stored().nth(index.checked_rem(count)?).map(|known| known.id)
    }

    fn happens(&mut self, event: Event, written: i64) -> Option<Decision> {
        match event {
            Event::Save { number, seen } => {
                let live = seen.then_some(LiveSave { after: self.seen_below });
                let decision = self.place(Step::new(number).unwrap(), Content::Other, live, written);
                if seen {
                    self.seen_below = decision.is_below_highest.then(|| Step::new(number).unwrap());
                }
                Some(decision)
            }
            Event::Amend(index) => {
                let id = self.stored(index)?;
                Some(self.place(id.step, Content::Amended, None, written))
            }
            Event::Touch(index) => {
                let id = self.stored(index)?;
                Some(self.place(id.step, Content::Same, None, written))
            }
            Event::Remove(index) => {
                let id = self.stored(index).filter(|id| Some(*id) != self.newest())?;
                let known = self.known.iter_mut().find(|known| known.id == id)?;
                (known.content, known.written_at) = (Content::Removed, None);
                None
            }
            Event::Restore(index) => {
                let id = self.stored(index)?;
                self.resumed =
                    Some(ResumedFrom { id, since: Timestamp::from_seconds(written), attempt: None });
                let next = Step::new(id.step.number() + 5).unwrap();
                Some(self.place(next, Content::Other, None, written))
            }
        }
    }
}

/// Without evidence the newest is the highest number that is stored; and no change to an old step moves anything.
fn newest_is_the_highest_number(decide: Decide) -> std::result::Result<(), String> {
    let events = prop::collection::vec((event(), 0_i64..1_000), 0..24);
    check(&events, |events| {
        let mut run = Run::new(decide);
        for (event, written) in events {
            let before = run.newest();
            let decision = run.happens(event, written);
            if decision.is_some_and(|decision| decision.began.is_some()) {
                return Ok(());
            }
            let highest = run.known.iter().filter(|known| known.content != Content::Removed);
            let highest = highest.map(|known| known.id.step).max();
            prop_assert_eq!(run.newest().map(|id| id.step), highest, "{:?}", event);
            if matches!(event, Event::Amend(_) | Event::Touch(_)) {
                prop_assert_eq!(run.newest().map(|id| id.step), before.map(|id| id.step));
            }
        }
        Ok(())
    })
}

/// The order in which the same steps are found does not matter, nor do their times.
fn order_of_discovery_does_not_matter(decide: Decide) -> std::result::Result<(), String> {
    let numbers = prop::collection::btree_map(1_u64..40, 0_i64..1_000, 1..12);
    let shuffled =
        numbers.prop_flat_map(|numbers| Just(numbers.into_iter().collect::<Vec<_>>()).prop_shuffle());
    check(&shuffled, |found| {
        let mut run = Run::new(decide);
        for (number, written) in found {
            run.happens(Event::Save { number, seen: false }, written);
        }
        let attempts: std::collections::BTreeSet<_> =
            run.known.iter().map(|known| known.id.attempt).collect();
        prop_assert_eq!(attempts.len(), 1);
        Ok(())
    })
}

/// After a restore of any step, the newest is what was saved after it.
fn newest_follows_a_restore(decide: Decide) -> std::result::Result<(), String> {
    let events = prop::collection::vec((event(), 0_i64..1_000), 1..12);
    check(&(events, any::<usize>()), |(events, index)| {
        let mut run = Run::new(decide);
        for (event, written) in events {
            run.happens(event, written);
        }
        if let Some(decision) = run.happens(Event::Restore(index), 0) {
            let Placement::New(id) = decision.placement else {
                return Err(TestCaseError::fail(format!("{decision:?}")));
            };
            prop_assert_eq!(run.newest(), Some(id));
        }
        Ok(())
    })
}

fn check<S: Strategy>(
    strategy: &S,
    property: impl Fn(S::Value) -> std::result::Result<(), TestCaseError>,
) -> std::result::Result<(), String> {
    TestRunner::default().run(strategy, property).map_err(|error| error.to_string())
}

#[test]
fn the_newest_is_the_highest_number_until_there_is_evidence() {
    newest_is_the_highest_number(decide).unwrap();
}

#[test]
fn any_order_of_discovery_gives_one_attempt() {
    order_of_discovery_does_not_matter(decide).unwrap();
}

#[test]
fn the_newest_after_a_restore_is_what_was_saved_since() {
    newest_follows_a_restore(decide).unwrap();
}

#[test]
fn each_planted_bug_is_found() {
    /// A changed step begins an attempt.
    fn moves_changed_steps(facts: &Facts<'_>) -> Result<Decision> {
        let mut decision = decide(facts)?;
        if let (Placement::New(id), true) = (&mut decision.placement, decision.amends) {
            *id = StepId::new(id.attempt.next()?, id.step);
        }
        Ok(decision)
    }
    /// A lower number that was written later begins an attempt.
    fn goes_by_times(facts: &Facts<'_>) -> Result<Decision> {
        let mut decision = decide(facts)?;
        let later = matches!(decision.concern, Some(Concern::WrittenAfter(_)));
        if let (Placement::New(id), true) = (&mut decision.placement, later) {
            *id = StepId::new(id.attempt.next()?, id.step);
        }
        Ok(decision)
    }
    /// A restore changes nothing.
    fn forgets_restores(facts: &Facts<'_>) -> Result<Decision> {
        decide(&Facts { line: Line::Steps, ..*facts })
    }
    newest_is_the_highest_number(moves_changed_steps).unwrap_err();
    order_of_discovery_does_not_matter(goes_by_times).unwrap_err();
    newest_follows_a_restore(forgets_restores).unwrap_err();
}

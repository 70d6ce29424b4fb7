//! Tracks which steps are being uploaded or removed from the vault: never both at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::report::RunStep;

/// An upload that does not stop within this time keeps its step.
const BROKEN_OFF_WITHIN: Duration = Duration::from_secs(10);

/// The steps in use. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Occupied {
    steps: Arc<Mutex<BTreeMap<RunStep, Work>>>,
    /// Counts changes.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Uploads(usize),
    /// The uploads have to stop, because the step is given up.
    BrokenOff(usize),
    Eviction,
}

/// Reserves a step until dropped.
#[derive(Debug)]
pub(crate) struct Place {
    occupied: Occupied,
    step: RunStep,
}

impl Occupied {
    /// Reserves a step for an upload; `None` while it is being evicted. Several remotes may upload one step.
    pub(crate) fn for_upload(&self, step: RunStep) -> Option<Place> {
        self.take(step, |there| match there {
            None => Some(Work::Uploads(1)),
            Some(Work::Uploads(count)) => Some(Work::Uploads(count + 1)),
            Some(Work::Eviction | Work::BrokenOff(_)) => None,
        })
    }

    /// Reserves a step for an eviction; `None` while it is in use.
    pub(crate) fn for_eviction(&self, step: RunStep) -> Option<Place> {
        self.take(step, |there| there.is_none().then_some(Work::Eviction))
    }

    /// Reserves a step for giving it up, after stopping its uploads. `None` while it is being evicted, or when an
    /// upload does not stop in time.
    pub(crate) async fn for_giving_up(&self, step: RunStep) -> Option<Place> {
        let mut changes = self.changes.subscribe();
        let is_free = {
            let mut steps = self.steps();
            match steps.get(&step).copied() {
                None => true,
                Some(Work::Uploads(count)) => {
                    steps.insert(step.clone(), Work::BrokenOff(count));
                    false
                }
                Some(Work::BrokenOff(_) | Work::Eviction) => return None,
            }
        };
        if is_free {
            return self.for_eviction(step);
        }
        self.changed();
        let all_ended = async {
            while self.steps().get(&step) != Some(&Work::BrokenOff(0)) {
                // The sender belongs to `self`, so this cannot fail.
                let _ = changes.changed().await;
            }
        };
        let ended = tokio::time::timeout(BROKEN_OFF_WITHIN, all_ended).await.is_ok();
        let mut steps = self.steps();
        if ended {
            steps.insert(step.clone(), Work::Eviction);
            drop(steps);
            return Some(Place {
                occupied: self.clone(),
                step,
            });
        }
        match steps.get(&step).copied() {
            Some(Work::BrokenOff(count)) if count > 0 => {
                steps.insert(step, Work::Uploads(count));
            }
            _ => {
                steps.remove(&step);
            }
        }
        None
    }

    /// Waits until the uploads of a step have to stop.
    pub(crate) async fn is_given_up(&self, step: &RunStep) {
        let mut changes = self.changes.subscribe();
        while !matches!(self.steps().get(step), Some(Work::BrokenOff(_))) {
            let _ = changes.changed().await;
        }
    }

    fn steps(&self) -> MutexGuard<'_, BTreeMap<RunStep, Work>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn take(&self, step: RunStep, next: impl FnOnce(Option<Work>) -> Option<Work>) -> Option<Place> {
        let mut steps = self.steps();
        let work = next(steps.get(&step).copied())?;
        steps.insert(step.clone(), work);
        drop(steps);
        Some(Place {
            occupied: self.clone(),
            step,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut steps = self.occupied.steps();
        match steps.get(&self.step).copied() {
            Some(Work::BrokenOff(count)) => {
                steps.insert(self.step.clone(), Work::BrokenOff(count.saturating_sub(1)));
            }
            Some(Work::Uploads(count)) if count > 1 => {
                steps.insert(self.step.clone(), Work::Uploads(count - 1));
            }
            _ => {
                steps.remove(&self.step);
            }
        }
        drop(steps);
        self.occupied.changed();
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::ids::{Attempt, RunName, Step, StepId};

    use super::*;

    #[test]
    fn uploads_share_a_step_and_an_eviction_takes_it_alone() {
        let occupied = Occupied::default();
        let id = StepId::new(Attempt::FIRST, Step::new(7).unwrap());
        let step = || RunStep {
            run: RunName::new("run").unwrap(),
            id,
        };
        let (first, second) = (occupied.for_upload(step()), occupied.for_upload(step()));
        assert!(first.is_some() && second.is_some() && occupied.for_eviction(step()).is_none());
        drop(first);
        assert!(occupied.for_eviction(step()).is_none());
        drop(second);
        let eviction = occupied.for_eviction(step());
        assert!(eviction.is_some() && occupied.for_upload(step()).is_none());
        drop(eviction);
        assert!(occupied.for_upload(step()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn giving_a_step_up_breaks_its_uploads_off_and_lets_no_other_begin() {
        let occupied = Occupied::default();
        let step = RunStep {
            run: RunName::new("run").unwrap(),
            id: StepId::new(Attempt::FIRST, Step::new(7).unwrap()),
        };
        let place = occupied.for_upload(step.clone()).unwrap();
        let lane = async {
            occupied.is_given_up(&step).await;
            assert!(occupied.for_upload(step.clone()).is_none(), "no other begins");
            drop(place);
        };
        let ((), given_up) = tokio::join!(lane, occupied.for_giving_up(step.clone()));
        assert!(given_up.is_some() && occupied.for_upload(step.clone()).is_none());
        drop(given_up);
        // An upload that does not stop keeps its step.
        let stubborn = occupied.for_upload(step.clone()).unwrap();
        assert!(occupied.for_giving_up(step.clone()).await.is_none());
        assert!(occupied.for_upload(step.clone()).is_some(), "uploads go on");
        drop(stubborn);
    }
}

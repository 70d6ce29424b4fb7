//! Which steps are being uploaded and which evicted: never both at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::report::RunStep;

/// The steps at work. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Occupied {
    steps: Arc<Mutex<BTreeMap<RunStep, Work>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Uploads(usize),
    Eviction,
}

/// Keeps a step occupied until dropped.
#[derive(Debug)]
pub(crate) struct Place {
    occupied: Occupied,
    step: RunStep,
}

impl Occupied {
    /// For an upload; `None` while the step is being evicted. Several remotes may upload one step.
    pub(crate) fn for_upload(&self, step: RunStep) -> Option<Place> {
        self.take(step, |there| match there {
            None => Some(Work::Uploads(1)),
            Some(Work::Uploads(count)) => Some(Work::Uploads(count + 1)),
            Some(Work::Eviction) => None,
        })
    }

    /// For an eviction; `None` while anybody else is at it.
    pub(crate) fn for_eviction(&self, step: RunStep) -> Option<Place> {
        self.take(step, |there| there.is_none().then_some(Work::Eviction))
    }

    fn take(&self, step: RunStep, next: impl FnOnce(Option<Work>) -> Option<Work>) -> Option<Place> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let work = next(steps.get(&step).copied())?;
        steps.insert(step.clone(), work);
        Some(Place {
            occupied: self.clone(),
            step,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut steps = self.occupied.steps.lock().unwrap_or_else(PoisonError::into_inner);
        match steps.get(&self.step).copied() {
            Some(Work::Uploads(count)) if count > 1 => {
                steps.insert(self.step.clone(), Work::Uploads(count - 1));
            }
            _ => {
                steps.remove(&self.step);
            }
        }
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
}

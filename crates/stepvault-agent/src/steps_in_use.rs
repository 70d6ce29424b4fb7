//! Tracks which steps are being uploaded or removed from the vault: never both at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::report::RunStep;

/// An upload that does not stop within this time keeps its step.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);

/// The steps in use. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepsInUse {
    steps: Arc<Mutex<BTreeMap<RunStep, Usage>>>,
    /// Counts changes.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Usage {
    Uploads(usize),
    /// The uploads have to stop, because the step is given up.
    Stopping(usize),
    Eviction,
}

/// Reserves a step until dropped.
#[derive(Debug)]
pub(crate) struct StepUse {
    in_use: StepsInUse,
    step: RunStep,
}

impl StepsInUse {
    /// Reserves a step for an upload; `None` while it is being evicted. Several remotes may upload one step.
    pub(crate) fn for_upload(&self, step: RunStep) -> Option<StepUse> {
        self.reserve(step, |usage| match usage {
            None => Some(Usage::Uploads(1)),
            Some(Usage::Uploads(count)) => Some(Usage::Uploads(count + 1)),
            Some(Usage::Eviction | Usage::Stopping(_)) => None,
        })
    }

    /// Reserves a step for an eviction; `None` while it is in use.
    pub(crate) fn for_eviction(&self, step: RunStep) -> Option<StepUse> {
        self.reserve(step, |usage| usage.is_none().then_some(Usage::Eviction))
    }

    /// Reserves a step for giving it up, after stopping its uploads. `None` while it is being evicted, or when an
    /// upload does not stop in time.
    pub(crate) async fn for_giving_up(&self, step: RunStep) -> Option<StepUse> {
        let mut changes = self.changes.subscribe();
        let is_free = {
            let mut steps = self.steps();
            match steps.get(&step).copied() {
                None => true,
                Some(Usage::Uploads(count)) => {
                    steps.insert(step.clone(), Usage::Stopping(count));
                    false
                }
                Some(Usage::Stopping(_) | Usage::Eviction) => return None,
            }
        };
        if is_free {
            return self.for_eviction(step);
        }
        self.changed();
        let all_ended = async {
            while self.steps().get(&step) != Some(&Usage::Stopping(0)) {
                // The sender belongs to `self`, so this cannot fail.
                let _ = changes.changed().await;
            }
        };
        let ended = tokio::time::timeout(STOPPED_WITHIN, all_ended).await.is_ok();
        let mut steps = self.steps();
        if ended {
            steps.insert(step.clone(), Usage::Eviction);
            drop(steps);
            return Some(StepUse {
                in_use: self.clone(),
                step,
            });
        }
        match steps.get(&step).copied() {
            Some(Usage::Stopping(count)) if count > 0 => {
                steps.insert(step, Usage::Uploads(count));
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
        while !matches!(self.steps().get(step), Some(Usage::Stopping(_))) {
            let _ = changes.changed().await;
        }
    }

    fn steps(&self) -> MutexGuard<'_, BTreeMap<RunStep, Usage>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn reserve(&self, step: RunStep, next: impl FnOnce(Option<Usage>) -> Option<Usage>) -> Option<StepUse> {
        let mut steps = self.steps();
        let usage = next(steps.get(&step).copied())?;
        steps.insert(step.clone(), usage);
        drop(steps);
        Some(StepUse {
            in_use: self.clone(),
            step,
        })
    }
}

impl Drop for StepUse {
    fn drop(&mut self) {
        let mut steps = self.in_use.steps();
        match steps.get(&self.step).copied() {
            Some(Usage::Stopping(count)) => {
                steps.insert(self.step.clone(), Usage::Stopping(count.saturating_sub(1)));
            }
            Some(Usage::Uploads(count)) if count > 1 => {
                steps.insert(self.step.clone(), Usage::Uploads(count - 1));
            }
            _ => {
                steps.remove(&self.step);
            }
        }
        drop(steps);
        self.in_use.changed();
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::ids::{Attempt, RunName, Step, StepId};

    use super::*;

    #[test]
    fn uploads_share_a_step_and_an_eviction_takes_it_alone() {
        let in_use = StepsInUse::default();
        let id = StepId::new(Attempt::FIRST, Step::new(7).unwrap());
        let step = || RunStep {
            run: RunName::new("run").unwrap(),
            id,
        };
        let (first, second) = (in_use.for_upload(step()), in_use.for_upload(step()));
        assert!(first.is_some() && second.is_some() && in_use.for_eviction(step()).is_none());
        drop(first);
        assert!(in_use.for_eviction(step()).is_none());
        drop(second);
        let eviction = in_use.for_eviction(step());
        assert!(eviction.is_some() && in_use.for_upload(step()).is_none());
        drop(eviction);
        assert!(in_use.for_upload(step()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn giving_a_step_up_breaks_its_uploads_off_and_lets_no_other_begin() {
        let in_use = StepsInUse::default();
        let step = RunStep {
            run: RunName::new("run").unwrap(),
            id: StepId::new(Attempt::FIRST, Step::new(7).unwrap()),
        };
        let upload = in_use.for_upload(step.clone()).unwrap();
        let worker = async {
            in_use.is_given_up(&step).await;
            assert!(in_use.for_upload(step.clone()).is_none(), "no other begins");
            drop(upload);
        };
        let ((), given_up) = tokio::join!(worker, in_use.for_giving_up(step.clone()));
        assert!(given_up.is_some() && in_use.for_upload(step.clone()).is_none());
        drop(given_up);
        // An upload that does not stop keeps its step.
        let stubborn = in_use.for_upload(step.clone()).unwrap();
        assert!(in_use.for_giving_up(step.clone()).await.is_none());
        assert!(in_use.for_upload(step.clone()).is_some(), "uploads go on");
        drop(stubborn);
    }
}

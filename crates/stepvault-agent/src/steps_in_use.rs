//! Tracks which steps are being uploaded or removed from the vault: never both at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, watch};

use crate::report::RunStep;

/// An upload that does not stop within this time keeps its step.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);

/// The steps in use. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepsInUse {
    /// Those that are in use or asked for.
    steps: Arc<Mutex<BTreeMap<RunStep, Weak<StepLock>>>>,
}

#[derive(Debug, Default)]
struct StepLock {
    /// Read by uploads, written by a removal.
    lock: Arc<RwLock<()>>,
    /// Whether the uploads have to stop, because the step is given up.
    stops: watch::Sender<bool>,
}

/// Reserves a step until dropped.
#[derive(Debug)]
pub(crate) struct StepUse {
    _guard: Guard,
    _step: Arc<StepLock>,
}

#[derive(Debug)]
#[expect(dead_code, reason = "the guards are held, not read")]
enum Guard {
    Upload(OwnedRwLockReadGuard<()>),
    Removal(OwnedRwLockWriteGuard<()>),
}

impl StepUse {
    fn new(guard: Guard, step: Arc<StepLock>) -> Self {
        Self { _guard: guard, _step: step }
    }
}

impl StepsInUse {
    fn step(&self, step: &RunStep) -> Arc<StepLock> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.retain(|_, lock| lock.strong_count() > 0);
        let known = steps.get(step).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let new = Arc::default();
            steps.insert(step.clone(), Arc::downgrade(&new));
            new
        })
    }

    /// Reserves a step for an upload; `None` while it is being evicted. Several remotes may upload one step.
    pub(crate) fn for_upload(&self, step: &RunStep) -> Option<StepUse> {
        let step = self.step(step);
        if *step.stops.borrow() {
            return None;
        }
        let guard = Guard::Upload(Arc::clone(&step.lock).try_read_owned().ok()?);
        Some(StepUse::new(guard, step))
    }

    /// Reserves a step for an eviction; `None` while it is in use.
    pub(crate) fn for_eviction(&self, step: &RunStep) -> Option<StepUse> {
        let step = self.step(step);
        let guard = Guard::Removal(Arc::clone(&step.lock).try_write_owned().ok()?);
        Some(StepUse::new(guard, step))
    }

    /// Reserves a step for giving it up, after stopping its uploads. `None` while it is being evicted, or when an
    /// upload does not stop in time.
    pub(crate) async fn for_giving_up(&self, step: &RunStep) -> Option<StepUse> {
        let step = self.step(step);
        // Uploads leave room for another reader, a removal does not.
        drop(step.lock.try_read().ok()?);
        step.stops.send_replace(true);
        let ended = Arc::clone(&step.lock).write_owned();
        let removal = tokio::time::timeout(STOPPED_WITHIN, ended).await.ok();
        step.stops.send_replace(false);
        Some(StepUse::new(Guard::Removal(removal?), step))
    }

    /// Waits until the uploads of a step have to stop.
    pub(crate) async fn is_given_up(&self, step: &RunStep) {
        let step = self.step(step);
        // The sender belongs to `step`, so this cannot fail.
        let _ = step.stops.subscribe().wait_for(|stops| *stops).await;
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
        let step = || RunStep { run: RunName::new("run").unwrap(), id };
        let (first, second) = (in_use.for_upload(&step()), in_use.for_upload(&step()));
        assert!(first.is_some() && second.is_some() && in_use.for_eviction(&step()).is_none());
        drop(first);
        assert!(in_use.for_eviction(&step()).is_none());
        drop(second);
        let eviction = in_use.for_eviction(&step());
        assert!(eviction.is_some() && in_use.for_upload(&step()).is_none());
        drop(eviction);
        assert!(in_use.for_upload(&step()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn giving_a_step_up_breaks_its_uploads_off_and_lets_no_other_begin() {
        let in_use = StepsInUse::default();
        let step = RunStep {
            run: RunName::new("run").unwrap(),
            id: StepId::new(Attempt::FIRST, Step::new(7).unwrap()),
        };
        let upload = in_use.for_upload(&step).unwrap();
        let worker = async {
            in_use.is_given_up(&step).await;
            assert!(in_use.for_upload(&step).is_none(), "no other begins");
            drop(upload);
        };
        let ((), given_up) = tokio::join!(worker, in_use.for_giving_up(&step));
        assert!(given_up.is_some() && in_use.for_upload(&step).is_none());
        drop(given_up);
        // An upload that does not stop keeps its step.
        let stubborn = in_use.for_upload(&step).unwrap();
        assert!(in_use.for_giving_up(&step).await.is_none());
        assert!(in_use.for_upload(&step).is_some(), "uploads go on");
        drop(stubborn);
    }
}

//! What the tasks of a service share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use stepvault_core::timestamp::Timestamp;
use stepvault_engine::cpu_share::CpuShare;
use stepvault_engine::upload::CopyInProgress;
use stepvault_local::vault::Vault;
use tokio::sync::{Mutex, Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, watch};
use tokio_util::sync::CancellationToken;

use crate::agent_status::Reporter;
use crate::announcements::Announcements;
use crate::drain::state::DrainState;
use crate::notifications::Notifier;
use crate::options::AgentOptions;
use crate::report::RunStep;
use crate::throughput::Throughput;

/// What the tasks of a service share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Arc<AgentOptions>,
    /// When the service started: what the trainer writes from then on belongs to this launch.
    pub(crate) started_at: Timestamp,
    pub(crate) vault: VaultAccess,
    pub(crate) reporter: Reporter,
    pub(crate) notifier: Notifier,
    pub(crate) signals: Arc<Signals>,
    pub(crate) drain: DrainState,
    pub(crate) throughput: Arc<Throughput>,
    pub(crate) announcements: Arc<Announcements>,
    /// The share of the processors that uploads may take until a stop is requested.
    pub(crate) cpu_share: CpuShare,
}

/// The vault, with what keeps the service's own tasks from disturbing each other in it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct VaultAccess {
    pub(crate) vault: Vault,
    pub(crate) in_use: StepsInUse,
    /// Held while sealing or determining attempts: one after the other, because their order matters.
    pub(crate) attempt_order: Arc<Mutex<()>>,
}

impl VaultAccess {
    pub(crate) fn new(vault: Vault) -> Self {
        Self { vault, in_use: StepsInUse::default(), attempt_order: Arc::default() }
    }
}

/// Signals between the tasks of a service.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Wakes each upload worker, in the order of the configured remotes.
    pub(crate) uploads: Vec<Arc<Notify>>,
    /// Wakes the eviction of local copies.
    pub(crate) eviction: Notify,
    /// Bytes that sealing lacked, for the next eviction.
    missing_bytes: AtomicU64,
    /// Wakes the task that determines attempts.
    pub(crate) attempts: Notify,
    /// The step that is being copied into the vault, for the upload workers.
    pub(crate) copy: CopyInProgress,
    /// Set when nothing more will be sealed.
    pub(crate) all_sealed: CancellationToken,
    /// Set when the attempts of all sealed steps are determined, or will not be by this service.
    pub(crate) all_determined: CancellationToken,
}

impl Signals {
    /// Creates the signals for this number of upload workers.
    pub(crate) fn new(upload_workers: usize) -> Self {
        Self { uploads: (0..upload_workers).map(|_| Arc::default()).collect(), ..Self::default() }
    }

    /// Wakes the upload workers, because the vault has changed.
    pub(crate) fn wake_uploads(&self) {
        self.uploads.iter().for_each(|worker| worker.notify_one());
    }

    /// Asks for evictions until this many bytes are free, as far as possible.
    pub(crate) fn request_bytes(&self, bytes: u64) {
        self.missing_bytes.fetch_max(bytes.max(1), Ordering::Relaxed);
        self.eviction.notify_one();
    }

    /// Returns the bytes that were asked for since the last call; 0 if none were.
    pub(crate) fn take_requested_bytes(&self) -> u64 {
        self.missing_bytes.swap(0, Ordering::Relaxed)
    }
}

/// An upload that does not stop within this time keeps its step.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);

/// The steps in use. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepsInUse {
    /// Those that are in use or asked for.
    steps: Arc<parking_lot::Mutex<BTreeMap<RunStep, Weak<StepLock>>>>,
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

impl StepsInUse {
    fn step(&self, step: &RunStep) -> Arc<StepLock> {
        let mut steps = self.steps.lock();
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
        Some(StepUse { _guard: guard, _step: step })
    }

    /// Reserves a step for an eviction; `None` while it is in use.
    pub(crate) fn for_eviction(&self, step: &RunStep) -> Option<StepUse> {
        let step = self.step(step);
        let guard = Guard::Removal(Arc::clone(&step.lock).try_write_owned().ok()?);
        Some(StepUse { _guard: guard, _step: step })
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
        Some(StepUse { _guard: Guard::Removal(removal?), _step: step })
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

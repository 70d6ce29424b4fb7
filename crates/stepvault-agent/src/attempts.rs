//! The task that determines the attempts of steps that were sealed while no remote answered, and of steps whose attempt
//! turned out to be taken. Nothing of these steps is sent before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stepvault_core::Error;
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::observe::{Observer, SilentObserver};
use stepvault_engine::push::{Determined, Outcome, Placer, determine_attempts, provisional_steps};
use stepvault_engine::run_remote::RunRemote;
use stepvault_local::sealed::SealedStep;

use crate::agent_status::Trouble;
use crate::pause::{LONGEST, Pause};
use crate::report::StepOnRemote;
use crate::shared::Shared;
use crate::timeout_store::TimeoutStore;

/// Maximum pause after a failure while the service is stopping.
const LONGEST_WHEN_STOPPING: Duration = Duration::from_secs(2);

/// Determines the attempts of one run's steps.
#[derive(Debug)]
pub(crate) struct OpenRun {
    pub(crate) run: RunName,
    remotes: Vec<RunRemote>,
    placer: Placer,
    /// Number of times that no remote answered.
    outages: AtomicU64,
}

impl OpenRun {
    pub(crate) fn new(run: RunName, remotes: Vec<RunRemote>, placer: Placer) -> Self {
        Self {
            run,
            remotes,
            placer,
            outages: AtomicU64::new(0),
        }
    }

    /// Returns how often no remote answered: a lane that was connected before has to verify its remote again then.
    pub(crate) fn outages(&self) -> u64 {
        self.outages.load(Ordering::Relaxed)
    }

    /// Returns the remotes, each with a short timeout that no earlier failure shortens further: sealing waits
    /// meanwhile.
    fn timed_remotes(&self) -> Vec<RunRemote> {
        let timed =
            |remote: &RunRemote| remote.through(Arc::new(TimeoutStore::new(Arc::clone(&remote.store))));
        self.remotes.iter().map(timed).collect()
    }

    /// Determines all open attempts. Reports and returns the error that prevents it.
    pub(crate) async fn determine(&self, shared: &Shared) -> Option<Error> {
        let about = format!("attempts {}", self.run);
        match self.try_determine(shared).await {
            Ok(determined) => {
                for one in &determined {
                    self.determined(shared, one);
                }
                if !determined.is_empty() {
                    shared.status.is_well(&about);
                    shared.wake_lanes();
                }
                None
            }
            Err((open, error)) => {
                self.outages.fetch_add(1, Ordering::Relaxed);
                let why = |error: &str| {
                    format!("its attempt is provisional because no remote has answered: {error}")
                };
                let reason = why(&error.to_string());
                for remote in &self.remotes {
                    let here = StepOnRemote {
                        run: self.run.clone(),
                        id: open,
                        remote: remote.name().clone(),
                    };
                    let trouble = Trouble {
                        reason: reason.clone(),
                        ..Trouble::of(&error)
                    };
                    shared.status.remote_failed(&here, trouble);
                    let text = format!(
                        "{} of {} is not durable on {}: {}",
                        open,
                        self.run,
                        here.remote,
                        why(&error.text_with_hint())
                    );
                    shared.warn(&format!("{about} {}", here.remote), &text);
                }
                Some(error)
            }
        }
    }

    /// The error comes with a step that it concerns.
    async fn try_determine(&self, shared: &Shared) -> Result<Vec<Determined>, (StepId, Error)> {
        let _placing = shared.placing.lock().await;
        let open = provisional_steps(&shared.vault, &self.run).await;
        // Uploads report an unreadable vault.
        let Some(first) = open.ok().and_then(|steps| steps.first().map(SealedStep::id)) else {
            return Ok(Vec::new());
        };
        if self.remotes.is_empty() {
            return Ok(Vec::new());
        }
        // This function itself warns about unreachable remotes, once.
        let observer: Arc<dyn Observer> = Arc::new(SilentObserver);
        determine_attempts(
            &shared.vault,
            &self.timed_remotes(),
            &self.run,
            &self.placer,
            &observer,
        )
        .await
        .map_err(|error| (first, error))
    }

    fn determined(&self, shared: &Shared, one: &Determined) {
        match &one.outcome {
            Outcome::Placed(step) => shared.status.renamed(&self.run, one.before, step.id()),
            Outcome::Duplicate(id) => shared.status.renamed(&self.run, one.before, *id),
            Outcome::NoPlace(error) => {
                let directory = shared.vault.root();
                shared.status.skipped(&self.run, directory, error.to_string());
            }
        }
    }
}

/// The task that determines attempts.
#[derive(Debug)]
pub(crate) struct AttemptTask {
    shared: Arc<Shared>,
    runs: Vec<Arc<OpenRun>>,
    /// Whether to end instead of waiting for an unreachable remote.
    once: bool,
    /// Whether the remotes' fault needs an operator.
    needs_operator: bool,
    pause: Pause,
}

impl AttemptTask {
    pub(crate) fn new(shared: Arc<Shared>, runs: Vec<Arc<OpenRun>>, once: bool) -> Self {
        Self {
            shared,
            runs,
            once,
            needs_operator: false,
            pause: Pause::default(),
        }
    }

    /// Determines attempts until nothing more will be sealed and no attempt is open.
    pub(crate) async fn work(mut self) {
        loop {
            // Checked before the scan: a step sealed in between is found by the next scan.
            let ending = self.shared.all_sealed.is_cancelled();
            let stopping = self.shared.stopping.is_requested();
            let is_open = self.determine_all().await;
            if ending && (!is_open || self.once || self.needs_operator) {
                break;
            }
            let retry = async {
                match self.pause.until().filter(|_| is_open) {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.shared.provisional.notified(), if !is_open => {}
                () = self.shared.all_sealed.cancelled(), if !ending => {}
                () = self.shared.stopping.wait(), if !stopping => {}
                () = retry => {}
            }
        }
        self.shared.all_determined.cancel();
        self.shared.wake_lanes();
    }

    /// Determines all open attempts; returns whether one is still open.
    async fn determine_all(&mut self) -> bool {
        let mut failure = None;
        for run in &self.runs {
            failure = run.determine(&self.shared).await.or(failure);
        }
        let Some(error) = failure else {
            self.pause.clear();
            return false;
        };
        self.needs_operator = error.needs_operator();
        let longest = if self.shared.stopping.is_requested() {
            LONGEST_WHEN_STOPPING
        } else {
            LONGEST
        };
        self.pause.failed(longest, error.retry_after_wait());
        true
    }
}

//! The task that determines the attempts of steps that were sealed while no remote answered, and of steps whose attempt
//! turned out to be taken. Nothing of these steps is sent before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stepvault_core::{Error, Observer, RunName, SilentObserver, StepId};
use stepvault_engine::placement::{
    CurrentWriter, Determined, Outcome, determine_attempts, provisional_steps,
};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::sealed::SealedStep;

use crate::agent_status::Trouble;
use crate::pause::{LONGEST, LONGEST_WHEN_DRAINING, Pause, sleep_until};
use crate::remotes::TimeoutStore;
use crate::report::StepOnRemote;
use crate::shared::{Shared, VaultAccess};

/// Determines the attempts of one run's steps.
#[derive(Debug)]
pub(crate) struct OpenRun {
    pub(crate) run: RunName,
    remotes: Vec<RunRemote>,
    current: CurrentWriter,
    /// Number of times that no remote answered.
    outages: AtomicU64,
}

impl OpenRun {
    pub(crate) fn new(run: RunName, remotes: Vec<RunRemote>, current: CurrentWriter) -> Self {
        Self { run, remotes, current, outages: AtomicU64::new(0) }
    }

    /// Returns how often no remote answered: an upload worker that was connected before has to
    /// verify its remote again then.
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

    /// Determines all provisional attempts. Reports and returns the error that prevents it.
    pub(crate) async fn determine(&self, shared: &Shared) -> Option<Error> {
        let (subject, reporter) = (format!("attempts {}", self.run), &shared.reporter);
        match self.try_determine(&shared.vault).await {
            Ok(determined) => {
                for one in &determined {
                    self.record(shared, one);
                }
                if !determined.is_empty() {
                    reporter.resolved(&subject);
                    shared.signals.wake_uploads();
                }
                None
            }
            Err((provisional, error)) => {
                self.outages.fetch_add(1, Ordering::Relaxed);
                let why = |error: &str| {
                    format!("its attempt is provisional because no remote has answered: {error}")
                };
                for remote in &self.remotes {
                    let trouble = Trouble { reason: why(&error.to_string()), ..Trouble::of(&error) };
                    let step = StepOnRemote::new(&self.run, provisional, remote.name());
                    reporter.status.remote_failed(&step, trouble);
                    let text = format!(
                        "{provisional} of {} is not durable on {}: {}",
                        self.run,
                        step.remote,
                        why(&error.text_with_hint())
                    );
                    reporter.warn_once(&format!("{subject} {}", step.remote), &text);
                }
                Some(error)
            }
        }
    }

    /// The error comes with a step that it concerns.
    async fn try_determine(&self, access: &VaultAccess) -> Result<Vec<Determined>, (StepId, Error)> {
        let (vault, _in_order) = (&access.vault, access.attempt_order.lock().await);
        let provisional = provisional_steps(vault, &self.run).await;
        // Uploads report an unreadable vault.
        let Some(first) = provisional.ok().and_then(|steps| steps.first().map(SealedStep::id)) else {
            return Ok(Vec::new());
        };
        if self.remotes.is_empty() {
            return Ok(Vec::new());
        }
        // This type itself warns about unreachable remotes, once.
        let observer: Arc<dyn Observer> = Arc::new(SilentObserver);
        let remotes = self.timed_remotes();
        determine_attempts(vault, &remotes, &self.run, &self.current, &observer)
            .await
            .map_err(|error| (first, error))
    }

    fn record(&self, shared: &Shared, one: &Determined) {
        let status = &shared.reporter.status;
        for remark in &one.remarks {
            shared
                .reporter
                .warn_once(&format!("place {} {remark}", self.run), &format!("{}: {remark}", self.run));
        }
        match &one.outcome {
            Outcome::Placed(step) => status.renamed(&self.run, one.before, step.id()),
            Outcome::Duplicate(id) => status.renamed(&self.run, one.before, *id),
            Outcome::NoPlace(error) => {
                status.skipped(&self.run, shared.vault.vault.root(), error.to_string());
            }
        }
    }
}

/// The task that determines attempts.
#[derive(Debug)]
pub(crate) struct AttemptTask {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Vec<Arc<OpenRun>>,
}

impl AttemptTask {
    /// Determines attempts until nothing more will be sealed and no attempt is provisional.
    pub(crate) async fn work(self) {
        let (signals, stop) = (&self.shared.signals, &self.shared.drain.stop);
        let mut pause = Pause::default();
        loop {
            // Checked before the scan: a step sealed in between is found by the next scan.
            let ending = signals.all_sealed.is_cancelled();
            let stopping = stop.is_requested();
            let failure = self.determine_all().await;
            // A single round does not wait for an unreachable remote.
            let ends_open = |error: &Error| self.shared.options.lifecycle.once || error.needs_operator();
            if ending && failure.as_ref().is_none_or(ends_open) {
                break;
            }
            let retry_at = failure.as_ref().and_then(|error| {
                let longest = if stop.is_requested() { LONGEST_WHEN_DRAINING } else { LONGEST };
                pause.failed(longest, error.retry_after_wait());
                pause.until()
            });
            if failure.is_none() {
                pause.clear();
            }
            tokio::select! {
                () = signals.attempts.notified(), if failure.is_none() => {}
                () = signals.all_sealed.cancelled(), if !ending => {}
                () = stop.wait(), if !stopping => {}
                () = sleep_until(retry_at) => {}
            }
        }
        signals.all_determined.cancel();
        signals.wake_uploads();
    }

    /// Determines all provisional attempts; returns the error that prevents one.
    async fn determine_all(&self) -> Option<Error> {
        let mut failure = None;
        for run in &self.runs {
            let determined = run.determine(&self.shared).await;
            failure = determined.or(failure);
        }
        failure
    }
}

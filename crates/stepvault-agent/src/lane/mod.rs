//! Upload worker for one remote: uploads waiting steps, the newest first; remotes do not block each other.

mod backlog;
mod hurried;
mod queue;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::ids::{NodeName, RemoteName, StepId};
use stepvault_core::nodes::Writer;
use stepvault_core::observe::Event;
use stepvault_core::retention::KeepRules;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::exclusive::ExclusiveRun;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::push::reopen_attempt;
use stepvault_engine::run_remote::RunRemote;
use stepvault_engine::upload::{UploadSession, Uploaded};
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::agent_status::Trouble;
use crate::attempts::OpenRun;
use crate::outcome::{AfterUpload, after_upload};
use crate::pause::{LONGEST, Pause};
use crate::report::{RunStep, StepOnRemote};
use crate::shared::Shared;
use queue::Choice;
pub(crate) use queue::is_durable;
use waits::Waits;

/// Number of consecutive failures after which a drain gives a step up; the next start resumes it.
const TRIES_IN_DRAIN: u32 = 8;
/// The same for a single round.
const TRIES_ONCE: u32 = 3;

/// One run on the lane's remote.
#[derive(Debug)]
pub(crate) struct LaneRun {
    remote: RunRemote,
    /// Determines the run's attempts.
    attempts: Arc<OpenRun>,
    keep: KeepRules,
    /// Opened for the first step.
    lane: Option<UploadSession>,
    /// The writer, for an exclusive run.
    exclusive: Option<Writer>,
    /// The exclusive right, once taken.
    held: Option<ExclusiveRun>,
    /// Whether the remote was unreachable since it was last verified.
    was_out: bool,
    /// How often no remote of the run had answered when this one last did.
    outages: u64,
    pause: Pause,
    /// Whether the remote was unreachable and this service, which is about to end, does not wait for it.
    given_up: bool,
    tries: BTreeMap<StepId, Tries>,
    waits: Waits,
    /// Steps that retention would remove anyway, when time is short.
    standing_back: BTreeSet<StepId>,
}

#[derive(Debug, Default)]
struct Tries {
    pause: Pause,
    /// Whether it is not retried before this service ends. A lasting service gives nothing up.
    given_up: bool,
}

/// A failed upload.
struct UploadFailure {
    error: Error,
    /// Whether it failed before anything of the step was checked.
    opening: bool,
}

impl From<Error> for UploadFailure {
    fn from(error: Error) -> Self {
        Self {
            error,
            opening: false,
        }
    }
}

impl LaneRun {
    /// `exclusive` is the writer, for an exclusive run.
    pub(crate) fn new(
        remote: RunRemote,
        keep: KeepRules,
        attempts: Arc<OpenRun>,
        exclusive: Option<Writer>,
    ) -> Self {
        Self {
            remote,
            attempts,
            keep,
            lane: None,
            exclusive,
            held: None,
            was_out: false,
            outages: 0,
            pause: Pause::default(),
            given_up: false,
            tries: BTreeMap::new(),
            waits: Waits::default(),
            standing_back: BTreeSet::new(),
        }
    }

    /// Takes the exclusive right to write the run, if configured.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] while another job has it.
    async fn hold(&mut self, vault: &Vault) -> Result<()> {
        let Some(writer) = &self.exclusive else {
            return Ok(());
        };
        if !self.held.as_ref().is_some_and(ExclusiveRun::is_current) {
            self.held = None;
            self.held = Some(ExclusiveRun::take(&self.remote, vault, writer).await?);
        }
        Ok(())
    }

    fn on_remote(&self, id: StepId) -> StepOnRemote {
        StepOnRemote {
            run: self.remote.keys.run().clone(),
            id,
            remote: self.remote.name().clone(),
        }
    }
}

/// The task of one remote.
#[derive(Debug)]
pub(crate) struct LaneTask {
    pub(crate) shared: Arc<Shared>,
    pub(crate) remote: RemoteName,
    pub(crate) budget: MemoryBudget,
    pub(crate) runs: Vec<LaneRun>,
    pub(crate) wake: Arc<Notify>,
    /// Notified of every step that becomes durable.
    pub(crate) uploaded: Arc<Notify>,
    pub(crate) maximum_backlog_steps: usize,
    pub(crate) incomplete_after: Duration,
    /// Whether to end instead of waiting for an unreachable remote.
    pub(crate) once: bool,
    pub(crate) next_run: usize,
    /// Whether pauses were cut short when the service was asked to stop.
    pub(crate) hurried: bool,
}

impl LaneTask {
    /// Uploads until nothing more will be sealed and no step waits.
    pub(crate) async fn work(mut self) {
        loop {
            // Checked before the scan: a step sealed in between is found by the next scan.
            let ending = self.shared.all_determined.is_cancelled();
            match self.choose().await {
                Choice::Upload(run, step) => self.upload_unless_it_gives_way(run, &step).await,
                Choice::Nothing if ending => break,
                Choice::Nothing => self.rest(None, ending).await,
                Choice::Later(until) => self.rest(Some(until), ending).await,
            }
        }
        for run in self.runs {
            if let Some(held) = run.held {
                held.release().await;
            }
        }
    }

    async fn rest(&self, until: Option<Instant>, ending: bool) {
        let time = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.wake.notified() => {}
            () = self.shared.all_determined.cancelled(), if !ending => {}
            () = self.shared.stopping.wait(), if !self.hurried => {}
            () = time => {}
        }
    }

    /// Uploads a step, and preempts it if time is short and another step has the better chance. The journal keeps what
    /// was sent.
    async fn upload_unless_it_gives_way(&mut self, index: usize, step: &SealedStep) {
        let here = self.runs[index].on_remote(step.id());
        let gives_way = self
            .outlook(self.not_for_now(true))
            .until_it_gives_way(here.run.clone(), here.id);
        let (occupied, of_run) = (
            self.shared.occupied.clone(),
            RunStep {
                run: here.run.clone(),
                id: here.id,
            },
        );
        let why = tokio::select! {
            () = self.upload(index, step) => return,
            () = gives_way => "upload preempted by another step",
            () = occupied.is_given_up(&of_run) => "upload stopped: the vault gives the step up for lack of space",
        };
        self.shared.status.upload_gave_way(&here);
        tracing::info!(run = %here.run, id = %here.id, remote = %here.remote, "{why}");
    }

    async fn upload(&mut self, index: usize, step: &SealedStep) {
        let id = step.id();
        let here = self.runs[index].on_remote(id);
        let Some(place) = self.shared.occupied.for_upload(RunStep {
            run: here.run.clone(),
            id,
        }) else {
            // Being evicted: it is durable wherever it must be, and gone at the next scan.
            self.runs[index]
                .tries
                .entry(id)
                .or_default()
                .pause
                .failed(LONGEST, None);
            return;
        };
        self.shared.status.upload_began(&here);
        let _busy = self.shared.rates.busy(&here.remote);
        let uploaded = self.try_upload(index, step).await;
        drop(place);
        match uploaded {
            Ok(Uploaded::Waiting { missing }) => self.waits(index, &here, &missing),
            Ok(uploaded) => {
                let run = &mut self.runs[index];
                run.pause.clear();
                run.tries.remove(&id);
                run.waits.forget(id);
                self.shared
                    .status
                    .upload_done(&here, uploaded == Uploaded::Durable);
                self.is_well(&here);
                self.uploaded.notify_one();
                self.shared.evict.notify_one();
            }
            // Its part is uploaded. The next start checks the others' parts.
            Err(failure) if self.runs[index].waits.had_last_look(id) => {
                let trouble = Trouble {
                    lacks_parts: true,
                    ..Trouble::of(&failure.error)
                };
                self.shared.status.step_failed(&here, trouble);
            }
            Err(failure) => self.failed(index, &here, &failure).await,
        }
    }

    async fn try_upload(
        &mut self,
        index: usize,
        step: &SealedStep,
    ) -> std::result::Result<Uploaded, UploadFailure> {
        // Read before the remote answers: an outage that begins meanwhile is handled with the next step.
        let outages = self.runs[index].attempts.outages();
        let lane = self
            .open_lane(index)
            .await
            .map_err(|error| UploadFailure { error, opening: true })?;
        let run = &mut self.runs[index];
        run.was_out = false;
        run.outages = outages;
        if run.waits.next_look(step.id()).is_some() {
            return Ok(lane.settle(step).await?);
        }
        Ok(lane.upload(step).await?)
    }

    /// Returns the run's lane, opened for the first step, and verified again after an outage.
    async fn open_lane(&mut self, index: usize) -> Result<UploadSession> {
        let run = &mut self.runs[index];
        if let Some(lane) = run.lane.clone() {
            if run.was_out || run.attempts.outages() != run.outages {
                lane.recognise().await?;
            }
            run.hold(&self.shared.vault).await?;
            return Ok(lane);
        }
        let (vault, budget) = (self.shared.vault.clone(), self.budget.clone());
        let observer = Arc::clone(&self.shared.observer);
        let lane = UploadSession::open(run.remote.clone(), vault, budget, observer).await?;
        run.hold(&self.shared.vault).await?;
        Ok(run.lane.insert(lane).clone())
    }

    /// Records that this node's part is uploaded and other parts are missing.
    fn waits(&mut self, index: usize, here: &StepOnRemote, missing: &[NodeName]) {
        let run = &mut self.runs[index];
        run.pause.clear();
        run.tries.remove(&here.id);
        let waiting = run.waits.missing(here.id, missing, self.incomplete_after);
        let trouble = Trouble {
            lacks_parts: true,
            ..Trouble::waiting(waiting.reason.clone())
        };
        self.shared.status.step_failed(here, trouble);
        self.is_well(here);
        if waiting.is_incomplete {
            let text = format!(
                "{} of {} is not durable on {}: {} (later steps continue, and it is committed when the parts arrive; \
                 if those nodes write no files of their own, declare only the others with --nodes)",
                here.id, here.run, here.remote, waiting.reason
            );
            self.shared.warn(
                &format!("incomplete {} {} {}", here.run, here.id, here.remote),
                &text,
            );
        }
    }

    /// Records the failure and when to retry. A step stays queued for as long as it is in the vault, whatever the
    /// failure: only a service that is about to end stops trying.
    async fn failed(&mut self, index: usize, here: &StepOnRemote, failure: &UploadFailure) {
        let error = &failure.error;
        let reopening = if error.is_name_taken() {
            self.reopen_attempt(index, here, error).await
        } else {
            Reopening::Refused
        };
        if reopening == Reopening::Done {
            return;
        }
        let still_there = self.is_sealed(here).await;
        let is_ending = self.once || self.shared.stopping.is_requested();
        let longest = self.longest_pause(error);
        let run = &mut self.runs[index];
        // The step's own part may be gone as well: the upload checks that, and resumes where necessary.
        run.waits.forget(here.id);
        let asked_for = error.retry_after_wait();
        let after = match reopening {
            Reopening::Later => AfterUpload::StepLater,
            _ => after_upload(error, failure.opening),
        };
        // The remote may have been changed by hand meanwhile: it is verified again with the next step.
        run.was_out = after == AfterUpload::RemoteLater;
        if !run.was_out {
            run.lane = None;
        }
        let trouble = Trouble::of(error);
        let about = match after {
            AfterUpload::RemoteLater => {
                run.pause.failed(longest, asked_for);
                run.given_up = self.once || is_ending && trouble.needs_operator;
                self.shared.status.remote_failed(here, trouble);
                about_remote(here)
            }
            AfterUpload::StepLater if still_there => {
                let tries = run.tries.entry(here.id).or_default();
                tries.pause.failed(longest, asked_for);
                let enough = if self.once { TRIES_ONCE } else { TRIES_IN_DRAIN };
                // A full disk says nothing about the step.
                let patient = error.kind() == ErrorKind::NoSpace && !self.once;
                tries.given_up =
                    is_ending && (trouble.needs_operator || !patient && tries.pause.failures() >= enough);
                self.shared.status.step_failed(here, trouble);
                about_step(here)
            }
            AfterUpload::StepLater => {
                self.shared.status.upload_done(here, false);
                return;
            }
        };
        let text = format!(
            "{} of {} is not durable on {}: {}",
            here.id,
            here.run,
            here.remote,
            error.text_with_hint()
        );
        tracing::debug!(run = %here.run, id = %here.id, remote = %here.remote, %error, "not uploaded; retrying later");
        // One cause is reported once, whichever of a step's objects it affected first.
        let identity = format!(
            "{}: {}",
            error.kind().name(),
            error.why_text().unwrap_or_default()
        );
        if self.shared.status.is_news(&about, &identity) {
            self.shared.observer.on_event(&Event::Warning { message: &text });
        }
    }

    /// Determines another attempt for a step whose attempt is taken, unless the attempt was given explicitly or too
    /// many were tried.
    async fn reopen_attempt(&self, index: usize, here: &StepOnRemote, error: &Error) -> Reopening {
        let step = RunStep {
            run: here.run.clone(),
            id: here.id,
        };
        let Some(alone) = self.shared.occupied.for_eviction(step) else {
            return Reopening::Later;
        };
        let (vault, run, id) = (self.shared.vault.clone(), here.run.clone(), here.id);
        let sealed = blocking(move || vault.step(&run, id)).await;
        let reopened = match sealed {
            Ok(Some(step)) => reopen_attempt(&self.shared.vault, &step, error).await,
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        drop(alone);
        match reopened {
            Ok(true) => {}
            Ok(false) => return Reopening::Refused,
            Err(error) => {
                tracing::warn!(%error, "cannot determine a new attempt for a step whose attempt is taken");
                return Reopening::Later;
            }
        }
        self.shared.status.upload_gave_way(here);
        let text = format!(
            "{} of {} is sealed under a new attempt: {error}",
            here.id, here.run
        );
        self.shared.observer.on_event(&Event::Warning { message: &text });
        self.runs[index].attempts.determine(&self.shared).await;
        self.shared.provisional.notify_one();
        Reopening::Done
    }

    fn is_well(&self, here: &StepOnRemote) {
        self.shared.status.is_well(&about_remote(here));
        self.shared.status.is_well(&about_step(here));
    }

    async fn is_sealed(&self, here: &StepOnRemote) -> bool {
        let (vault, run, id) = (self.shared.vault.clone(), here.run.clone(), here.id);
        // An unreadable step exists.
        blocking(move || Ok(vault.step(&run, id)?.is_some()))
            .await
            .unwrap_or(true)
    }
}

/// Whether a step whose attempt is taken gets another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reopening {
    /// It does, as soon as a remote answers.
    Done,
    /// Another remote is uploading the step: not before that has ended.
    Later,
    /// Its attempt stays.
    Refused,
}

fn about_remote(here: &StepOnRemote) -> String {
    format!("upload {} {}", here.run, here.remote)
}

fn about_step(here: &StepOnRemote) -> String {
    format!("upload {} {} {}", here.run, here.remote, here.id)
}

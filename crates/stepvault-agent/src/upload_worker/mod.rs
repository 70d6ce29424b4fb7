//! Upload worker for one remote: uploads waiting steps, the newest first; remotes do not block each other.

mod choice;
mod deferral;
mod draining;
mod missing_parts;
mod run_uploads;
mod small_steps;

use std::sync::Arc;
use std::time::Duration;

use stepvault_core::ids::{NodeName, RemoteName};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::cpu_share::CpuShare;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::placement::make_provisional_again;
use stepvault_engine::tier::lost_steps::forget_lost_steps;
use stepvault_engine::upload::{SharedDigests, UploadSession, Uploaded};
use stepvault_local::sealed::SealedStep;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::agent_status::Trouble;
use crate::drain::DrainState;
use crate::outcome::{AfterUpload, after_upload};
use crate::pause::{LONGEST, sleep_until};
use crate::report::StepOnRemote;
use crate::reporter::Reporter;
use crate::signals::Signals;
use crate::throughput::Throughput;
use crate::vault_access::VaultAccess;
use choice::Choice;
pub(crate) use run_uploads::RunUploads;

/// Number of consecutive failures after which a drain gives a step up; the next start resumes it.
const TRIES_IN_DRAIN: u32 = 8;
/// The same for a single round.
const TRIES_ONCE: u32 = 3;

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

/// The task that uploads to one remote.
#[derive(Debug)]
pub(crate) struct UploadWorker {
    pub(crate) vault: VaultAccess,
    pub(crate) reporter: Reporter,
    pub(crate) signals: Arc<Signals>,
    pub(crate) drain: DrainState,
    pub(crate) throughput: Arc<Throughput>,
    pub(crate) remote: RemoteName,
    pub(crate) budget: MemoryBudget,
    pub(crate) cpu_share: CpuShare,
    /// Shared by the workers of all remotes.
    pub(crate) digests: SharedDigests,
    pub(crate) runs: Vec<RunUploads>,
    pub(crate) wake: Arc<Notify>,
    /// Notified of every step that becomes durable.
    pub(crate) uploaded: Arc<Notify>,
    pub(crate) maximum_backlog_steps: usize,
    pub(crate) incomplete_after: Duration,
    /// This node.
    pub(crate) node: NodeName,
    /// How often it compares what the vault takes for durable with what the remote lists.
    pub(crate) comparison_interval: Duration,
    /// Whether to end instead of waiting for an unreachable remote.
    pub(crate) once: bool,
    pub(crate) next_run: usize,
    /// Whether pauses were cut short when the service was asked to stop.
    pub(crate) is_draining: bool,
}

impl UploadWorker {
    /// Uploads until nothing more will be sealed and no step waits.
    pub(crate) async fn work(mut self) {
        loop {
            // Checked before the scan: a step sealed in between is found by the next scan.
            let ending = self.signals.all_determined.is_cancelled();
            match self.choose().await {
                Choice::Upload(run, step, small) => self.upload_with_small(run, &step, &small).await,
                Choice::Nothing if ending => break,
                Choice::Nothing => self.rest(None, ending).await,
                Choice::Later(until) => self.rest(Some(until), ending).await,
            }
        }
        self.end_telling().await;
        for run in self.runs {
            if let Some(held) = run.held {
                held.release().await;
            }
        }
    }

    /// Compares what the vault takes for durable with what the remote lists, when that is due. Steps that the remote has
    /// lost wait for their upload again.
    async fn find_lost_steps(&mut self, index: usize) {
        let run = &mut self.runs[index];
        if run.compares_at > Instant::now() {
            return;
        }
        run.compares_at = Instant::now() + self.comparison_interval;
        let (name, remote) = (run.remote.keys.run().clone(), run.remote.name().clone());
        let compared = tokio::select! {
            compared = forget_lost_steps(&self.vault.vault, &run.remote) => compared,
            () = self.drain.stop.wait(), if !self.is_draining => return,
        };
        let subject = format!("compare {name} {remote}");
        match compared {
            Ok(lost) => {
                self.reporter.resolved(&subject);
                if let [first, others @ ..] = lost.as_slice() {
                    let others = match others.last() {
                        Some(newest) => format!(" to {newest}, {} in all", lost.len()),
                        None => String::new(),
                    };
                    let text = format!(
                        "steps of {name} that were durable on {remote} are gone from it: {first}{others}; was it restored \
                         from an older copy? They are uploaded again"
                    );
                    self.reporter.warn(&text);
                }
            }
            Err(error) => {
                let text = format!("cannot check whether {remote} still has the steps of {name}: {error}");
                self.reporter.warn_once(&subject, &text);
            }
        }
    }

    /// Tells other nodes that no upload is under way.
    async fn end_telling(&mut self) {
        for run in &mut self.runs {
            run.telling.end(&run.remote, &self.node).await;
        }
    }

    async fn rest(&mut self, until: Option<Instant>, ending: bool) {
        self.end_telling().await;
        tokio::select! {
            () = self.wake.notified() => {}
            () = self.signals.all_determined.cancelled(), if !ending => {}
            () = self.drain.stop.wait(), if !self.is_draining => {}
            () = sleep_until(until) => {}
        }
    }

    /// Uploads a step, and preempts it if time is short and another step has the better chance: then returns false. The
    /// journal keeps what was sent.
    async fn upload_unless_preempted(&mut self, index: usize, step: &SealedStep) -> bool {
        let here = self.runs[index].on_remote(step.id());
        let (in_use, in_vault) = (self.vault.in_use.clone(), here.step());
        let planner = self.planner(self.excluded(true));
        let parts = planner.parts_at_once(step, self.runs[index].remote.settings.max_concurrent_requests);
        let mut telling = std::mem::take(&mut self.runs[index].telling);
        let (remote, node) = (self.runs[index].remote.clone(), self.node.clone());
        let told = planner.clone();
        let told = telling.tell(&remote, &node, &told);
        let narrowed = planner.clone().until_fewer_at_once(parts);
        let preempted = planner.until_preempted(here.run.clone(), here.id);
        let why = tokio::select! {
            () = self.upload(index, step, parts.count) => None,
            () = told => None,
            () = narrowed => Some("upload continues with fewer parts at once, so that they are whole at the deadline"),
            () = preempted => Some("upload preempted by another step"),
            () = in_use.is_given_up(&in_vault) => {
                Some("upload stopped: the vault gives the step up for lack of space")
            }
        };
        self.runs[index].telling = telling;
        let Some(why) = why else { return true };
        self.reporter.status.upload_stopped(&here);
        tracing::info!(run = %here.run, id = %here.id, remote = %here.remote, "{why}");
        false
    }

    async fn upload(&mut self, index: usize, step: &SealedStep, parts_at_once: usize) {
        let id = step.id();
        let here = self.runs[index].on_remote(id);
        let Some(in_use) = self.vault.in_use.for_upload(here.step()) else {
            // Being evicted: it is durable wherever it must be, and gone at the next scan.
            let tries = self.runs[index].tries.entry(id).or_default();
            tries.pause.failed(LONGEST, None);
            return;
        };
        self.reporter.status.upload_began(&here);
        let _busy = self.throughput.busy(&here.remote);
        let uploaded = self.try_upload(index, step, parts_at_once).await;
        drop(in_use);
        self.ended(index, &here, uploaded).await;
    }

    /// Records how an upload ended.
    async fn ended(
        &mut self,
        index: usize,
        here: &StepOnRemote,
        uploaded: std::result::Result<Uploaded, UploadFailure>,
    ) {
        let id = here.id;
        match uploaded {
            Ok(Uploaded::Incomplete { missing }) => self.lacks_parts(index, here, &missing),
            Ok(uploaded) => {
                self.runs[index].succeeded(id);
                self.runs[index].missing_parts.forget(id);
                let is_new = uploaded == Uploaded::Durable;
                self.reporter.status.upload_done(here, is_new);
                self.resolved(here);
                self.uploaded.notify_one();
                self.signals.eviction.notify_one();
            }
            // Its part is uploaded. The next start checks the others' parts.
            Err(failure) if self.runs[index].missing_parts.had_final_check(id) => {
                let trouble = Trouble {
                    lacks_parts: true,
                    ..Trouble::of(&failure.error)
                };
                self.reporter.status.step_failed(here, trouble);
            }
            Err(failure) => self.failed(index, here, &failure).await,
        }
    }

    async fn try_upload(
        &mut self,
        index: usize,
        step: &SealedStep,
        parts_at_once: usize,
    ) -> std::result::Result<Uploaded, UploadFailure> {
        let run = &mut self.runs[index];
        // Read before the remote answers: an outage that begins meanwhile is handled with the next step.
        let outages = run.attempts.outages();
        let session = self
            .open_session(index)
            .await
            .map_err(|error| UploadFailure { error, opening: true })?;
        let run = &mut self.runs[index];
        run.was_out = false;
        run.outages = outages;
        if run.missing_parts.next_check(step.id()).is_some() {
            return Ok(session.commit_if_complete(step).await?);
        }
        Ok(session.with_parts_at_once(parts_at_once).upload(step).await?)
    }

    /// Returns the run's session with the remote: opened for the first step, and verified again after an outage.
    async fn open_session(&mut self, index: usize) -> Result<UploadSession> {
        let run = &mut self.runs[index];
        let vault = &self.vault.vault;
        if let Some(session) = run.session.clone() {
            if run.was_out || run.attempts.outages() != run.outages {
                session.recognise().await?;
            }
            run.hold(vault).await?;
            return Ok(session);
        }
        let (budget, observer) = (self.budget.clone(), Arc::clone(&self.reporter.observer));
        let session =
            UploadSession::open(run.remote.clone(), vault.clone(), budget, observer, run.digest).await?;
        let session = session
            .with_digests(&self.digests)
            .with_cpu_share(&self.cpu_share);
        run.hold(vault).await?;
        Ok(run.session.insert(session).clone())
    }

    /// Records that this node's part is uploaded and other parts are missing.
    fn lacks_parts(&mut self, index: usize, here: &StepOnRemote, missing: &[NodeName]) {
        let run = &mut self.runs[index];
        run.succeeded(here.id);
        let waiting = run.missing_parts.checked(here.id, missing, self.incomplete_after);
        let trouble = Trouble {
            lacks_parts: true,
            ..Trouble::waiting(waiting.reason.clone())
        };
        self.reporter.status.step_failed(here, trouble);
        self.resolved(here);
        if waiting.is_incomplete {
            let text = format!(
                "{} of {} is not durable on {}: {} (later steps continue, and it is committed when the parts arrive; \
                 if those nodes write no files of their own, declare only the others with --nodes)",
                here.id, here.run, here.remote, waiting.reason
            );
            let subject = format!("incomplete {} {} {}", here.run, here.id, here.remote);
            self.reporter.warn_once(&subject, &text);
        }
    }

    /// Records the failure and when to retry. A step stays queued for as long as it is in the vault, whatever the
    /// failure: only a service that is about to end stops trying.
    async fn failed(&mut self, index: usize, here: &StepOnRemote, failure: &UploadFailure) {
        let error = &failure.error;
        let new_attempt = if error.is_name_taken() {
            self.make_provisional_again(index, here, error).await
        } else {
            NewAttempt::Refused
        };
        if new_attempt == NewAttempt::Done {
            return;
        }
        // An unreadable step exists.
        let is_sealed = self.sealed_step(here).await.map_or(true, |step| step.is_some());
        let is_ending = self.once || self.drain.stop.is_requested();
        let longest = self.longest_pause(error);
        let run = &mut self.runs[index];
        // The step's own part may be gone as well: the upload checks that, and resumes where necessary.
        run.missing_parts.forget(here.id);
        let asked_for = error.retry_after_wait();
        let after = match new_attempt {
            NewAttempt::Later => AfterUpload::StepLater,
            _ => after_upload(error, failure.opening),
        };
        // The remote may have been changed by hand meanwhile: it is verified again with the next step.
        run.was_out = after == AfterUpload::RemoteLater;
        if !run.was_out {
            run.session = None;
        }
        let trouble = Trouble::of(error);
        let subject = match after {
            AfterUpload::RemoteLater => {
                run.pause.failed(longest, asked_for);
                run.given_up = self.once || is_ending && trouble.needs_operator;
                self.reporter.status.remote_failed(here, trouble);
                subject_of_remote(here)
            }
            AfterUpload::StepLater if is_sealed => {
                let tries = run.tries.entry(here.id).or_default();
                tries.pause.failed(longest, asked_for);
                let enough = if self.once { TRIES_ONCE } else { TRIES_IN_DRAIN };
                // A full disk says nothing about the step.
                let patient = error.kind() == ErrorKind::NoSpace && !self.once;
                tries.given_up =
                    is_ending && (trouble.needs_operator || !patient && tries.pause.failures() >= enough);
                self.reporter.status.step_failed(here, trouble);
                subject_of_step(here)
            }
            AfterUpload::StepLater => {
                self.reporter.status.upload_done(here, false);
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
        let cause = format!(
            "{}: {}",
            error.kind().name(),
            error.why_text().unwrap_or_default()
        );
        self.reporter.warn_of_cause(&subject, &cause, &text);
    }

    /// Determines another attempt for a step whose attempt is taken, unless the attempt was given explicitly or too
    /// many were tried.
    async fn make_provisional_again(&self, index: usize, here: &StepOnRemote, error: &Error) -> NewAttempt {
        let Some(in_use) = self.vault.in_use.for_eviction(here.step()) else {
            return NewAttempt::Later;
        };
        let outcome = match self.sealed_step(here).await {
            Ok(Some(step)) => make_provisional_again(&self.vault.vault, &step, error).await,
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        drop(in_use);
        match outcome {
            Ok(true) => {}
            Ok(false) => return NewAttempt::Refused,
            Err(error) => {
                tracing::warn!(%error, "cannot determine a new attempt for a step whose attempt is taken");
                return NewAttempt::Later;
            }
        }
        self.reporter.status.upload_stopped(here);
        let text = format!(
            "{} of {} is sealed under another identity: {error}",
            here.id, here.run
        );
        self.reporter.warn(&text);
        let attempts = &self.runs[index].attempts;
        attempts
            .determine(&self.vault, &self.reporter, &self.signals)
            .await;
        self.signals.attempts.notify_one();
        NewAttempt::Done
    }

    fn resolved(&self, here: &StepOnRemote) {
        self.reporter.resolved(&subject_of_remote(here));
        self.reporter.resolved(&subject_of_step(here));
    }

    async fn sealed_step(&self, here: &StepOnRemote) -> Result<Option<SealedStep>> {
        let (vault, run, id) = (self.vault.vault.clone(), here.run.clone(), here.id);
        blocking(move || vault.step(&run, id)).await
    }
}

/// Whether a step whose attempt is taken gets another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewAttempt {
    /// It does, as soon as a remote answers.
    Done,
    /// Another remote is uploading the step: not before that has ended.
    Later,
    /// Its attempt stays.
    Refused,
}

fn subject_of_remote(here: &StepOnRemote) -> String {
    format!("upload {} {}", here.run, here.remote)
}

fn subject_of_step(here: &StepOnRemote) -> String {
    format!("upload {} {} {}", here.run, here.remote, here.id)
}

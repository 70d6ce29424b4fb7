//! Upload worker for one remote: uploads waiting steps, the newest first; remotes do not block each other.

mod ahead;
mod draining;
mod missing_parts;
mod run_uploads;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use ahead::Ahead;
pub(crate) use run_uploads::RunUploads;
use run_uploads::{Choice, VAULT_PAUSE, read_backlog};
use stepvault_core::config::NotifyEvent;
use stepvault_core::{DigestAlgorithm, Error, ErrorKind, NodeName, RemoteName, Result, Timestamp};
use stepvault_engine::blocking::blocking;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::placement::make_provisional_again;
use stepvault_engine::tier::step_state::forget_lost_steps;
use stepvault_engine::upload::{CopiedStep, SharedDigests, UploadSession, Uploaded};
use stepvault_local::sealed::SealedStep;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::agent_status::Trouble;
use crate::notifications::Occurrence;
use crate::pause::{AfterUpload, LONGEST, after_upload, earliest, sleep_until};
use crate::report::StepOnRemote;
use crate::shared::Shared;

/// Number of consecutive failures after which a drain gives a step up; the next start resumes it.
const TRIES_IN_DRAIN: u32 = 8;
/// The same for a single round.
const TRIES_ONCE: u32 = 3;

/// The longest time for which what the vault takes for durable is not compared with what the remotes list.
const LONGEST_COMPARISON_INTERVAL: Duration = Duration::from_hours(1);

/// A failed upload.
struct UploadFailure {
    error: Error,
    /// Whether it failed before anything of the step was checked.
    opening: bool,
}

impl From<Error> for UploadFailure {
    fn from(error: Error) -> Self {
        Self { error, opening: false }
    }
}

/// The task that uploads to one remote.
#[derive(Debug)]
pub(crate) struct UploadWorker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) remote: RemoteName,
    pub(crate) budget: MemoryBudget,
    /// Shared by the workers of all remotes.
    pub(crate) digests: SharedDigests,
    pub(crate) runs: Vec<RunUploads>,
    pub(crate) wake: Arc<Notify>,
    /// Notified of every step that becomes durable.
    pub(crate) uploaded: Arc<Notify>,
    /// The step that a seal is copying into the vault.
    pub(crate) copy: watch::Receiver<Option<CopiedStep>>,
    /// What is sent of it, or of an earlier one whose seal may have ended since.
    pub(crate) ahead: Option<Ahead>,
    pub(crate) next_run: usize,
    /// Whether pauses were cut short when the service was asked to stop.
    pub(crate) is_draining: bool,
}

impl UploadWorker {
    /// Uploads until nothing more will be sealed and no step waits.
    pub(crate) async fn work(mut self) {
        loop {
            // Checked before the scan: a step sealed in between is found by the next scan.
            let ending = self.shared.signals.all_determined.is_cancelled();
            self.hand_over_if(CopiedStep::has_ended).await;
            match self.choose().await {
                Choice::Upload(run, step, small) => self.upload_with_small(run, &step, &small).await,
                Choice::Nothing if ending => break,
                Choice::Nothing => self.rest(None, ending).await,
                Choice::Later(until) => self.rest(Some(until), ending).await,
            }
        }
        self.hand_over_if(|_| true).await;
        self.end_telling().await;
        for run in self.runs {
            if let Some(held) = run.connection.held {
                held.release().await;
            }
        }
    }

    /// Returns the next step: the runs take turns, and within each run the newest step that is not deferred goes first.
    async fn choose(&mut self) -> Choice {
        if self.shared.drain.is_urgent() {
            return self.choose_urgently().await;
        }
        let patient = !self.shared.options.lifecycle.once && !self.shared.drain.stop.is_requested();
        let mut later = None;
        for offset in 0..self.runs.len() {
            let index = (self.next_run + offset) % self.runs.len();
            if self.runs[index].given_up {
                continue;
            }
            self.find_lost_steps(index).await;
            let run = &mut self.runs[index];
            if patient {
                later = earliest(later, Some(run.compares_at));
            }
            let Some(backlog) = read_backlog(run, &self.shared).await else {
                later = earliest(later, Some(Instant::now() + VAULT_PAUSE));
                continue;
            };
            match run.choose(index, &self.shared, backlog, patient) {
                Choice::Upload(..) if run.pause.until().is_some() => {
                    later = earliest(later, run.pause.until());
                }
                choice @ Choice::Upload(..) => {
                    self.next_run = index + 1;
                    return choice;
                }
                Choice::Later(until) => later = earliest(later, Some(until)),
                Choice::Nothing => {}
            }
        }
        Choice::later(later)
    }

    /// Compares what the vault takes for durable with what the remote lists, when that is due. Steps that the remote has
    /// lost wait for their upload again.
    async fn find_lost_steps(&mut self, index: usize) {
        let run = &mut self.runs[index];
        if run.compares_at > Instant::now() {
            return;
        }
        let interval = self.shared.options.agent.retention_interval;
        run.compares_at = Instant::now() + interval.min(LONGEST_COMPARISON_INTERVAL);
        let (name, remote) = (run.remote.keys.run().clone(), run.remote.name().clone());
        let compared = tokio::select! {
            compared = forget_lost_steps(&self.shared.vault.vault, &run.remote) => compared,
            () = self.shared.drain.stop.wait(), if !self.is_draining => return,
        };
        let subject = format!("compare {name} {remote}");
        match compared {
            Ok(lost) => {
                self.shared.reporter.resolved(&subject);
                if let [first, others @ ..] = lost.as_slice() {
                    let others = match others.last() {
                        Some(newest) => format!(" to {newest}, {} in all", lost.len()),
                        None => String::new(),
                    };
                    let text = format!(
                        "steps of {name} that were durable on {remote} are gone from it: {first}{others}; was it restored \
                         from an older copy? They are uploaded again"
                    );
                    self.shared.reporter.warn(&text);
                }
            }
            Err(error) => {
                let text = format!("cannot check whether {remote} still has the steps of {name}: {error}");
                self.shared.reporter.warn_once(&subject, &text);
            }
        }
    }

    /// Tells other nodes that no upload is under way.
    async fn end_telling(&mut self) {
        for run in &mut self.runs {
            run.telling.end(&run.remote, self.shared.options.node()).await;
        }
    }

    /// Waits for something to upload, and meanwhile sends what a seal is copying into the vault.
    async fn rest(&mut self, until: Option<Instant>, ending: bool) {
        self.end_telling().await;
        let (shared, wake, is_draining) =
            (Arc::clone(&self.shared), Arc::clone(&self.wake), self.is_draining);
        let woken = async {
            tokio::select! {
                () = wake.notified() => {}
                () = shared.signals.all_determined.cancelled(), if !ending => {}
                () = sleep_until(until) => {}
            }
        };
        tokio::select! {
            () = self.send_ahead_until(woken) => {}
            // What is on its way is given up.
            () = shared.drain.stop.wait(), if !is_draining => {}
        }
    }

    /// Uploads the chosen step, and then the small ones at once if it was uploaded: the remote then answers, and holds
    /// the archive that it must. What a small step costs is the time that its requests take one after the other.
    async fn upload_with_small(&mut self, index: usize, chosen: &SealedStep, small: &[SealedStep]) {
        let is_uploaded = self.upload_unless_preempted(index, chosen).await;
        if !is_uploaded || small.is_empty() || self.shared.drain.is_urgent() {
            return;
        }
        let run = &self.runs[index];
        let is_waiting = run.pause.until().is_some() || run.tries.contains_key(&chosen.id());
        let connection = &run.connection;
        let Some(session) = connection.session.clone().filter(|_| !is_waiting && !connection.was_out) else {
            return;
        };
        let uploads = small.iter().filter_map(|step| {
            let here = run.on_remote(step.id());
            let in_use = self.shared.vault.in_use.for_upload(&here.step())?;
            self.shared.reporter.status.upload_began(&here);
            let (session, all_in_use, stop) = (&session, &self.shared.vault.in_use, &self.shared.drain.stop);
            let is_draining = self.is_draining;
            Some(async move {
                let in_vault = here.step();
                let uploaded = tokio::select! {
                    uploaded = session.upload(step) => Some(uploaded),
                    () = all_in_use.is_given_up(&in_vault) => None,
                    () = stop.wait(), if !is_draining => None,
                };
                drop(in_use);
                (here, step.record().written_at, uploaded)
            })
        });
        let uploaded = {
            let _busy = self.shared.throughput.busy(run.remote.name());
            futures::future::join_all(uploads).await
        };
        for (here, written_at, uploaded) in uploaded {
            match uploaded {
                // The whole remote failed: that is one failure, however many steps had to do with it.
                Some(Err(_)) if self.runs[index].pause.until().is_some() => {
                    self.shared.reporter.status.upload_stopped(&here);
                }
                Some(uploaded) => {
                    self.ended(index, &here, written_at, uploaded.map_err(UploadFailure::from)).await;
                }
                None => self.shared.reporter.status.upload_stopped(&here),
            }
        }
    }

    /// Uploads a step, and preempts it if time is short and another step has the better chance: then returns false. The
    /// journal keeps what was sent.
    async fn upload_unless_preempted(&mut self, index: usize, step: &SealedStep) -> bool {
        let here = self.runs[index].on_remote(step.id());
        let (in_use, in_vault) = (self.shared.vault.in_use.clone(), here.step());
        let planner = self.planner(self.excluded(true));
        let parts = planner.parts_at_once(step, self.runs[index].remote.settings.max_concurrent_requests);
        let mut telling = std::mem::take(&mut self.runs[index].telling);
        let remote = self.runs[index].remote.clone();
        let told = planner.clone();
        let told = telling.tell(&remote, &told);
        let narrowed = planner.clone().until_fewer_at_once(parts);
        let preempted = planner.until_preempted(here.run.clone(), here.id);
        let why = tokio::select! {
            () = self.upload_and_record(index, step, parts.count) => None,
            () = told => None,
            () = narrowed => Some("upload continues with fewer parts at once, so that they are whole at the deadline"),
            () = preempted => Some("upload preempted by another step"),
            () = in_use.is_given_up(&in_vault) => {
                Some("upload stopped: the vault gives the step up for lack of space")
            }
        };
        self.runs[index].telling = telling;
        let Some(why) = why else { return true };
        self.shared.reporter.status.upload_stopped(&here);
        tracing::info!(run = %here.run, id = %here.id, remote = %here.remote, "{why}");
        false
    }

    async fn upload_and_record(&mut self, index: usize, step: &SealedStep, parts_at_once: usize) {
        let id = step.id();
        let here = self.runs[index].on_remote(id);
        let Some(in_use) = self.shared.vault.in_use.for_upload(&here.step()) else {
            // Being evicted: it is durable wherever it must be, and gone at the next scan.
            let tries = self.runs[index].tries.entry(id).or_default();
            tries.pause.failed(LONGEST, None);
            return;
        };
        self.shared.reporter.status.upload_began(&here);
        let _busy = self.shared.throughput.busy(&here.remote);
        let uploaded = self.try_upload(index, step, parts_at_once).await;
        drop(in_use);
        self.ended(index, &here, step.record().written_at, uploaded).await;
    }

    /// Records how an upload ended.
    async fn ended(
        &mut self,
        index: usize,
        here: &StepOnRemote,
        written_at: Timestamp,
        uploaded: std::result::Result<Uploaded, UploadFailure>,
    ) {
        let id = here.id;
        match uploaded {
            Ok(Uploaded::Incomplete { missing }) => self.lacks_parts(index, here, &missing),
            Ok(uploaded) => {
                self.runs[index].succeeded(id);
                self.runs[index].missing_parts.forget(id);
                let is_new = uploaded == Uploaded::Durable;
                self.shared.reporter.status.upload_done(here, is_new.then_some(written_at));
                self.resolved(here);
                self.uploaded.notify_one();
                self.shared.signals.eviction.notify_one();
            }
            // Its part is uploaded. The next start checks the others' parts.
            Err(failure) if self.runs[index].missing_parts.had_final_check(id) => {
                let trouble = Trouble { lacks_parts: true, ..Trouble::of(&failure.error) };
                self.shared.reporter.status.step_failed(here, trouble);
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
        let (name, id) = (self.runs[index].remote.keys.run().clone(), step.id());
        self.hand_over_if(|step| *step.run() == name && step.id() == id).await;
        let run = &mut self.runs[index];
        // Read before the remote answers: an outage that begins meanwhile is handled with the next step.
        let outages = run.attempts.outages();
        let session = self
            .open_session(index, step.record().digest)
            .await
            .map_err(|error| UploadFailure { error, opening: true })?;
        let run = &mut self.runs[index];
        run.connection.was_out = false;
        run.connection.outages = outages;
        if run.missing_parts.next_check(step.id()).is_some() {
            return Ok(session.commit_if_complete(step).await?);
        }
        Ok(session.with_parts_at_once(parts_at_once).upload(step).await?)
    }

    /// Returns the run's session with the remote: opened for the first step, and verified again after an outage.
    async fn open_session(&mut self, index: usize, digest: DigestAlgorithm) -> Result<UploadSession> {
        let run = &mut self.runs[index];
        if let Some(session) = run.connection.session.clone() {
            if run.connection.was_out || run.attempts.outages() != run.connection.outages {
                session.recognise().await?;
            }
            run.hold(&self.shared).await?;
            return Ok(session);
        }
        let (remote, vault) = (run.remote.clone(), self.shared.vault.vault.clone());
        let (budget, observer) = (self.budget.clone(), Arc::clone(&self.shared.reporter.observer));
        let session = UploadSession::open(remote, vault, budget, observer, digest).await?;
        let session = session.with_digests(&self.digests).with_cpu_share(&self.shared.cpu_share);
        run.hold(&self.shared).await?;
        Ok(run.connection.session.insert(session).clone())
    }

    /// Records that this node's part is uploaded and other parts are missing.
    fn lacks_parts(&mut self, index: usize, here: &StepOnRemote, missing: &[NodeName]) {
        let run = &mut self.runs[index];
        run.succeeded(here.id);
        let waiting =
            run.missing_parts.checked(here.id, missing, self.shared.options.upload.incomplete_after);
        let trouble = Trouble { lacks_parts: true, ..Trouble::waiting(waiting.reason.clone()) };
        self.shared.reporter.status.step_failed(here, trouble);
        self.resolved(here);
        if waiting.is_incomplete {
            let text = format!(
                "{} of {} is not durable on {}: {} (later steps continue, and it is committed when the parts arrive; \
                 if those nodes write no files of their own, declare only the others with --nodes)",
                here.id, here.run, here.remote, waiting.reason
            );
            let subject = format!("incomplete {} {} {}", here.run, here.id, here.remote);
            self.shared.reporter.warn_once(&subject, &text);
        }
    }

    /// Records the failure and when to retry. A step stays queued for as long as it is in the vault, whatever the
    /// failure: only a service that is about to end stops trying.
    async fn failed(&mut self, index: usize, here: &StepOnRemote, failure: &UploadFailure) {
        let error = &failure.error;
        if error.kind() == ErrorKind::Damaged {
            let what = format!("the upload of {} to {} failed: {error}", here.id, here.remote);
            let occurrence = Occurrence::new(NotifyEvent::VerificationFailed, &here.run, what);
            self.shared.notifier.notify(occurrence.step(here.id).remote(&here.remote));
        }
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
        let is_ending = self.shared.options.lifecycle.once || self.shared.drain.stop.is_requested();
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
        let connection = &mut run.connection;
        connection.was_out = after == AfterUpload::RemoteLater;
        if !connection.was_out {
            connection.session = None;
        }
        let trouble = Trouble::of(error);
        let subject = match after {
            AfterUpload::RemoteLater => {
                run.pause.failed(longest, asked_for);
                run.given_up = self.shared.options.lifecycle.once || is_ending && trouble.needs_operator;
                self.shared.reporter.status.remote_failed(here, trouble);
                subject_of_remote(here)
            }
            AfterUpload::StepLater if is_sealed => {
                let tries = run.tries.entry(here.id).or_default();
                tries.pause.failed(longest, asked_for);
                let enough = if self.shared.options.lifecycle.once { TRIES_ONCE } else { TRIES_IN_DRAIN };
                // A full disk says nothing about the step.
                let patient = error.kind() == ErrorKind::NoSpace && !self.shared.options.lifecycle.once;
                tries.given_up =
                    is_ending && (trouble.needs_operator || !patient && tries.pause.failures >= enough);
                self.shared.reporter.status.step_failed(here, trouble);
                subject_of_step(here)
            }
            AfterUpload::StepLater => {
                self.shared.reporter.status.upload_done(here, None);
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
        let cause = format!("{}: {}", error.kind().name(), error.why_text().unwrap_or_default());
        self.shared.reporter.warn_of_cause(&subject, &cause, &text);
    }

    /// Determines another attempt for a step whose attempt is taken, unless the attempt was given explicitly or too
    /// many were tried.
    async fn make_provisional_again(&self, index: usize, here: &StepOnRemote, error: &Error) -> NewAttempt {
        let Some(in_use) = self.shared.vault.in_use.for_eviction(&here.step()) else {
            return NewAttempt::Later;
        };
        let outcome = match self.sealed_step(here).await {
            Ok(Some(step)) => make_provisional_again(&self.shared.vault.vault, &step, error).await,
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
        self.shared.reporter.status.upload_stopped(here);
        let text = format!("{} of {} is sealed under another identity: {error}", here.id, here.run);
        self.shared.reporter.warn(&text);
        self.runs[index].attempts.determine(&self.shared).await;
        self.shared.signals.attempts.notify_one();
        NewAttempt::Done
    }

    fn resolved(&self, here: &StepOnRemote) {
        self.shared.reporter.resolved(&subject_of_remote(here));
        self.shared.reporter.resolved(&subject_of_step(here));
    }

    async fn sealed_step(&self, here: &StepOnRemote) -> Result<Option<SealedStep>> {
        let (vault, run, id) = (self.shared.vault.vault.clone(), here.run.clone(), here.id);
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

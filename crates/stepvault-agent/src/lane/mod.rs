//! One remote's way out: a task that uploads what waits for it, the newest step first, however the others fare.

mod backlog;
mod hurried;
mod queue;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::ids::{NodeName, RemoteName, StepId};
use stepvault_core::retention::KeepRules;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::run_remote::RunRemote;
use stepvault_engine::upload::{Lane, Uploaded};
use stepvault_local::sealed::SealedStep;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::board::Trouble;
use crate::outcome::{AfterUpload, after_upload};
use crate::pause::{LONGEST, Pause};
use crate::report::{RunStep, StepOnRemote};
use crate::shared::Shared;
use queue::Choice;
pub(crate) use queue::is_durable;
use waits::Waits;

/// A step that fails this often in a row, for reasons that might have passed, is given up.
const TRIES: u32 = 8;
/// The same when everything has to come to an end.
const TRIES_ONCE: u32 = 3;

/// One run on the lane's remote.
#[derive(Debug)]
pub(crate) struct LaneRun {
    remote: RunRemote,
    keep: KeepRules,
    /// Opened with the first step.
    lane: Option<Lane>,
    /// The remote could not be reached since.
    was_out: bool,
    pause: Pause,
    /// The remote was not to be had, and this service does not wait for it.
    given_up: bool,
    tries: BTreeMap<StepId, Tries>,
    waits: Waits,
    /// Steps that retention would drop anyway, when time is short.
    standing_back: BTreeSet<StepId>,
}

#[derive(Debug, Default)]
struct Tries {
    pause: Pause,
    failed: bool,
}

impl LaneRun {
    pub(crate) fn new(remote: RunRemote, keep: KeepRules) -> Self {
        Self {
            remote,
            keep,
            lane: None,
            was_out: false,
            pause: Pause::default(),
            given_up: false,
            tries: BTreeMap::new(),
            waits: Waits::default(),
            standing_back: BTreeSet::new(),
        }
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
    /// Told of every step that becomes durable.
    pub(crate) uploaded: Arc<Notify>,
    pub(crate) maximum_backlog_steps: usize,
    pub(crate) incomplete_after: Duration,
    /// Come to an end instead of waiting for a remote that is not to be had.
    pub(crate) once: bool,
    pub(crate) next_run: usize,
    /// Pauses were cut short when the service was asked to stop.
    pub(crate) hurried: bool,
}

impl LaneTask {
    /// Uploads until nothing more will be sealed and nothing waits.
    pub(crate) async fn work(mut self) {
        loop {
            // Asked before looking: what is sealed in between is seen at the next look.
            let ending = self.shared.all_sealed.is_cancelled();
            match self.choose().await {
                Choice::Upload(run, step) => self.upload_unless_it_gives_way(run, &step).await,
                Choice::Nothing if ending => return,
                Choice::Nothing => self.rest(None, ending).await,
                Choice::Later(until) => self.rest(Some(until), ending).await,
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
            () = self.shared.all_sealed.cancelled(), if !ending => {}
            () = self.shared.stopping.wait(), if !self.hurried => {}
            () = time => {}
        }
    }

    /// Breaks an upload off when time is short and another step has the better chance. What was sent is in the journal.
    async fn upload_unless_it_gives_way(&mut self, index: usize, step: &SealedStep) {
        let here = self.runs[index].on_remote(step.id());
        let gives_way = self
            .outlook(self.not_for_now(true))
            .until_it_gives_way(here.run.clone(), here.id);
        tokio::select! {
            () = self.upload(index, step) => return,
            () = gives_way => {}
        }
        self.shared.board.upload_gave_way(&here);
        tracing::info!(run = %here.run, id = %here.id, remote = %here.remote, "gives way to another step");
    }

    async fn upload(&mut self, index: usize, step: &SealedStep) {
        let id = step.id();
        let here = self.runs[index].on_remote(id);
        let Some(_place) = self.shared.occupied.for_upload(RunStep {
            run: here.run.clone(),
            id,
        }) else {
            // Being evicted: it is durable wherever it has to be, and gone at the next look.
            self.runs[index]
                .tries
                .entry(id)
                .or_default()
                .pause
                .failed(LONGEST, None);
            return;
        };
        self.shared.board.upload_began(&here);
        let _busy = self.shared.rates.busy(&here.remote);
        match self.try_upload(index, step).await {
            Ok(Uploaded::Waiting { missing }) => self.waits(index, &here, &missing),
            Ok(uploaded) => {
                let run = &mut self.runs[index];
                run.pause.clear();
                run.tries.remove(&id);
                run.waits.forget(id);
                self.shared
                    .board
                    .upload_done(&here, uploaded == Uploaded::Durable);
                self.shared.board.is_well(&about(&here));
                self.uploaded.notify_one();
                self.shared.evict.notify_one();
            }
            // Its part is uploaded. What came of the others' the next start finds out.
            Err(error) if self.runs[index].waits.had_last_look(id) => {
                let trouble = Trouble {
                    failed: false,
                    lacks_parts: true,
                    reason: error.to_string(),
                };
                self.shared.board.step_failed(&here, trouble);
            }
            Err(error) => self.failed(index, &here, &error).await,
        }
    }

    async fn try_upload(&mut self, index: usize, step: &SealedStep) -> Result<Uploaded> {
        let run = &mut self.runs[index];
        let lane = if let Some(lane) = run.lane.clone() {
            if run.was_out {
                lane.recognise().await?;
            }
            lane
        } else {
            let (vault, budget) = (self.shared.vault.clone(), self.budget.clone());
            let observer = Arc::clone(&self.shared.observer);
            let lane = Lane::open(run.remote.clone(), vault, budget, observer).await?;
            run.lane.insert(lane).clone()
        };
        run.was_out = false;
        if run.waits.next_look(step.id()).is_some() {
            return lane.settle(step).await;
        }
        lane.upload(step).await
    }

    /// This node has done its part.
    fn waits(&mut self, index: usize, here: &StepOnRemote, missing: &[NodeName]) {
        let run = &mut self.runs[index];
        run.pause.clear();
        run.tries.remove(&here.id);
        let waiting = run.waits.missing(here.id, missing, self.incomplete_after);
        let trouble = Trouble {
            failed: false,
            lacks_parts: true,
            reason: waiting.reason.clone(),
        };
        self.shared.board.step_failed(here, trouble);
        self.shared.board.is_well(&about(here));
        if waiting.is_incomplete {
            let text = format!(
                "{} of {} is not durable on {}: {} (later steps go on; it is committed once they come; where those nodes \
                 write no files of their own, declare the others alone with --nodes)",
                here.id, here.run, here.remote, waiting.reason
            );
            self.shared.warn(
                &format!("incomplete {} {} {}", here.run, here.id, here.remote),
                &text,
            );
        }
    }

    async fn failed(&mut self, index: usize, here: &StepOnRemote, error: &Error) {
        let still_there = self.is_sealed(here).await;
        let longest = self.longest_pause();
        let run = &mut self.runs[index];
        // Where its part went as well: the upload finds out, and goes on where it has to.
        run.waits.forget(here.id);
        let asked_for = error.retry_after_wait();
        let mut reason = error.to_string();
        let after = after_upload(error);
        // What stands there may have been changed by hand meanwhile: looked at anew with the next step.
        run.was_out = after == AfterUpload::RemoteLater;
        if !run.was_out {
            run.lane = None;
        }
        match after {
            AfterUpload::RemoteLater => {
                run.pause.failed(longest, asked_for);
                run.given_up = self.once;
                self.shared.board.remote_failed(here, reason.clone());
            }
            after if still_there => {
                let tries = run.tries.entry(here.id).or_default();
                tries.pause.failed(longest, asked_for);
                let enough = if self.once { TRIES_ONCE } else { TRIES };
                // A full disk says nothing about the step.
                let patient = error.kind() == ErrorKind::NoSpace && !self.once;
                tries.failed =
                    after == AfterUpload::StepFailed || !patient && tries.pause.failures() >= enough;
                let trouble = Trouble {
                    failed: tries.failed,
                    lacks_parts: false,
                    reason: reason.clone(),
                };
                self.shared.board.step_failed(here, trouble);
            }
            _ => {
                self.shared.board.upload_done(here, false);
                return;
            }
        }
        if let Some(hint) = error.hint_text() {
            reason = format!("{reason} ({hint})");
        }
        let text = format!(
            "{} of {} is not durable on {}: {reason}",
            here.id, here.run, here.remote
        );
        tracing::debug!(run = %here.run, id = %here.id, remote = %here.remote, reason, "not uploaded, and tried again later");
        if self.shared.board.is_news(&about(here), &reason) {
            self.shared
                .observer
                .on_event(&stepvault_core::observe::Event::Warning { message: &text });
        }
    }

    async fn is_sealed(&self, here: &StepOnRemote) -> bool {
        let (vault, run, id) = (self.shared.vault.clone(), here.run.clone(), here.id);
        // One that cannot be read is there.
        blocking(move || Ok(vault.step(&run, id)?.is_some()))
            .await
            .unwrap_or(true)
    }
}

fn about(here: &StepOnRemote) -> String {
    format!("upload {} {}", here.run, here.remote)
}

//! Chooses the next step. There is no stored queue: a step waits if the vault has it and the remote lacks it.

use std::collections::BTreeSet;

use stepvault_core::Error;
use stepvault_core::ids::StepId;
use stepvault_local::sealed::SealedStep;
use tokio::time::{Duration, Instant};

use super::small_steps::small_steps;
use super::{RunUploads, UploadWorker};
use crate::backlog::Backlog;
use crate::pause::earliest;
use crate::shared::Shared;

/// Pause before an unreadable vault is scanned again.
pub(super) const VAULT_PAUSE: Duration = Duration::from_secs(5);

/// What to do next.
#[derive(Debug)]
pub(super) enum Choice {
    /// Upload this step of this run, and then these small ones at once.
    Upload(usize, Box<SealedStep>, Vec<SealedStep>),
    /// Check again at this time.
    Later(Instant),
    /// Nothing waits.
    Nothing,
}

impl Choice {
    pub(super) fn upload(run: usize, step: SealedStep) -> Self {
        Self::Upload(run, Box::new(step), Vec::new())
    }

    pub(super) fn later(time: Option<Instant>) -> Self {
        time.map_or(Self::Nothing, Self::Later)
    }
}

impl UploadWorker {
    /// Returns the next step: the runs take turns, and within each run the newest step that is not deferred goes first.
    pub(super) async fn choose(&mut self) -> Choice {
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
}

/// Returns the backlog of a run, or warns.
pub(super) async fn read_backlog(run: &RunUploads, shared: &Shared) -> Option<Backlog> {
    let warn = |error: &Error| {
        let subject = format!("vault {}", run.remote.keys.run());
        shared.reporter.warn_once(&subject, &error.to_string());
    };
    let read = Backlog::read(&shared.vault.vault, &run.remote).await;
    read.inspect_err(warn).ok()
}

impl RunUploads {
    /// Removes the steps that lack other nodes' parts from `waiting`; returns one of them when a check is due. The check
    /// costs a request or two, and then the next step is uploaded.
    pub(super) fn due_check(
        &self,
        waiting: &mut BTreeSet<StepId>,
        patient: bool,
        later: &mut Option<Instant>,
    ) -> Option<StepId> {
        let now = Instant::now();
        let mut due = None;
        waiting.retain(|id| {
            let Some(check) = self.missing_parts.next_check(*id) else {
                return true;
            };
            if check <= now {
                due = Some(*id);
            } else if patient {
                *later = earliest(*later, Some(check));
            }
            false
        });
        due
    }

    /// `patient` if other nodes' parts are worth waiting for.
    fn choose(&mut self, index: usize, shared: &Shared, backlog: Backlog, patient: bool) -> Choice {
        let (mut waiting, deferred) = self.waiting(shared, &backlog);
        let sealed = backlog.sealed;
        let mut later = None;
        let lacks_parts = |id: &StepId| self.missing_parts.next_check(*id).is_some();
        let for_others: Vec<StepId> =
            waiting.iter().copied().filter(|id| !patient && lacks_parts(id)).collect();
        waiting.retain(|id| !for_others.contains(id));
        let due = self.due_check(&mut waiting, patient, &mut later);
        if let Some(step) = due.and_then(|id| sealed.iter().find(|step| step.id() == id)) {
            return Choice::upload(index, step.clone());
        }
        let newest_first = || waiting.iter().rev();
        let undeferred = || newest_first().filter(|id| !deferred.contains(id));
        for id in undeferred().chain(newest_first().filter(|id| deferred.contains(id))) {
            if let Some(until) = self.tries.get(id).and_then(|tries| tries.pause.until()) {
                later = earliest(later, Some(until));
                continue;
            }
            let Some(step) = sealed.iter().find(|step| step.id() == *id).cloned() else {
                return Choice::Nothing;
            };
            // What has failed before goes alone.
            let others = undeferred().filter(|other| *other != id && !self.tries.contains_key(other));
            let small = small_steps(&step, others, &sealed);
            return Choice::Upload(index, Box::new(step), small);
        }
        for step in sealed {
            if for_others.contains(&step.id()) && self.missing_parts.take_final_check(step.id()) {
                return Choice::upload(index, step);
            }
        }
        Choice::later(later)
    }
}

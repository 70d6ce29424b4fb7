//! Chooses the next step. There is no stored queue: a step waits if the vault has it and the remote lacks it.

use std::collections::BTreeSet;

use stepvault_core::ids::StepId;
use stepvault_core::observe::Event;
use stepvault_engine::run_remote::RunRemote;
use stepvault_engine::step_state::is_durable_on;
use stepvault_local::sealed::SealedStep;
use tokio::time::{Duration, Instant};

use super::backlog::retention_would_drop;
use super::{LaneRun, LaneTask};
use crate::drain::{Found, look};
use crate::shared::Shared;

/// Pause before an unreadable vault is scanned again.
pub(super) const VAULT_PAUSE: Duration = Duration::from_secs(5);

/// What to do next.
#[derive(Debug)]
pub(super) enum Choice {
    /// Upload this step of this run.
    Upload(usize, Box<SealedStep>),
    /// Check again at this time.
    Later(Instant),
    /// Nothing waits.
    Nothing,
}

impl LaneTask {
    /// Returns the next step: the runs take turns, and within each run the newest step that is not deferred goes first.
    pub(super) async fn choose(&mut self) -> Choice {
        if self.shared.hurry.is_on() {
            return self.choose_in_a_hurry().await;
        }
        let patient = !self.once && !self.shared.stopping.is_requested();
        let mut later: Option<Instant> = None;
        let mut at = |time: Instant| later = Some(later.map_or(time, |known| known.min(time)));
        for offset in 0..self.runs.len() {
            let index = (self.next_run + offset) % self.runs.len();
            let run = &mut self.runs[index];
            if run.given_up {
                continue;
            }
            let found = match look(&self.shared, &run.remote).await {
                Ok(found) => found,
                Err(error) => {
                    self.shared
                        .warn(&format!("vault {}", run.remote.keys.run()), &error.to_string());
                    at(Instant::now() + VAULT_PAUSE);
                    continue;
                }
            };
            match run.pick(index, &self.shared, found, self.maximum_backlog_steps, patient) {
                Choice::Upload(..) if run.pause.until().is_some() => {
                    run.pause.until().into_iter().for_each(&mut at);
                }
                choice @ Choice::Upload(..) => {
                    self.next_run = index + 1;
                    return choice;
                }
                Choice::Later(until) => at(until),
                Choice::Nothing => {}
            }
        }
        later.map_or(Choice::Nothing, Choice::Later)
    }
}

impl LaneRun {
    /// Removes the steps that wait for other nodes from `waiting`; returns one of them when a check is due. The check
    /// costs a request or two, and then the next step is uploaded.
    pub(super) fn due_look(
        &self,
        waiting: &mut BTreeSet<StepId>,
        patient: bool,
        later: &mut Option<Instant>,
    ) -> Option<StepId> {
        let now = Instant::now();
        let mut due = None;
        waiting.retain(|id| {
            let Some(look) = self.waits.next_look(*id) else {
                return true;
            };
            if look <= now {
                due = Some(*id);
            } else if patient {
                *later = Some(later.map_or(look, |known| known.min(look)));
            }
            false
        });
        due
    }

    /// `patient` if other nodes' parts are worth waiting for.
    fn pick(
        &mut self,
        index: usize,
        shared: &Shared,
        found: Found,
        maximum_backlog_steps: usize,
        patient: bool,
    ) -> Choice {
        let (mut waiting, stand_back) = self.waiting(shared, &found, maximum_backlog_steps);
        let sealed = found.sealed;
        let mut later: Option<Instant> = None;
        let waiting_for_others: Vec<StepId> = waiting
            .iter()
            .copied()
            .filter(|id| !patient && self.waits.next_look(*id).is_some())
            .collect();
        waiting.retain(|id| !waiting_for_others.contains(id));
        let due = self.due_look(&mut waiting, patient, &mut later);
        if let Some(step) = due.and_then(|id| sealed.iter().find(|step| step.id() == id)) {
            return Choice::Upload(index, Box::new(step.clone()));
        }
        let by_rank = waiting.iter().rev().filter(|id| !stand_back.contains(id));
        for id in by_rank.chain(waiting.iter().rev().filter(|id| stand_back.contains(id))) {
            if let Some(until) = self.tries.get(id).and_then(|tries| tries.pause.until()) {
                later = Some(later.map_or(until, |known| known.min(until)));
                continue;
            }
            let step = sealed.into_iter().find(|step| step.id() == *id);
            return step.map_or(Choice::Nothing, |step| Choice::Upload(index, Box::new(step)));
        }
        // The last check before the end.
        for step in sealed {
            if waiting_for_others.contains(&step.id()) && self.waits.take_last_look(step.id()) {
                return Choice::Upload(index, Box::new(step));
            }
        }
        later.map_or(Choice::Nothing, Choice::Later)
    }

    /// Returns the waiting steps that are not given up, and those of them that are deferred.
    pub(super) fn waiting(
        &mut self,
        shared: &Shared,
        found: &Found,
        maximum_backlog_steps: usize,
    ) -> (BTreeSet<StepId>, BTreeSet<StepId>) {
        let there: BTreeSet<StepId> = found.sealed.iter().map(SealedStep::id).collect();
        self.tries.retain(|id, _| there.contains(id));
        self.waits.forget_all_but(&there);
        shared
            .status
            .forget_all_but(self.remote.keys.run(), self.remote.name(), &there);
        shared
            .status
            .waits(self.remote.keys.run(), self.remote.name(), &found.not_durable);
        let mut waiting = found.missing.clone();
        waiting.retain(|id| !self.tries.get(id).is_some_and(|tries| tries.given_up));
        let mut stand_back = BTreeSet::new();
        if waiting.len() <= maximum_backlog_steps {
            return (waiting, stand_back);
        }
        let dropped = retention_would_drop(
            &self.remote.tier,
            &self.keep,
            &found.sealed,
            &waiting,
            &found.pins,
        );
        for (id, why) in dropped {
            let reason = format!(
                "{} steps wait for {}: this one is deferred because retention would remove it there ({why})",
                waiting.len(),
                self.remote.name()
            );
            if shared.status.stands_back(&self.on_remote(id), &reason) {
                shared.observer.on_event(&Event::Skipped {
                    tier: &self.remote.tier,
                    id,
                    reason: &reason,
                });
            }
            stand_back.insert(id);
        }
        (waiting, stand_back)
    }
}

/// Whether a step is recorded as durable on the remote at its current URL.
pub(crate) fn is_durable(step: &SealedStep, remote: &RunRemote) -> bool {
    // For an unreadable state, the upload determines it again, starting with a query of the remote.
    is_durable_on(step, remote).unwrap_or(false)
}

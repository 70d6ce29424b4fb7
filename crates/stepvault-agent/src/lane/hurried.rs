//! Chooses the next step when time is short.

use std::sync::Arc;

use stepvault_core::Error;
use stepvault_core::ids::{RunName, StepId};
use stepvault_engine::blocking::blocking;
use stepvault_local::sealed::SealedStep;
use tokio::time::{Duration, Instant};

use super::LaneTask;
use super::queue::{Choice, VAULT_PAUSE};
use crate::drain::{Found, NotForNow, Outlook, look};
use crate::outcome::longest_pause;

/// Maximum pause after a failure when time is short.
const HURRIED_PAUSE: Duration = Duration::from_secs(2);

impl LaneTask {
    /// Returns the maximum pause after a failure.
    pub(super) fn longest_pause(&self, error: &Error) -> Duration {
        if self.shared.stopping.is_requested() {
            HURRIED_PAUSE
        } else {
            longest_pause(error)
        }
    }

    /// Returns the planning data of this remote.
    pub(crate) fn outlook(&self, not_for_now: NotForNow) -> Outlook {
        Outlook {
            shared: Arc::clone(&self.shared),
            remote: self.remote.clone(),
            runs: self.runs.iter().map(|run| run.remote.clone()).collect(),
            not_for_now,
        }
    }

    /// Returns the steps that are given up or paused; with `with_standing_back` also the steps that retention would
    /// remove.
    pub(super) fn not_for_now(&self, with_standing_back: bool) -> NotForNow {
        let mut not_for_now = NotForNow::default();
        for run in &self.runs {
            let name = run.remote.keys.run();
            let pause = run.pause.until();
            if run.given_up || pause.is_some() {
                let until = pause.filter(|_| !run.given_up);
                not_for_now.runs.insert(name.clone(), until);
            }
            for (id, tries) in &run.tries {
                let pause = tries.pause.until();
                if tries.given_up || pause.is_some() {
                    let until = pause.filter(|_| !tries.given_up);
                    not_for_now.steps.insert((name.clone(), *id), until);
                }
            }
            // This node has nothing left to send for them.
            for id in run.waits.ids() {
                not_for_now.steps.insert((name.clone(), id), None);
            }
            for id in run.standing_back.iter().filter(|_| with_standing_back) {
                not_for_now.steps.insert((name.clone(), *id), None);
            }
        }
        not_for_now
    }

    /// Returns the first step of the plan. Deferred steps come after all others.
    pub(super) async fn choose_in_a_hurry(&mut self) -> Choice {
        if self.shared.stopping.is_requested() && !std::mem::replace(&mut self.hurried, true) {
            // Parts that were missing before may exist now, and there is no time to find out late.
            for run in &mut self.runs {
                run.pause.clear();
                run.tries.clear();
            }
        }
        let mut later: Option<Instant> = None;
        let mut at = |time: Instant| later = Some(later.map_or(time, |known| known.min(time)));
        let mut found: Vec<(RunName, Found)> = Vec::new();
        for (index, run) in self.runs.iter_mut().enumerate() {
            if run.given_up {
                continue;
            }
            let here = match look(&self.shared, &run.remote).await {
                Ok(here) => here,
                Err(error) => {
                    self.shared
                        .warn(&format!("vault {}", run.remote.keys.run()), &error.to_string());
                    at(Instant::now() + VAULT_PAUSE.min(HURRIED_PAUSE));
                    continue;
                }
            };
            let (mut waiting, stand_back) = run.waiting(&self.shared, &here, self.maximum_backlog_steps);
            run.standing_back = stand_back;
            // Nothing is waited for while stopping; one check shows the current state.
            let mut next_look = None;
            let due = run.due_look(&mut waiting, !self.shared.stopping.is_requested(), &mut next_look);
            next_look.into_iter().for_each(&mut at);
            if let Some(step) = due.and_then(|id| here.sealed.iter().find(|step| step.id() == id)) {
                return Choice::Upload(index, Box::new(step.clone()));
            }
            if waiting.is_empty() {
                continue;
            }
            if let Some(until) = run.pause.until() {
                at(until);
                continue;
            }
            run.tries
                .values()
                .filter(|tries| !tries.given_up)
                .filter_map(|tries| tries.pause.until())
                .for_each(&mut at);
            found.push((run.remote.keys.run().clone(), here));
        }
        for with_standing_back in [true, false] {
            let not_for_now = self.not_for_now(with_standing_back);
            match self.outlook(not_for_now).plan_of(&found).await {
                Ok(plan) => {
                    let first = plan.steps.into_iter().next();
                    let step = first.and_then(|planned| {
                        let here = found.iter_mut().find(|(run, _)| *run == planned.step.run)?;
                        let sealed: &mut Vec<SealedStep> = &mut here.1.sealed;
                        let position = sealed.iter().position(|step| step.id() == planned.step.id)?;
                        let index = self
                            .runs
                            .iter()
                            .position(|run| *run.remote.keys.run() == planned.step.run)?;
                        Some((index, sealed.swap_remove(position)))
                    });
                    if let Some((index, step)) = step {
                        return Choice::Upload(index, Box::new(step));
                    }
                }
                Err(error) => {
                    self.shared.warn("plan", &error.to_string());
                    return Choice::Later(Instant::now() + HURRIED_PAUSE);
                }
            }
        }
        if self.shared.stopping.is_requested()
            && let Some(last) = self.last_look().await
        {
            return last;
        }
        later.map_or(Choice::Nothing, Choice::Later)
    }

    /// Checks a step that waits for other nodes once more before the end: they may have completed it since.
    async fn last_look(&mut self) -> Option<Choice> {
        for (index, run) in self.runs.iter_mut().enumerate() {
            let ids: Vec<StepId> = run.waits.ids().collect();
            for id in ids {
                if !run.waits.take_last_look(id) {
                    continue;
                }
                let (vault, name) = (self.shared.vault.clone(), run.remote.keys.run().clone());
                if let Ok(Some(step)) = blocking(move || vault.step(&name, id)).await {
                    return Some(Choice::Upload(index, Box::new(step)));
                }
            }
        }
        None
    }
}

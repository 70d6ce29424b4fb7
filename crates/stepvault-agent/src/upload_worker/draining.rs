//! Chooses the next step when time is short.

use std::sync::Arc;

use stepvault_core::{Error, RunName, StepId};
use stepvault_engine::blocking::blocking;
use tokio::time::{Duration, Instant};

use super::UploadWorker;
use super::run_uploads::{Choice, VAULT_PAUSE, read_backlog};
use crate::backlog::Backlog;
use crate::drain::{DrainPlanner, Excluded};
use crate::pause::{LONGEST_WHEN_DRAINING, earliest, longest_pause};

impl UploadWorker {
    /// Returns the maximum pause after a failure.
    pub(super) fn longest_pause(&self, error: &Error) -> Duration {
        if self.shared.drain.stop.is_requested() { LONGEST_WHEN_DRAINING } else { longest_pause(error) }
    }

    /// Returns what plans the uploads to this remote.
    pub(crate) fn planner(&self, excluded: Excluded) -> DrainPlanner {
        DrainPlanner {
            shared: Arc::clone(&self.shared),
            remote: self.remote.clone(),
            runs: self.runs.iter().map(|run| run.remote.clone()).collect(),
            excluded,
        }
    }

    /// Returns the steps that are given up or paused; with `with_deferred` also the steps that retention would remove.
    pub(super) fn excluded(&self, with_deferred: bool) -> Excluded {
        let mut excluded = Excluded::default();
        for run in &self.runs {
            let name = run.remote.keys.run();
            let pause = run.pause.until();
            if run.given_up || pause.is_some() {
                let until = pause.filter(|_| !run.given_up);
                excluded.runs.insert(name.clone(), until);
            }
            for (id, tries) in &run.tries {
                let pause = tries.pause.until();
                if tries.given_up || pause.is_some() {
                    let until = pause.filter(|_| !tries.given_up);
                    excluded.steps.insert((name.clone(), *id), until);
                }
            }
            // This node has nothing left to send for those that lack other nodes' parts.
            let deferred = run.deferred.iter().copied().filter(|_| with_deferred);
            for id in run.missing_parts.ids().chain(deferred) {
                excluded.steps.insert((name.clone(), id), None);
            }
        }
        excluded
    }

    /// Returns the first step of the plan. Deferred steps come after all others.
    pub(super) async fn choose_urgently(&mut self) -> Choice {
        let is_stopping = self.shared.drain.stop.is_requested();
        if is_stopping && !std::mem::replace(&mut self.is_draining, true) {
            // Parts that were missing before may exist now, and there is no time to find out late.
            for run in &mut self.runs {
                run.pause.clear();
                run.tries.clear();
            }
        }
        let mut later = None;
        let mut backlogs: Vec<(RunName, Backlog)> = Vec::new();
        for (index, run) in self.runs.iter_mut().enumerate() {
            if run.given_up {
                continue;
            }
            let Some(backlog) = read_backlog(run, &self.shared).await else {
                let pause = VAULT_PAUSE.min(LONGEST_WHEN_DRAINING);
                later = earliest(later, Some(Instant::now() + pause));
                continue;
            };
            let (mut waiting, deferred) = run.waiting(&self.shared, &backlog);
            run.deferred = deferred;
            // Nothing is waited for while stopping; one check shows the current state.
            let due = run.due_check(&mut waiting, !is_stopping, &mut later);
            if let Some(step) = due.and_then(|id| backlog.sealed.iter().find(|step| step.id() == id)) {
                return Choice::upload(index, step.clone());
            }
            if waiting.is_empty() {
                continue;
            }
            if let Some(until) = run.pause.until() {
                later = earliest(later, Some(until));
                continue;
            }
            let tries = run.tries.values().filter(|tries| !tries.given_up);
            later = earliest(later, tries.filter_map(|tries| tries.pause.until()).min());
            backlogs.push((run.remote.keys.run().clone(), backlog));
        }
        for with_deferred in [true, false] {
            match self.planner(self.excluded(with_deferred)).plan_of(&backlogs).await {
                Ok(plan) => {
                    let first = plan.steps.into_iter().next();
                    let step = first.and_then(|planned| {
                        let is_its = |(run, _): &&(RunName, Backlog)| *run == planned.step.run;
                        let mut sealed = backlogs.iter().find(is_its)?.1.sealed.iter();
                        let step = sealed.find(|step| step.id() == planned.step.id)?;
                        let mut runs = self.runs.iter();
                        let index = runs.position(|run| *run.remote.keys.run() == planned.step.run)?;
                        Some(Choice::upload(index, step.clone()))
                    });
                    if let Some(choice) = step {
                        return choice;
                    }
                }
                Err(error) => {
                    self.shared.reporter.warn_once("plan", &error.to_string());
                    return Choice::Later(Instant::now() + LONGEST_WHEN_DRAINING);
                }
            }
        }
        if is_stopping && let Some(last) = self.final_check().await {
            return last;
        }
        Choice::later(later)
    }

    /// Checks a step that lacks other nodes' parts once more before the end: they may have completed it since.
    async fn final_check(&mut self) -> Option<Choice> {
        for (index, run) in self.runs.iter_mut().enumerate() {
            let ids: Vec<StepId> = run.missing_parts.ids().collect();
            for id in ids {
                if !run.missing_parts.take_final_check(id) {
                    continue;
                }
                let (vault, name) = (self.shared.vault.vault.clone(), run.remote.keys.run().clone());
                if let Ok(Some(step)) = blocking(move || vault.step(&name, id)).await {
                    return Some(Choice::upload(index, step));
                }
            }
        }
        None
    }
}

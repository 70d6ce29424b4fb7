//! Plans which of the waiting steps can still be finished.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::Result;
use stepvault_core::drain::{RemotePlan, Waiting, parts_at_once, plan};
use stepvault_core::file_parts::FileParts;
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_engine::blocking::blocking;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::sealed::SealedStep;
use tokio::time::Instant;

use crate::backlog::{Backlog, unsent_bytes};
use crate::shared::Shared;

/// How often a running upload is compared with the plan.
const INTERVAL: Duration = Duration::from_secs(2);

/// Plans the uploads to one remote when time is short.
#[derive(Debug, Clone)]
pub(crate) struct DrainPlanner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) remote: RemoteName,
    pub(crate) runs: Vec<RunRemote>,
    pub(crate) excluded: Excluded,
}

/// Steps that are given up, paused or deferred: each until some time, or permanently.
#[derive(Debug, Clone, Default)]
pub(crate) struct Excluded {
    pub(crate) runs: BTreeMap<RunName, Option<Instant>>,
    pub(crate) steps: BTreeMap<(RunName, StepId), Option<Instant>>,
}

impl Excluded {
    fn contains(&self, run: &RunName, id: StepId) -> bool {
        let known = [self.runs.get(run), self.steps.get(&(run.clone(), id))];
        let now = Instant::now();
        let mut known = known.into_iter().flatten();
        known.any(|until| until.is_none_or(|until| until > now))
    }
}

impl DrainPlanner {
    /// Plans what is left to send, from the current state of the vault.
    pub(crate) async fn plan(&self) -> Result<RemotePlan> {
        let mut backlogs = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            backlogs.push((run.keys.run().clone(), Backlog::read(&self.shared.vault.vault, run).await?));
        }
        self.plan_of(&backlogs).await
    }

    /// The same, from an existing scan.
    pub(crate) async fn plan_of(&self, backlogs: &[(RunName, Backlog)]) -> Result<RemotePlan> {
        let mut steps = Vec::new();
        for (run, backlog) in backlogs {
            let waits = |step: &&SealedStep| {
                backlog.missing.contains(&step.id()) && !self.excluded.contains(run, step.id())
            };
            steps.extend(backlog.sealed.iter().filter(waits).cloned());
        }
        let (vault, remote) = (self.shared.vault.vault.clone(), self.remote.clone());
        let waiting = blocking(move || {
            let waiting = steps.iter().map(|step| Waiting {
                run: step.run().clone(),
                id: step.id(),
                missing_bytes: unsent_bytes(&vault, step, &remote),
            });
            Ok(waiting.collect())
        })
        .await?;
        let left = self.shared.drain.time_left();
        Ok(plan(self.remote.clone(), waiting, self.rate(), left))
    }

    /// Returns the measured rate or, before anything was measured, the configured limit.
    fn rate(&self) -> Option<u64> {
        let limit = || self.runs.first()?.settings.bandwidth_limit_bytes_per_second;
        let measured = self.shared.throughput.bytes_per_second(&self.remote);
        measured.or_else(limit)
    }

    /// Returns when the upload of this step should be preempted by another one.
    pub(crate) async fn until_preempted(self, run: RunName, id: StepId) {
        self.shared.drain.urgent().await;
        loop {
            // A momentarily unreadable vault changes nothing.
            if self.plan().await.is_ok_and(|plan| plan.gives_way(&run, id)) {
                return;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// How many parts of a step are sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartsAtOnce {
    /// Length of the step's largest part.
    part_bytes: u64,
    pub(crate) count: usize,
}

impl DrainPlanner {
    /// Returns how many parts of the step to send at once: `at_most`, unless few of them would be whole at the deadline.
    pub(crate) fn parts_at_once(&self, step: &SealedStep, at_most: usize) -> PartsAtOnce {
        let files = step.record().own_files().into_iter();
        let largest = files.map(|file| file.size_bytes).max().unwrap_or_default();
        let part_bytes = FileParts::of(largest).map_or(largest, FileParts::part_size_bytes);
        let mut parts = PartsAtOnce { part_bytes: part_bytes.min(largest), count: at_most };
        parts.count = self.fewer(parts).unwrap_or(at_most);
        parts
    }

    fn fewer(&self, parts: PartsAtOnce) -> Option<usize> {
        let left = self.shared.drain.time_left().until_the_end?;
        let rate = self.rate()?;
        let count = parts_at_once(parts.part_bytes, rate, left, parts.count);
        (count < parts.count).then_some(count)
    }

    /// Returns when fewer parts should be sent at once, and those under way would not be finished in half of the time
    /// left: what was sent of them is lost then, and the parts that take their place are finished.
    pub(crate) async fn until_fewer_at_once(self, parts: PartsAtOnce) {
        self.shared.drain.urgent().await;
        loop {
            if self.fewer(parts).is_some() && !self.are_finished_soon(parts) {
                return;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    fn are_finished_soon(&self, parts: PartsAtOnce) -> bool {
        let under_way = parts.part_bytes.saturating_mul(parts.count as u64);
        let unsent = under_way.saturating_sub(self.shared.throughput.in_flight_bytes(&self.remote));
        let rate = self.rate().unwrap_or_default();
        let left = self.shared.drain.time_left().until_the_end.unwrap_or_default();
        u128::from(unsent) * 1000 <= u128::from(rate) * left.as_millis() / 2
    }
}

/// Reports once, when the service is asked to stop, what is expected to be finished in the remaining time.
pub(crate) async fn announce_plans(planners: Vec<DrainPlanner>, shared: Arc<Shared>) {
    let (drain, reporter) = (&shared.drain, &shared.reporter);
    drain.stop.wait().await;
    let Some(request) = drain.stop.requested() else {
        return;
    };
    for mut planner in planners {
        // Their bytes are sent: whether they become durable depends on other nodes.
        let mut wait_for_others = 0;
        for run in &planner.runs {
            let run = run.keys.run().clone();
            let state = reporter.status.remote(&run, &planner.remote);
            wait_for_others += state.lacking_parts().count();
            let lacking = state.lacking_parts().map(|(id, _)| *id);
            let not_ours = state.steps_for_operator().chain(lacking);
            let not_ours = not_ours.map(|id| ((run.clone(), id), None));
            planner.excluded.steps.extend(not_ours);
        }
        let Ok(plan) = planner.plan().await else { continue };
        if plan.steps.is_empty() && wait_for_others == 0 {
            continue;
        }
        let left = drain.time_left().until_the_end.unwrap_or_default();
        let others = match wait_for_others {
            0 => String::new(),
            1 => "; 1 step waits for other nodes' parts".to_owned(),
            steps => format!("; {steps} steps wait for other nodes' parts"),
        };
        reporter.warn(&format!(
            "draining after {}, uploads have {} s left: {}{others}",
            request.reason,
            left.as_secs(),
            plan.summary()
        ));
    }
}

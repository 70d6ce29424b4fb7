//! Determines which steps wait for a remote, and which of them can still be finished.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::Result;
use stepvault_core::drain::{RemotePlan, Waiting, plan};
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::observe::Event;
use stepvault_core::records::Pin;
use stepvault_engine::blocking::blocking;
use stepvault_engine::run_remote::RunRemote;
use stepvault_engine::upload::missing_bytes;
use stepvault_local::sealed::SealedStep;
use tokio::time::Instant;

use crate::lane::is_durable;
use crate::shared::Shared;

/// How often a running upload is compared with the plan.
const INTERVAL: Duration = Duration::from_secs(2);

/// The sealed steps of a run, and those that the remote lacks, both with the newest last.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) sealed: Vec<SealedStep>,
    pub(crate) missing: BTreeSet<StepId>,
    /// The same, plus those that cannot be sent before their attempt is determined.
    pub(crate) not_durable: BTreeSet<StepId>,
    pub(crate) pins: Vec<Pin>,
}

/// Finds the steps that the vault has and the remote lacks.
pub(crate) async fn look(shared: &Shared, remote: &RunRemote) -> Result<Found> {
    let (vault, run, remote) = (shared.vault.clone(), remote.keys.run().clone(), remote.clone());
    blocking(move || {
        let sealed = vault.steps(&run)?.steps;
        let not_durable = || sealed.iter().filter(|step| !is_durable(step, &remote));
        let missing = not_durable()
            .filter(|step| !step.record().is_provisional())
            .map(SealedStep::id)
            .collect();
        let not_durable = not_durable().map(SealedStep::id).collect();
        Ok(Found {
            sealed,
            missing,
            not_durable,
            pins: vault.pins(&run)?,
        })
    })
    .await
}

/// One remote with its runs, for planning.
#[derive(Debug, Clone)]
pub(crate) struct Outlook {
    pub(crate) shared: Arc<Shared>,
    pub(crate) remote: RemoteName,
    pub(crate) runs: Vec<RunRemote>,
    pub(crate) not_for_now: NotForNow,
}

/// Steps that are given up, paused or deferred: each until some time, or permanently.
#[derive(Debug, Clone, Default)]
pub(crate) struct NotForNow {
    pub(crate) runs: BTreeMap<RunName, Option<Instant>>,
    pub(crate) steps: BTreeMap<(RunName, StepId), Option<Instant>>,
}

impl NotForNow {
    fn holds(&self, run: &RunName, id: StepId) -> bool {
        let known = [self.runs.get(run), self.steps.get(&(run.clone(), id))];
        let now = Instant::now();
        let mut known = known.into_iter().flatten();
        known.any(|until| until.is_none_or(|until| until > now))
    }
}

impl Outlook {
    /// Plans what is left to send, from the current state of the vault.
    pub(crate) async fn plan(&self) -> Result<RemotePlan> {
        let mut found = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            found.push((run.keys.run().clone(), look(&self.shared, run).await?));
        }
        self.plan_of(&found).await
    }

    /// The same, from an existing scan.
    pub(crate) async fn plan_of(&self, found: &[(RunName, Found)]) -> Result<RemotePlan> {
        let mut steps = Vec::new();
        for (run, found) in found {
            let waits = |step: &&SealedStep| {
                found.missing.contains(&step.id()) && !self.not_for_now.holds(run, step.id())
            };
            steps.extend(found.sealed.iter().filter(waits).cloned());
        }
        let (vault, remote) = (self.shared.vault.clone(), self.remote.clone());
        let waiting = blocking(move || {
            let waiting = steps.iter().map(|step| Waiting {
                run: step.run().clone(),
                id: step.id(),
                // An unreadable journal is restarted, and so is the step.
                missing_bytes: missing_bytes(&vault, step, &remote)
                    .unwrap_or_else(|_| step.record().data_bytes()),
            });
            Ok(waiting.collect())
        })
        .await?;
        let rate = self.shared.rates.bytes_per_second(&self.remote);
        Ok(plan(
            self.remote.clone(),
            waiting,
            rate,
            self.shared.hurry.time_left(),
        ))
    }

    /// Returns when the upload of this step should be preempted by another one.
    pub(crate) async fn until_it_gives_way(self, run: RunName, id: StepId) {
        self.shared.hurry.on().await;
        loop {
            // A momentarily unreadable vault changes nothing.
            if self.plan().await.is_ok_and(|plan| plan.gives_way(&run, id)) {
                return;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// Reports once, when the service is asked to stop, what is expected to be finished in the remaining time.
pub(crate) async fn announce(outlooks: Vec<Outlook>) {
    let Some(shared) = outlooks.first().map(|outlook| Arc::clone(&outlook.shared)) else {
        return;
    };
    shared.hurry.stop.wait().await;
    let Some(request) = shared.hurry.stop.requested() else {
        return;
    };
    for mut outlook in outlooks {
        // Their bytes are sent: whether they become durable depends on other nodes.
        let mut wait_for_others = 0;
        for run in &outlook.runs {
            let run = run.keys.run().clone();
            let troubles = shared.status.on_remote(&run, &outlook.remote);
            wait_for_others += troubles.lacking_parts().count();
            let lacking = troubles.lacking_parts().map(|(id, _)| *id);
            let not_ours = troubles.steps_for_operator().chain(lacking);
            let not_ours = not_ours.map(|id| ((run.clone(), id), None));
            outlook.not_for_now.steps.extend(not_ours);
        }
        let Ok(plan) = outlook.plan().await else { continue };
        if plan.steps.is_empty() && wait_for_others == 0 {
            continue;
        }
        let seconds = shared
            .hurry
            .time_left()
            .until_the_end
            .unwrap_or_default()
            .as_secs();
        let others = match wait_for_others {
            0 => String::new(),
            1 => "; 1 step waits for other nodes' parts".to_owned(),
            steps => format!("; {steps} steps wait for other nodes' parts"),
        };
        let text = format!(
            "draining after {}, uploads have {seconds} s left: {}{others}",
            request.reason,
            plan.summary()
        );
        shared.observer.on_event(&Event::Warning { message: &text });
    }
}

//! Putting the tasks together from the options.

use std::sync::Arc;

use stepvault_core::clock::Clock as _;
use stepvault_core::timestamp::Timestamp;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::run_remote::RunRemote;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::SystemClock;
use crate::discovery::Discovery;
use crate::lane::{LaneRun, LaneTask};
use crate::options::{AgentOptions, AgentRemote, AgentRun};
use crate::prompt_store::PromptStore;
use crate::retention::{LocalRetention, LocalRun, PruneTask, PrunedRun};
use crate::sealer::{SealedRun, Sealer};
use crate::shared::Shared;

/// The tasks of a service, not started yet.
pub(crate) struct Tasks {
    pub(crate) sealer: Sealer,
    pub(crate) lanes: Vec<LaneTask>,
    pub(crate) local: LocalRetention,
    pub(crate) prunes: Vec<PruneTask>,
}

pub(crate) fn tasks(
    options: &AgentOptions,
    shared: &Arc<Shared>,
    discoveries: Vec<Option<Discovery>>,
) -> Tasks {
    let prompt = prompt(&options.remotes);
    let sealed_run = |(run, discovery): (&AgentRun, Option<Discovery>)| SealedRun {
        run: run.run.clone(),
        discovery,
        shared: run.shared,
        there_at_first: None,
        profile: run.profile.clone(),
        metrics_source: run.metrics_source.clone(),
        remotes: remotes_of(run, &prompt),
        clean_at: run.clean_source.then(Instant::now),
        // Where a round begins differs from one start to the next, or rounds from cron would all look at the same steps.
        clean_turn: usize::try_from(SystemClock.now().seconds_since(Timestamp::default()))
            .unwrap_or_default(),
    };
    let sealer = Sealer {
        shared: Arc::clone(shared),
        runs: options.runs.iter().zip(discoveries).map(sealed_run).collect(),
        writer: options.writer.clone(),
        attempt: options.attempt,
        launch_since: SystemClock.now(),
        profiles: Arc::clone(&options.profiles),
        links: options.links,
        poll_interval: options.poll_interval,
        clean_interval: options.retention_interval,
        once: options.once,
        not_before: None,
    };
    let local_run = |run: &AgentRun| LocalRun {
        run: run.run.clone(),
        watched: run.watch_directory.clone(),
        rules: run.keep_local.clone(),
        remotes: remotes_of(run, &prompt),
    };
    let local = LocalRetention {
        shared: Arc::clone(shared),
        runs: options.runs.iter().map(local_run).collect(),
        limits: options.local_limits,
        interval: options.retention_interval,
    };
    let budget = MemoryBudget::new(options.memory_budget_bytes);
    let mut lanes = Vec::new();
    let mut prunes = Vec::new();
    for (remote, wake) in options.remotes.iter().zip(&shared.lanes) {
        let runs: Vec<(RunRemote, &AgentRun)> = options
            .runs
            .iter()
            .filter(|run| run.remotes.contains(&remote.settings.name))
            .map(|run| (on_remote(run, remote), run))
            .collect();
        let uploaded = Arc::new(Notify::new());
        lanes.push(LaneTask {
            shared: Arc::clone(shared),
            remote: remote.settings.name.clone(),
            budget: budget.clone(),
            runs: runs
                .iter()
                .map(|(here, run)| LaneRun::new(here.clone(), run.keep_remote.clone()))
                .collect(),
            wake: Arc::clone(wake),
            uploaded: Arc::clone(&uploaded),
            maximum_backlog_steps: options.maximum_backlog_steps,
            incomplete_after: options.incomplete_after,
            once: options.once,
            next_run: 0,
            hurried: false,
        });
        prunes.push(PruneTask {
            shared: Arc::clone(shared),
            runs: runs
                .into_iter()
                .map(|(here, run)| PrunedRun::new(here, run.keep_remote.clone()))
                .collect(),
            interval: options.retention_interval,
            uploaded,
        });
    }
    Tasks {
        sealer,
        lanes,
        local,
        prunes,
    }
}

fn on_remote(run: &AgentRun, remote: &AgentRemote) -> RunRemote {
    RunRemote::new(
        Arc::clone(&remote.store),
        Arc::clone(&remote.settings),
        run.run.clone(),
    )
}

/// The remotes, such that asking them takes no longer than it may.
pub(crate) fn prompt(remotes: &[AgentRemote]) -> Vec<AgentRemote> {
    let prompt = |remote: &AgentRemote| AgentRemote {
        settings: Arc::clone(&remote.settings),
        store: Arc::new(PromptStore::new(Arc::clone(&remote.store))),
    };
    remotes.iter().map(prompt).collect()
}

/// A run on its remotes.
pub(crate) fn remotes_of(run: &AgentRun, remotes: &[AgentRemote]) -> Vec<RunRemote> {
    let its = remotes
        .iter()
        .filter(|remote| run.remotes.contains(&remote.settings.name));
    its.map(|remote| on_remote(run, remote)).collect()
}

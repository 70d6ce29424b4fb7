//! Creates the tasks of the service from its options.

use std::sync::{Arc, Mutex};

use stepvault_core::clock::Clock as _;
use stepvault_core::ids::RunName;
use stepvault_core::timestamp::Timestamp;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::push::Placer;
use stepvault_engine::run_remote::RunRemote;
use stepvault_local::vault::Vault;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::attempts::{AttemptTask, OpenRun};
use crate::clock::SystemClock;
use crate::discovery::Discovery;
use crate::lane::{LaneRun, LaneTask};
use crate::options::{AgentOptions, AgentRemote, AgentRun};
use crate::other_writers::{OtherWriters, WatchedRun};
use crate::retention::{LocalRetention, LocalRun, PruneTask, PrunedRun};
use crate::retries::Retries;
use crate::sealer::{SealedRun, Sealer};
use crate::shared::Shared;
use crate::timeout_store::TimeoutStore;

/// The tasks of a service, not yet started.
pub(crate) struct Tasks {
    pub(crate) sealer: Sealer,
    pub(crate) attempts: AttemptTask,
    pub(crate) lanes: Vec<LaneTask>,
    pub(crate) local: LocalRetention,
    pub(crate) prunes: Vec<PruneTask>,
    pub(crate) other_writers: OtherWriters,
}

pub(crate) fn tasks(
    options: &AgentOptions,
    shared: &Arc<Shared>,
    discoveries: Vec<Option<Discovery>>,
) -> Tasks {
    let prompt = prompt(&options.remotes);
    let sealer = sealer(options, shared, discoveries, &prompt);
    let open_run = |run: &AgentRun| {
        let placer = Placer {
            writer: options.writer.clone(),
            launch_since: sealer.launch_since,
        };
        let remotes = remotes_of(run, &options.remotes, &shared.vault);
        Arc::new(OpenRun::new(run.run.clone(), remotes, placer))
    };
    let open_runs: Vec<Arc<OpenRun>> = options.runs.iter().map(open_run).collect();
    let local_run = |run: &AgentRun| LocalRun {
        run: run.run.clone(),
        watched: run.watch_directory.clone(),
        rules: run.keep_local.clone(),
        remotes: remotes_of(run, &prompt, &shared.vault),
    };
    let local = LocalRetention {
        shared: Arc::clone(shared),
        runs: options.runs.iter().map(local_run).collect(),
        limits: options.local_limits,
        interval: options.retention_interval,
        told: Mutex::default(),
    };
    let budget = MemoryBudget::new(options.memory_budget_bytes);
    let mut lanes = Vec::new();
    let mut prunes = Vec::new();
    for (remote, wake) in options.remotes.iter().zip(&shared.lanes) {
        let runs: Vec<(RunRemote, &AgentRun, &Arc<OpenRun>)> = options
            .runs
            .iter()
            .zip(&open_runs)
            .filter(|(run, _)| run.remotes.contains(&remote.settings.name))
            .map(|(run, attempts)| (on_remote(&run.run, remote, &shared.vault), run, attempts))
            .collect();
        let uploaded = Arc::new(Notify::new());
        lanes.push(LaneTask {
            shared: Arc::clone(shared),
            remote: remote.settings.name.clone(),
            budget: budget.clone(),
            runs: runs
                .iter()
                .map(|(here, run, attempts)| {
                    let exclusive = run.exclusive.then(|| options.writer.clone());
                    LaneRun::new(
                        here.clone(),
                        run.keep_remote.clone(),
                        Arc::clone(attempts),
                        exclusive,
                    )
                })
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
                .map(|(here, run, _)| {
                    let mut others = remotes_of(run, &prompt, &shared.vault);
                    others.retain(|other| other.name() != here.name());
                    PrunedRun::new(here, others, run.keep_remote.clone())
                })
                .collect(),
            interval: options.retention_interval,
            uploaded,
        });
    }
    let watched = options
        .runs
        .iter()
        .flat_map(|run| remotes_of(run, &prompt, &shared.vault));
    let other_writers = OtherWriters {
        shared: Arc::clone(shared),
        runs: watched.map(WatchedRun::new).collect(),
        writer: options.writer.clone(),
        started_at: SystemClock.now(),
    };
    Tasks {
        sealer,
        attempts: AttemptTask::new(Arc::clone(shared), open_runs, options.once),
        lanes,
        local,
        prunes,
        other_writers,
    }
}

fn sealer(
    options: &AgentOptions,
    shared: &Arc<Shared>,
    discoveries: Vec<Option<Discovery>>,
    prompt: &[AgentRemote],
) -> Sealer {
    let sealed_run = |(run, discovery): (&AgentRun, Option<Discovery>)| SealedRun {
        run: run.run.clone(),
        discovery,
        shared: run.shared,
        there_at_first: None,
        profile: run.profile.clone(),
        metrics_source: run.metrics_source.clone(),
        remotes: remotes_of(run, prompt, &shared.vault),
        clean_at: run.clean_source.then(Instant::now),
        // Start at a different position each time, or rounds started by cron would all check the same steps.
        clean_turn: usize::try_from(SystemClock.now().seconds_since(Timestamp::default()))
            .unwrap_or_default(),
        retries: Retries::default(),
    };
    Sealer {
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
    }
}

/// Returns a run on one remote.
pub(crate) fn on_remote(run: &RunName, remote: &AgentRemote, vault: &Vault) -> RunRemote {
    RunRemote::new(
        Arc::clone(&remote.store),
        Arc::clone(&remote.settings),
        run.clone(),
    )
    .remembered_by(vault)
}

/// Returns the remotes, each wrapped in a timeout.
pub(crate) fn prompt(remotes: &[AgentRemote]) -> Vec<AgentRemote> {
    let prompt = |remote: &AgentRemote| AgentRemote {
        settings: Arc::clone(&remote.settings),
        store: Arc::new(TimeoutStore::new(Arc::clone(&remote.store))),
    };
    remotes.iter().map(prompt).collect()
}

/// Returns a run on its remotes, as recorded in the vault.
pub(crate) fn remotes_of(run: &AgentRun, remotes: &[AgentRemote], vault: &Vault) -> Vec<RunRemote> {
    let its = remotes
        .iter()
        .filter(|remote| run.remotes.contains(&remote.settings.name));
    its.map(|remote| on_remote(&run.run, remote, vault)).collect()
}

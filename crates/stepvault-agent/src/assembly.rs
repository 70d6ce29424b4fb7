//! Creates the tasks of the service from its options.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::clock::Clock as _;
use stepvault_core::timestamp::Timestamp;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::placement::Placer;
use stepvault_engine::upload::SharedDigests;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::announcements::Announcements;
use crate::attempts::{AttemptTask, OpenRun};
use crate::discovery::Discovery;
use crate::drain::DrainState;
use crate::options::{AgentOptions, AgentRemote, AgentRun};
use crate::other_writers::{OtherWriters, WatchedRun};
use crate::remotes::{on_remote, remotes_of, with_timeouts};
use crate::reporter::Reporter;
use crate::retention::{LocalRetention, LocalRun, PruneTask, PrunedRun};
use crate::retries::Retries;
use crate::sealer::{SealedRun, Sealer};
use crate::signals::Signals;
use crate::throughput::Throughput;
use crate::upload_worker::{RunUploads, UploadWorker};
use crate::vault_access::VaultAccess;
use stepvault_local::clock::SystemClock;

/// The longest time for which what the vault takes for durable is not compared with what the remotes list.
const LONGEST_COMPARISON_INTERVAL: Duration = Duration::from_hours(1);

/// What tasks share. Each takes what it needs of it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) vault: VaultAccess,
    pub(crate) reporter: Reporter,
    pub(crate) signals: Arc<Signals>,
    pub(crate) drain: DrainState,
    pub(crate) throughput: Arc<Throughput>,
    pub(crate) announcements: Arc<Announcements>,
}

/// The tasks of a service, not yet started.
pub(crate) struct Tasks {
    pub(crate) sealer: Sealer,
    pub(crate) attempts: AttemptTask,
    pub(crate) upload_workers: Vec<UploadWorker>,
    pub(crate) local: LocalRetention,
    pub(crate) prunes: Vec<PruneTask>,
    pub(crate) other_writers: OtherWriters,
}

impl Shared {
    /// Creates the tasks. What the trainer writes from `started_at` on belongs to this launch.
    pub(crate) fn tasks(
        &self,
        options: &AgentOptions,
        discoveries: Vec<Option<Discovery>>,
        started_at: Timestamp,
    ) -> Tasks {
        let vault = &self.vault.vault;
        let timed = with_timeouts(&options.remotes);
        let sealer = self.sealer(options, discoveries, &timed, started_at);
        let open_run = |run: &AgentRun| {
            let placer = Placer {
                writer: options.writer.clone(),
                launch_since: sealer.launch_since,
            };
            let remotes = remotes_of(run, &options.remotes, vault);
            Arc::new(OpenRun::new(run.run.clone(), remotes, placer))
        };
        let open_runs: Vec<Arc<OpenRun>> = options.runs.iter().map(open_run).collect();
        let mut upload_workers = Vec::new();
        let mut prunes = Vec::new();
        let budget = MemoryBudget::new(options.memory_budget_bytes);
        let digests = SharedDigests::default();
        for (remote, wake) in options.remotes.iter().zip(&self.signals.uploads) {
            let all = options.runs.iter().zip(&open_runs);
            let runs = || {
                all.clone()
                    .filter(|(run, _)| run.remotes.contains(&remote.settings.name))
            };
            let uploads = runs().map(|(run, attempts)| {
                let exclusive = run.exclusive.then(|| options.writer.clone());
                let on_remote = on_remote(&run.run, remote, vault);
                RunUploads::new(
                    on_remote,
                    run.digest,
                    run.keep_remote.clone(),
                    Arc::clone(attempts),
                    exclusive,
                )
            });
            let pruned_runs = runs().map(|(run, _)| {
                let mut others = remotes_of(run, &timed, vault);
                others.retain(|other| *other.name() != remote.settings.name);
                PrunedRun::new(
                    on_remote(&run.run, remote, vault),
                    others,
                    run.keep_remote.clone(),
                )
            });
            let uploaded = Arc::new(Notify::new());
            prunes.push(PruneTask {
                vault: vault.clone(),
                reporter: self.reporter.clone(),
                stop: self.drain.stop.clone(),
                runs: pruned_runs.collect(),
                interval: options.retention_interval,
                uploaded: Arc::clone(&uploaded),
            });
            upload_workers.push(UploadWorker {
                vault: self.vault.clone(),
                reporter: self.reporter.clone(),
                signals: Arc::clone(&self.signals),
                drain: self.drain.clone(),
                throughput: Arc::clone(&self.throughput),
                remote: remote.settings.name.clone(),
                budget: budget.clone(),
                cpu_share: options.cpu_share.clone(),
                digests: digests.clone(),
                runs: uploads.collect(),
                wake: Arc::clone(wake),
                uploaded,
                maximum_backlog_steps: options.maximum_backlog_steps,
                incomplete_after: options.incomplete_after,
                node: options.writer.place.node().clone(),
                comparison_interval: options.retention_interval.min(LONGEST_COMPARISON_INTERVAL),
                once: options.once,
                next_run: 0,
                is_draining: false,
            });
        }
        let watched = options.runs.iter().flat_map(|run| remotes_of(run, &timed, vault));
        let other_writers = OtherWriters {
            reporter: self.reporter.clone(),
            stop: self.drain.stop.clone(),
            runs: watched.map(WatchedRun::new).collect(),
            writer: options.writer.clone(),
            started_at: SystemClock.now(),
        };
        let attempts = AttemptTask {
            vault: self.vault.clone(),
            reporter: self.reporter.clone(),
            signals: Arc::clone(&self.signals),
            stop: self.drain.stop.clone(),
            runs: open_runs,
            once: options.once,
        };
        Tasks {
            sealer,
            attempts,
            upload_workers,
            local: self.local_retention(options, &timed),
            prunes,
            other_writers,
        }
    }

    fn local_retention(&self, options: &AgentOptions, timed: &[AgentRemote]) -> LocalRetention {
        let local_run = |run: &AgentRun| LocalRun {
            run: run.run.clone(),
            watched: run.watch_directory.clone(),
            rules: run.keep_local.clone(),
            remotes: remotes_of(run, timed, &self.vault.vault),
        };
        LocalRetention {
            vault: self.vault.clone(),
            reporter: self.reporter.clone(),
            signals: Arc::clone(&self.signals),
            stop: self.drain.stop.clone(),
            runs: options.runs.iter().map(local_run).collect(),
            limits: options.local_limits,
            interval: options.retention_interval,
            published: RefCell::default(),
        }
    }

    fn sealer(
        &self,
        options: &AgentOptions,
        discoveries: Vec<Option<Discovery>>,
        timed: &[AgentRemote],
        started_at: Timestamp,
    ) -> Sealer {
        let sealed_run = |(run, discovery): (&AgentRun, Option<Discovery>)| SealedRun {
            run: run.run.clone(),
            discovery,
            shared: run.shared,
            digest: run.digest,
            knows_launches: false,
            first_scan: None,
            live_below_highest: None,
            profile: run.profile.clone(),
            metrics_source: run.metrics_source.clone(),
            remotes: remotes_of(run, timed, &self.vault.vault),
            clean_at: run.clean_source.then(Instant::now),
            // Start at a different position each time, or rounds started by cron would all check the same steps.
            clean_turn: usize::try_from(SystemClock.now().seconds_since(Timestamp::default()))
                .unwrap_or_default(),
            retries: Retries::default(),
        };
        Sealer {
            vault: self.vault.clone(),
            reporter: self.reporter.clone(),
            signals: Arc::clone(&self.signals),
            stop: self.drain.stop.clone(),
            announcements: Arc::clone(&self.announcements),
            runs: options.runs.iter().zip(discoveries).map(sealed_run).collect(),
            writer: options.writer.clone(),
            attempt: options.attempt,
            launch_since: started_at,
            profiles: Arc::clone(&options.profiles),
            links: options.links,
            poll_interval: options.poll_interval,
            clean_interval: options.retention_interval,
            once: options.once,
            trainer_ended: options.trainer_ended,
            drain: self.drain.clone(),
            not_before: None,
        }
    }
}

//! Creates the tasks of the service from what they share.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use stepvault_core::config::RunSettings;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::placement::CurrentWriter;
use stepvault_engine::upload::SharedDigests;
use stepvault_local::clock;
use tokio::sync::Notify;

use crate::attempts::{AttemptTask, OpenRun};
use crate::discovery::Discovery;
use crate::other_writers::{OtherWriters, WatchedRun};
use crate::remotes::{on_remote, remotes_of, served_runs, with_timeouts};
use crate::retention::{LocalRetention, PruneTask, PrunedRun};
use crate::sealer::{SealedRun, Sealer};
use crate::shared::Shared;
use crate::tier::TierTask;
use crate::upload_worker::{RunUploads, UploadWorker};

/// The tasks of a service, not yet started.
pub(crate) struct Tasks {
    pub(crate) sealer: Sealer,
    pub(crate) attempts: AttemptTask,
    pub(crate) upload_workers: Vec<UploadWorker>,
    pub(crate) local: LocalRetention,
    pub(crate) prunes: Vec<PruneTask>,
    pub(crate) tier: TierTask,
    pub(crate) other_writers: OtherWriters,
}

impl Tasks {
    /// Creates the tasks; each run has a discovery if it is watched.
    pub(crate) fn new(shared: &Arc<Shared>, discoveries: Vec<Option<Discovery>>) -> Self {
        let (options, vault) = (&shared.options, &shared.vault.vault);
        // Tasks share their timeouts; each remembers what it has read.
        let timed = with_timeouts(options);
        let open_run = |run: &RunSettings| {
            let current = CurrentWriter { writer: options.writer.clone(), launch_since: shared.started_at };
            let remotes = remotes_of(run, options, vault);
            Arc::new(OpenRun::new(run.name.clone(), remotes, current))
        };
        let open_runs: Vec<Arc<OpenRun>> = options.runs.iter().map(open_run).collect();
        let budget = MemoryBudget::new(options.upload.memory_budget_bytes);
        let digests = SharedDigests::default();
        let (mut upload_workers, mut prunes) = (Vec::new(), Vec::new());
        for (remote, wake) in options.remotes.iter().zip(&shared.signals.uploads) {
            let name = &remote.settings.name;
            let (mut uploads, mut pruned_runs) = (Vec::new(), Vec::new());
            for (run, attempts) in options.runs.iter().zip(&open_runs) {
                if run.has_remote(name) {
                    let here = || on_remote(&run.name, remote, vault);
                    let mut others = remotes_of(run, &timed, vault);
                    others.retain(|other| other.name() != name);
                    others.extend(timed.selective_of(run).map(|remote| on_remote(&run.name, remote, vault)));
                    pruned_runs.push(PrunedRun::new(here(), others, run));
                    uploads.push(RunUploads::new(here(), run.clone(), Arc::clone(attempts)));
                }
            }
            let uploaded = Arc::new(Notify::new());
            prunes.push(PruneTask {
                shared: Arc::clone(shared),
                runs: pruned_runs,
                uploaded: Arc::clone(&uploaded),
            });
            upload_workers.push(UploadWorker {
                shared: Arc::clone(shared),
                remote: name.clone(),
                budget: budget.clone(),
                digests: digests.clone(),
                runs: uploads,
                wake: Arc::clone(wake),
                uploaded,
                copy: shared.signals.copy.subscribe(),
                ahead: None,
                next_run: 0,
                is_draining: false,
            });
        }
        let watched = served_runs(&timed, vault).into_iter().flat_map(|run| run.remotes);
        Self {
            sealer: Sealer {
                shared: Arc::clone(shared),
                runs: served_runs(&timed, vault)
                    .into_iter()
                    .zip(discoveries)
                    .map(|(run, discovery)| SealedRun::new(run, discovery))
                    .collect(),
                not_before: None,
            },
            attempts: AttemptTask { shared: Arc::clone(shared), runs: open_runs },
            upload_workers,
            local: LocalRetention {
                shared: Arc::clone(shared),
                runs: served_runs(&timed, vault),
                published: RefCell::default(),
            },
            prunes,
            tier: TierTask::new(shared, budget),
            other_writers: OtherWriters {
                shared: Arc::clone(shared),
                runs: watched
                    .map(|remote| WatchedRun { remote, known: None, undecided: BTreeMap::new() })
                    .collect(),
                started_at: clock::now(),
            },
        }
    }
}

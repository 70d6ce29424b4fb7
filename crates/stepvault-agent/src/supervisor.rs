//! Starts all tasks, stops them, and returns the report.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::config::NotifyEvent;
use stepvault_core::{Error, ErrorKind, Observer, RemoteName, Result, RunName, StepId, Timestamp};
use stepvault_engine::blocking::blocking;
use stepvault_engine::cpu_share::CpuShare;
use stepvault_local::ownership::Parents;
use stepvault_local::{Vault, clock};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, timeout_at};

use crate::agent_status::{AgentStatus, Reporter};
use crate::assembly::Tasks;
use crate::control::{Control, ControlState, MAX_WAITS};
use crate::discovery::{Discovery, EarlyPlace, ScanMode};
use crate::drain::state::DrainState;
use crate::drain::{Excluded, announce_plans, report_earlier_drains, write_drain_records};
use crate::final_report::final_report;
use crate::followed::Followed;
use crate::metrics::{AgentObserver, Metrics};
use crate::notice;
use crate::notifications::{LAST_MOMENTS, Notifier, Occurrence};
use crate::options::AgentOptions;
use crate::priority::Priority;
use crate::remotes::{ServedRun, served_runs, with_timeouts};
use crate::report::{AgentReport, LeftUndone, NotDurable};
use crate::shared::{Shared, Signals, VaultAccess};
use crate::starts::OwnStart;
use crate::status_file::StatusFiles;
use crate::stop::Stop;
use crate::throughput::Throughput;
use crate::vault_watch::VaultWatch;

/// Runs the service until `stop` is requested, or with `once` until all existing work is done.
///
/// When a stop is requested, it seals what is complete, uploads the steps closest to durable first, and returns in time
/// for the process to be gone by the deadline; after a provider's notice it also seals steps that are finished later.
/// Dropping the future is like killing the process: the next start resumes. The future is not `Send`: it is for the
/// runtime's main thread. A seal may still be running on a blocking thread when it returns at the deadline: shut the
/// runtime down without waiting for those threads, and the next start cleans up.
///
/// If the vault is deleted under the service, the service warns and, without `once`, creates a new one. The report
/// contains what was lost with the old one.
///
/// # Errors
/// [`ErrorKind::Held`] when another process holds the vault; [`ErrorKind::Usage`] for contradictory options; the cause
/// if the vault cannot be opened, or created again after it was deleted. Later faults are reported to the observer and
/// in the report.
pub async fn run(options: AgentOptions, observer: Arc<dyn Observer>, stop: Stop) -> Result<AgentReport> {
    // Before anything that may take long: the trainer may save already.
    let started_at = clock::now();
    options.check()?;
    let followed = options.lifecycle.followed_process;
    let followed = followed.map(|process_id| Followed::new(process_id, stop.clone()));
    let followed = followed.transpose()?;
    let priority = lowered(&options, &*observer);
    let share = options.agent.cpu_share_percent;
    let cpu_share = share.map_or_else(CpuShare::unlimited, CpuShare::new);
    if options.lifecycle.trainer_ended {
        cpu_share.lift();
    }
    let service = Service { options: Arc::new(options), followed, cpu_share, observer, stop, started_at };
    let restored = async {
        service.stop.wait().await;
        drop(priority);
        service.cpu_share.lift();
        std::future::pending().await
    };
    tokio::select! {
        biased;
        report = Box::pin(service.serve()) => report,
        report = restored => report,
    }
}

/// Lowers the priority of this process, if the options want it and the trainer may still run.
fn lowered(options: &AgentOptions, observer: &dyn Observer) -> Option<Priority> {
    if options.agent.nice == 0 || options.lifecycle.trainer_ended {
        return None;
    }
    let lowered = Priority::lower(i32::from(options.agent.nice));
    let warn = |error: &Error| {
        observer.warn(error.text_with_hint());
    };
    lowered.inspect_err(warn).ok()
}

/// Interval at which the problems of the health check are looked for, to notify of them.
const PROBLEMS_INTERVAL: Duration = Duration::from_secs(15);

/// How serving one vault ended.
enum Served {
    /// Regularly.
    Ended(Box<AgentReport>),
    /// The vault no longer exists.
    VaultGone {
        watch: VaultWatch,
        /// What was not durable, as far as known.
        waiting: Vec<NotDurable>,
    },
}

/// The service, over the vaults that it serves one after the other.
struct Service {
    options: Arc<AgentOptions>,
    followed: Option<Arc<Followed>>,
    cpu_share: CpuShare,
    observer: Arc<dyn Observer>,
    stop: Stop,
    started_at: Timestamp,
}

impl Service {
    /// Serves one vault after the other.
    async fn serve(&self) -> Result<AgentReport> {
        let place = self.options.vault_directory.display();
        let mut lost = Vec::new();
        loop {
            let (watch, waiting) = match Box::pin(self.serve_vault(&lost)).await? {
                Served::Ended(report) => return Ok(*report),
                Served::VaultGone { watch, waiting } => (watch, waiting),
            };
            let steps: BTreeSet<(&RunName, StepId)> =
                waiting.iter().map(|step| (&step.run, step.id)).collect();
            let lost_with_it = match steps.len() {
                0 => "every step in it was durable".to_owned(),
                1 => "it held 1 step that was not durable".to_owned(),
                steps => format!("it held {steps} steps that were not durable"),
            };
            let what = format!("the vault {place} was deleted or replaced under the agent: {lost_with_it}");
            lost.extend(waiting);
            if self.options.lifecycle.once {
                return Err(Error::new(ErrorKind::Failed, what)
                    .hint("run it again: it seals the steps that the trainer still has"));
            }
            self.observer.warn(&what);
            watch.may_begin_anew().await?;
            self.observer.warn(format!(
                "creating a new vault in {place}; the steps that the trainer still has are sealed again"
            ));
        }
    }

    /// Serves one vault. `lost` is what was lost with earlier vaults.
    async fn serve_vault(&self, lost: &[NotDurable]) -> Result<Served> {
        let mut discoveries = self.discoveries()?;
        let drain = DrainState::new(self.stop.clone(), self.options.agent.drain_deadline);
        let open = async {
            let watch = open_vault(&self.options).await?;
            self.warn_of_unserved_runs(watch.vault()).await?;
            Ok(watch)
        };
        let watch = tokio::select! {
            biased;
            opened = open => opened?,
            () = drain.uploads_end() => return Err(stopped_before_it_began(&self.options)),
        };
        self.prepare(&mut discoveries, watch.vault());
        let (shared, metrics, runs) = self.share(watch.vault(), drain);
        let reporter = &shared.reporter;
        for run in &self.options.runs {
            reporter.info(&self.options.description_of(run));
        }
        let own_start = OwnStart::record(&shared).await;
        let tasks = Tasks::new(&shared, discoveries);
        let (ended, told) = watch::channel(None);
        let control_state = ControlState {
            shared: Arc::clone(&shared),
            followed: self.followed.clone(),
            runs,
            metrics: Arc::clone(&metrics),
            ended: told,
            waits: Semaphore::new(MAX_WAITS),
        };
        let control = Control::start(control_state, ended).await?;
        // All tasks stay on the caller's thread: long operations run in the engine's own tasks and on blocking threads.
        let announced = Arc::<notice::Announced>::default();
        let life = Box::pin(live(&shared, self.followed.as_ref(), &watch, tasks, &metrics, &announced));
        let lived = LocalSet::new().run_until(life).await;
        if let Ok(Lived::VaultGone) = lived {
            own_start.abandon();
            control.end(None).await;
            let waiting = reporter.status.lost_with_vault(&self.options.remotes);
            return Ok(Served::VaultGone { watch, waiting });
        }
        own_start.record_end(self.stop.requested(), &lived).await;
        lived?;
        let report = conclude(&shared, &metrics, &announced, lost).await;
        control.end(report.as_ref().ok()).await;
        drop(watch);
        report.map(|report| Served::Ended(Box::new(report)))
    }

    fn discoveries(&self) -> Result<Vec<Option<Discovery>>> {
        let scan_mode = if self.options.lifecycle.once { ScanMode::Once } else { ScanMode::Continuous };
        let (options, profiles) = (&self.options, &self.options.profiles);
        let runs = options.runs.iter();
        runs.map(|run| Discovery::new(run, profiles, scan_mode, options.extent_of(run))).collect()
    }

    /// Gives the discoveries what they need of other runs and of the vault.
    fn prepare(&self, discoveries: &mut [Option<Discovery>], vault: &Vault) {
        let options = &self.options;
        for (run, discovery) in options.runs.iter().zip(discoveries) {
            let Some(discovery) = discovery else { continue };
            let others = options.runs.iter().chain(&options.other_runs);
            discovery.share_directory(others.filter(|other| other.name != run.name));
            discovery.link_early(EarlyPlace {
                vault: vault.clone(),
                links: options.local.links,
                low_bytes: options.local.limits.free_space_low_bytes,
            });
        }
    }

    /// Creates what the tasks share and what clients are answered from.
    fn share(&self, vault: &Vault, drain: DrainState) -> (Arc<Shared>, Arc<Metrics>, Arc<[ServedRun]>) {
        let (status, throughput) = (Arc::new(AgentStatus::default()), Arc::<Throughput>::default());
        let runs: Arc<[ServedRun]> = served_runs(&with_timeouts(&self.options), vault).into();
        let metrics = Arc::new(Metrics::new(
            &self.options,
            self.started_at,
            vault.clone(),
            Arc::clone(&status),
            Arc::clone(&runs),
        ));
        let observer = Arc::new(AgentObserver {
            metrics: Arc::clone(&metrics),
            throughput: Arc::clone(&throughput),
            next: Arc::clone(&self.observer),
        });
        let notifier = Notifier::start(
            &self.options.notify,
            self.options.node().clone(),
            Some(vault.clone()),
            Arc::clone(&self.observer),
        );
        let shared = Shared {
            options: Arc::clone(&self.options),
            started_at: self.started_at,
            vault: VaultAccess::new(vault.clone()),
            reporter: Reporter { status, observer },
            notifier,
            signals: Arc::new(Signals::new(self.options.remotes.len())),
            drain,
            throughput,
            announcements: Arc::default(),
            cpu_share: self.cpu_share.clone(),
        };
        (Arc::new(shared), metrics, runs)
    }

    /// Steps of an unserved run would otherwise wait forever without a message.
    async fn warn_of_unserved_runs(&self, vault: &Vault) -> Result<()> {
        let (options, vault) = (Arc::clone(&self.options), vault.clone());
        let left = blocking(move || LeftUndone::in_vault(&vault, &options)).await?;
        for run in left.unserved {
            self.observer.warn(run.to_string());
        }
        Ok(())
    }
}

/// Writes the status files and the report; after a drain, within its remaining time.
async fn conclude(
    shared: &Arc<Shared>,
    metrics: &Arc<Metrics>,
    announced: &notice::Announced,
    lost: &[NotDurable],
) -> Result<AgentReport> {
    let (drain, status_files) = (&shared.drain, StatusFiles::new(Arc::clone(shared)));
    let report = final_report(shared, lost);
    let (Some(request), Some(deadline)) = (drain.stop.requested(), drain.record_deadline()) else {
        status_files.write().await;
        let report = report.await?;
        tell_services(shared, metrics, &report, Instant::now() + LAST_MOMENTS).await;
        return Ok(report);
    };
    // First the report, which separates durable from lost steps. If it fails, an error is returned: any other report
    // would look like success.
    let report = timeout_at(deadline, report).await.map_err(|_| {
        Error::new(ErrorKind::Failed, "cannot report what the drain left")
            .on(shared.vault.vault.root().display())
            .because("the vault could not be read before the deadline")
            .hint("run 'stepvault status' while the vault exists; the next start continues with it")
    })??;
    write_drain_records(shared, &request, &report, deadline).await;
    // Without this, readers would see the state of two seconds before.
    let _ = timeout_at(deadline, status_files.write()).await;
    tell_services(shared, metrics, &report, deadline.min(Instant::now() + LAST_MOMENTS)).await;
    notice::acknowledge(shared, announced, &report, deadline).await;
    Ok(report)
}

/// Sends the last notifications and metrics.
async fn tell_services(shared: &Shared, metrics: &Arc<Metrics>, report: &AgentReport, deadline: Instant) {
    tokio::join!(notify_of_what_is_left(shared, report, deadline), push_metrics(shared, metrics, deadline));
}

/// Pushes the metrics to the Pushgateway, if one is configured. A failure is a warning.
async fn push_metrics(shared: &Shared, metrics: &Arc<Metrics>, deadline: Instant) {
    let Some(gateway) = &shared.options.agent.metrics.push else { return };
    let why = match timeout_at(deadline, metrics.push_to(gateway, shared.options.node())).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.text_with_hint(),
        Err(_) => format!("cannot push the metrics: {gateway}: no time was left"),
    };
    shared.reporter.warn_once("metrics-push", &why);
}

/// Notifies of the steps that are not durable, and waits for the delivery of all notifications.
async fn notify_of_what_is_left(shared: &Shared, report: &AgentReport, deadline: Instant) {
    for occurrence in Occurrence::of_steps_left(&report.left.not_durable) {
        shared.notifier.notify(occurrence);
    }
    shared.notifier.finish(deadline).await;
}

/// How the tasks ended.
#[derive(Debug, Clone, Copy)]
enum Lived {
    /// There was nothing more to do, or no time left.
    Ended,
    /// The vault no longer exists.
    VaultGone,
}

/// Runs from the first scan to the end of the drain.
async fn live(
    shared: &Arc<Shared>,
    followed: Option<&Arc<Followed>>,
    watch: &VaultWatch,
    tasks: Tasks,
    metrics: &Arc<Metrics>,
    announced: &Arc<notice::Announced>,
) -> Result<Lived> {
    let Tasks { mut sealer, attempts, upload_workers, local, prunes, tier, other_writers } = tasks;
    let (once, signals, drain) = (shared.options.lifecycle.once, &shared.signals, &shared.drain);
    let mut running = JoinSet::new();
    let mut at_the_end = None;
    running.spawn_local(StatusFiles::new(Arc::clone(shared)).work());
    let workers = upload_workers.iter();
    let planners = workers.map(|worker| worker.planner(Excluded::default())).collect();
    running.spawn_local(attempts.work());
    for worker in upload_workers {
        running.spawn_local(worker.work());
    }
    if once {
        at_the_end = Some((local, prunes, tier));
    } else {
        // The vault may have changed while no service ran.
        signals.eviction.notify_one();
        running.spawn_local(local.work());
        for prune in prunes {
            running.spawn_local(prune.work());
        }
        running.spawn_local(tier.work());
    }
    let mut beside = JoinSet::new();
    beside.spawn_local(announce_plans(planners, Arc::clone(shared)));
    beside.spawn_local(report_earlier_drains(Arc::clone(shared)));
    if !once {
        beside.spawn_local(notify_of_problems(Arc::clone(shared), Arc::clone(metrics)));
        notice::watch(shared, announced, &mut beside);
        beside.spawn_local(other_writers.work());
    }
    let life = async {
        let seal = async {
            sealer.work().await?;
            signals.all_sealed.cancel();
            Ok(())
        };
        tokio::try_join!(seal, all_end(&mut running))?;
        if let Some((local, prunes, tier)) = at_the_end.filter(|_| !drain.stop.is_requested()) {
            local.apply().await;
            sealer.clean_all().await?;
            tier.apply().await;
            for mut prune in prunes {
                prune.apply().await;
            }
        }
        Ok(())
    };
    let lived = tokio::select! {
        biased;
        // Checked first: results of tasks on a missing vault are meaningless.
        () = watch.until_gone() => Ok(Lived::VaultGone),
        ended = life => if watch.is_gone().await {
            Ok(Lived::VaultGone)
        } else {
            ended.map(|()| Lived::Ended)
        },
        () = drain.uploads_end() => Ok(Lived::Ended),
        () = succeeded(followed, signals) => {
            shared.reporter.info("another process asked for an agent: leaving the uploads to the one that it starts");
            Ok(Lived::Ended)
        }
    };
    running.shutdown().await;
    beside.shutdown().await;
    lived
}

/// Notifies of the problems that the health check reports; of one that was over meanwhile, again.
async fn notify_of_problems(shared: Arc<Shared>, metrics: Arc<Metrics>) {
    let failing = |run: &RunName, remote: &RemoteName, text| {
        let occurrence = Occurrence::new(NotifyEvent::NotDurable, run, text).remote(remote);
        occurrence.cause(format!("failing {remote}"))
    };
    let mut known = BTreeSet::new();
    loop {
        tokio::time::sleep(PROBLEMS_INTERVAL).await;
        let mut found = BTreeSet::new();
        for (run, remote, text) in metrics.problems_of_remotes() {
            shared.notifier.notify(failing(&run, &remote, text));
            found.insert((run, remote));
        }
        for (run, remote) in known.difference(&found) {
            shared.notifier.notify(failing(run, remote, String::new()).over());
        }
        known = found;
    }
}

/// Returns when the next agent may do the rest: what can be sealed is sealed, and a process waits until it may start one.
async fn succeeded(followed: Option<&Arc<Followed>>, signals: &Signals) {
    signals.all_sealed.cancelled().await;
    match followed {
        Some(followed) => followed.succeeded().await,
        None => std::future::pending().await,
    }
}

/// Opens and locks the vault, and cleans up after a killed process.
async fn open_vault(options: &AgentOptions) -> Result<VaultWatch> {
    let (directory, parents) =
        (options.vault_directory.clone(), Parents::allowed_if(options.local.allow_shared_parents));
    blocking(move || {
        let vault = Vault::open_or_create_below(&directory, parents)?;
        let lock = vault.lock()?;
        vault.clean_leftovers(&lock)?;
        Ok(VaultWatch::new(vault, lock))
    })
    .await
}

/// A vault that takes this long to open is on a disk that hangs, or is being cleaned up.
fn stopped_before_it_began(options: &AgentOptions) -> Error {
    Error::new(ErrorKind::Interrupted, "the agent was stopped before it started")
        .on(options.vault_directory.display())
        .because("the vault was not open by the deadline")
        .hint("start the agent again: it continues with the sealed steps, which are unaffected")
}

/// Waits for all tasks. A task that panicked ends the service, so that its supervisor restarts it.
async fn all_end(running: &mut JoinSet<()>) -> Result<()> {
    while let Some(ended) = running.join_next().await {
        ended
            .map_err(|error| Error::new(ErrorKind::Failed, "a task of the agent failed").caused_by(error))?;
    }
    Ok(())
}

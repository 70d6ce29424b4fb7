//! Starts all tasks, stops them, and returns the report.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepvault_core::clock::Clock as _;
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::observe::Observer;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_local::vault::Vault;
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout_at;

use crate::agent_status::AgentStatus;
use crate::announcements::Announcements;
use crate::assembly::{Shared, Tasks};
use crate::control::{Control, ControlState, wait_permits};
use crate::discovery::{Discovery, EarlyPlace, ScanMode};
use crate::drain::{DrainState, Excluded, announce_plans, report_earlier_drains, write_drain_records};
use crate::final_report::{UndurableContents, final_report};
use crate::followed::Followed;
use crate::metrics::{CountingObserver, Metrics};
use crate::notice;
use crate::options::AgentOptions;
use crate::priority::Priority;
use crate::remotes::{ServedRun, remotes_of, served_runs};
use crate::report::{AgentReport, NotDurable};
use crate::reporter::Reporter;
use crate::signals::Signals;
use crate::starts::OwnStart;
use crate::status_file::StatusFiles;
use crate::stop::Stop;
use crate::throughput::{MeteringObserver, Throughput};
use crate::vault_access::VaultAccess;
use crate::vault_watch::VaultWatch;
use stepvault_local::clock::SystemClock;

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
    let started_at = SystemClock.now();
    options.check()?;
    let followed = options
        .followed_process
        .map(|process_id| Followed::new(process_id, stop.clone()));
    let followed = followed.transpose()?;
    let priority = lowered(&options, &*observer);
    if options.trainer_ended {
        options.cpu_share.lift();
    }
    let restored = async {
        stop.wait().await;
        drop(priority);
        options.cpu_share.lift();
        std::future::pending().await
    };
    tokio::select! {
        biased;
        report = Box::pin(serve(&options, followed.as_ref(), &observer, &stop, started_at)) => report,
        report = restored => report,
    }
}

/// Lowers the priority of this process, if the options want it and the trainer may still run.
fn lowered(options: &AgentOptions, observer: &dyn Observer) -> Option<Priority> {
    if options.nice == 0 || options.trainer_ended {
        return None;
    }
    let lowered = Priority::lower(i32::from(options.nice));
    let warn = |error: &Error| {
        observer.warn(error.text_with_hint());
    };
    lowered.inspect_err(warn).ok()
}

/// Serves one vault after the other.
async fn serve(
    options: &AgentOptions,
    followed: Option<&Arc<Followed>>,
    observer: &Arc<dyn Observer>,
    stop: &Stop,
    started_at: Timestamp,
) -> Result<AgentReport> {
    let mut lost = Vec::new();
    loop {
        let (watch, waiting) =
            match Box::pin(serve_vault(options, followed, observer, stop, started_at, &lost)).await? {
                Served::Ended(report) => return Ok(*report),
                Served::VaultGone { watch, waiting } => (watch, waiting),
            };
        let steps: BTreeSet<(&RunName, StepId)> = waiting.iter().map(|step| (&step.run, step.id)).collect();
        let lost_with_it = match steps.len() {
            0 => "every step in it was durable".to_owned(),
            1 => "it held 1 step that was not durable".to_owned(),
            steps => format!("it held {steps} steps that were not durable"),
        };
        let what = format!(
            "the vault {} was deleted or replaced under the agent: {lost_with_it}",
            options.vault_directory.display()
        );
        lost.extend(waiting);
        if options.once {
            return Err(Error::new(ErrorKind::Failed, what)
                .hint("run it again: it seals the steps that the trainer still has"));
        }
        observer.warn(&what);
        watch.may_begin_anew().await?;
        let text = format!(
            "creating a new vault in {}; the steps that the trainer still has are sealed again",
            options.vault_directory.display()
        );
        observer.warn(&text);
    }
}

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

/// Serves one vault. `lost` is what was lost with earlier vaults.
async fn serve_vault(
    options: &AgentOptions,
    followed: Option<&Arc<Followed>>,
    observer: &Arc<dyn Observer>,
    stop: &Stop,
    started_at: Timestamp,
    lost: &[NotDurable],
) -> Result<Served> {
    let scan_mode = if options.once {
        ScanMode::Once
    } else {
        ScanMode::Continuous
    };
    let mut discoveries = options
        .runs
        .iter()
        .map(|run| Discovery::new(run, &options.profiles, scan_mode, options.extent_of(run)))
        .collect::<Result<Vec<_>>>()?;
    let drain = DrainState::new(stop.clone(), options.drain_deadline);
    let open = async {
        let watch = open_vault(options).await?;
        warn_of_unserved_runs(options, watch.vault(), observer).await?;
        Ok(watch)
    };
    let watch = tokio::select! {
        biased;
        opened = open => opened?,
        () = drain.uploads_end() => return Err(stopped_before_it_began(options)),
    };
    let vault = watch.vault();
    for (run, discovery) in options.runs.iter().zip(&mut discoveries) {
        let Some(discovery) = discovery else { continue };
        let others = options.runs.iter().chain(&options.other_runs);
        discovery.share_directory(others.filter(|other| other.run != run.run));
        discovery.link_early(EarlyPlace {
            vault: vault.clone(),
            links: options.links,
            low_bytes: options.local_limits.free_space_low_bytes,
        });
    }
    let (status, throughput) = (Arc::new(AgentStatus::default()), Arc::new(Throughput::default()));
    let runs: Arc<[ServedRun]> = served_runs(options, vault).into();
    let metrics = Metrics::new(
        options,
        started_at,
        vault.clone(),
        Arc::clone(&status),
        Arc::clone(&runs),
    );
    let metrics = Arc::new(metrics);
    let counting: Arc<dyn Observer> = Arc::new(CountingObserver {
        metrics: Arc::clone(&metrics),
        next: Arc::clone(observer),
    });
    let observer = Arc::new(MeteringObserver {
        inner: counting,
        throughput: Arc::clone(&throughput),
    });
    let shared = Shared {
        vault: VaultAccess::new(vault.clone()),
        reporter: Reporter { status, observer },
        signals: Arc::new(Signals::new(options.remotes.len())),
        drain,
        throughput,
        announcements: Arc::new(Announcements::default()),
    };
    let reporter = &shared.reporter;
    for run in &options.runs {
        reporter.info(&run.beginning(&options.vault_directory));
    }
    let own_start = OwnStart::record(options, vault, reporter).await;
    let tasks = shared.tasks(options, discoveries, started_at);
    let status_files = StatusFiles::new(options, started_at);
    let (ended, told) = watch::channel(None);
    let control_state = ControlState {
        vault: vault.clone(),
        status: Arc::clone(&reporter.status),
        drain: shared.drain.clone(),
        followed: followed.cloned(),
        throughput: Arc::clone(&shared.throughput),
        announcements: Arc::clone(&shared.announcements),
        runs,
        status_files: status_files.clone(),
        metrics,
        ended: told,
        waits: wait_permits(),
    };
    let control = Control::start(options, control_state, ended, reporter).await?;
    // All tasks stay on the caller's thread: long operations run in the engine's own tasks and on blocking threads.
    let life = live(options, &shared, followed, &watch, tasks, status_files.clone());
    let life = Box::pin(life);
    let lived = LocalSet::new().run_until(life).await;
    if let Ok(Lived::VaultGone) = lived {
        own_start.abandon();
        control.end(None).await;
        let waiting = reporter.status.lost_with_vault(&options.remotes);
        return Ok(Served::VaultGone { watch, waiting });
    }
    own_start.record_end(stop.requested(), &lived).await;
    lived?;
    let report = conclude(options, &shared, status_files, lost).await;
    control.end(report.as_ref().ok()).await;
    drop(watch);
    report.map(|report| Served::Ended(Box::new(report)))
}

/// Writes the status files and the report; after a drain, within its remaining time.
async fn conclude(
    options: &AgentOptions,
    shared: &Shared,
    status_files: StatusFiles,
    lost: &[NotDurable],
) -> Result<AgentReport> {
    let Shared { reporter, drain, .. } = shared;
    let (vault, status) = (&shared.vault.vault, &reporter.status);
    let report = final_report(options, vault, status, &drain.stop, lost);
    let (Some(request), Some(deadline)) = (drain.stop.requested(), drain.record_deadline()) else {
        status_files.write(vault, status).await;
        return report.await;
    };
    // First the report, which separates durable from lost steps. If it fails, an error is returned: any other report
    // would look like success.
    let report = timeout_at(deadline, report).await.map_err(|_| {
        Error::new(ErrorKind::Failed, "cannot report what the drain left")
            .on(vault.root().display())
            .because("the vault could not be read before the deadline")
            .hint("run 'stepvault status' while the vault exists; the next start continues with it")
    })??;
    write_drain_records(options, vault, reporter, &request, &report, deadline).await;
    // Without this, readers would see the state of two seconds before.
    let _ = timeout_at(deadline, status_files.write(vault, status)).await;
    Ok(report)
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
    options: &AgentOptions,
    shared: &Shared,
    followed: Option<&Arc<Followed>>,
    watch: &VaultWatch,
    tasks: Tasks,
    status_files: StatusFiles,
) -> Result<Lived> {
    let Tasks {
        mut sealer,
        attempts,
        upload_workers,
        local,
        prunes,
        other_writers,
    } = tasks;
    let (reporter, signals, drain) = (&shared.reporter, &shared.signals, &shared.drain);
    let mut running = JoinSet::new();
    let mut at_the_end = None;
    let (vault, status) = (watch.vault().clone(), Arc::clone(&reporter.status));
    running.spawn_local(status_files.work(vault, status, Arc::clone(signals)));
    let workers = upload_workers.iter();
    let planners = workers
        .map(|worker| worker.planner(Excluded::default()))
        .collect();
    running.spawn_local(attempts.work());
    for worker in upload_workers {
        running.spawn_local(worker.work());
    }
    if options.once {
        at_the_end = Some((local, prunes));
    } else {
        // The vault may have changed while no service ran.
        signals.eviction.notify_one();
        running.spawn_local(local.work());
        for prune in prunes {
            running.spawn_local(prune.work());
        }
    }
    let mut beside = JoinSet::new();
    beside.spawn_local(announce_plans(planners, drain.clone(), reporter.clone()));
    let runs = options.runs.iter().map(|run| {
        let remotes = remotes_of(run, &options.remotes, watch.vault());
        (run.run.clone(), remotes)
    });
    let earlier = report_earlier_drains(watch.vault().clone(), reporter.clone(), runs.collect());
    beside.spawn_local(earlier);
    if !options.once {
        notice::watch(&options.notices, reporter, drain, &mut beside);
        beside.spawn_local(other_writers.work());
    }
    let life = async {
        let seal = async {
            sealer.work().await?;
            signals.all_sealed.cancel();
            Ok(())
        };
        tokio::try_join!(seal, all_end(&mut running))?;
        if let Some((local, prunes)) = at_the_end.filter(|_| !drain.stop.is_requested()) {
            local.apply().await;
            sealer.clean_all().await?;
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
            reporter.info("another process asked for an agent: leaving the uploads to the one that it starts");
            Ok(Lived::Ended)
        }
    };
    running.shutdown().await;
    beside.shutdown().await;
    lived
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
    let (directory, parents) = (options.vault_directory.clone(), options.vault_parents);
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

/// Steps of an unserved run would otherwise wait forever without a message.
async fn warn_of_unserved_runs(
    options: &AgentOptions,
    vault: &Vault,
    observer: &Arc<dyn Observer>,
) -> Result<()> {
    let (options, vault) = (options.clone(), vault.clone());
    let left = blocking(move || UndurableContents::scan(&vault, &options)).await?;
    for run in left.unserved {
        observer.warn(run.to_string());
    }
    Ok(())
}

/// Waits for all tasks. A task that panicked ends the service, so that its supervisor restarts it.
async fn all_end(running: &mut JoinSet<()>) -> Result<()> {
    while let Some(ended) = running.join_next().await {
        ended
            .map_err(|error| Error::new(ErrorKind::Failed, "a task of the agent failed").caused_by(error))?;
    }
    Ok(())
}

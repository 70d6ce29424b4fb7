//! Starting all tasks, stopping them, and saying what came of it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use stepvault_core::clock::Clock as _;
use stepvault_core::ids::RunName;
use stepvault_core::observe::{Event, Observer};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::run_remote::RunRemote;
use stepvault_local::lock::VaultLock;
use stepvault_local::vault::Vault;
use tokio::sync::Notify;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::assembly::{Tasks, remotes_of, tasks};
use crate::board::Board;
use crate::clock::SystemClock;
use crate::discovery::{Discovery, Pace};
use crate::lane::is_durable;
use crate::note::Notes;
use crate::occupied::Occupied;
use crate::options::AgentOptions;
use crate::report::{AgentReport, StepOnRemote};
use crate::shared::Shared;
use crate::stop::Stop;

/// Runs the service until `stop` is requested, or with `once` until everything there is has been taken care of.
///
/// Once requested it takes no new step, goes on uploading for at most the drain deadline, and returns. Dropping the
/// future is like killing the process: the next start goes on where it was. The future is not `Send`: it is for the
/// runtime's main thread. A seal may still be under way on a blocking thread when it returns at the deadline: shut the
/// runtime down without waiting for those, and the next start clears away what is left.
///
/// # Errors
/// [`ErrorKind::Held`] when another process holds the vault; [`ErrorKind::Usage`] for options that contradict
/// themselves; whatever keeps the vault from being opened. What goes wrong later is told to the observer and stands in
/// the report.
pub async fn run(options: AgentOptions, observer: Arc<dyn Observer>, stop: Stop) -> Result<AgentReport> {
    options.check()?;
    let pace = if options.once { Pace::Once } else { Pace::Lasting };
    let discoveries = options
        .runs
        .iter()
        .map(|run| Discovery::new(run, &options.profiles, pace, options.extent_of(run)))
        .collect::<Result<Vec<_>>>()?;
    let (vault, lock) = open_vault(&options).await?;
    warn_of_strangers(&options, &vault, &observer).await?;
    let shared = Arc::new(Shared {
        vault,
        observer,
        board: Board::default(),
        occupied: Occupied::default(),
        lanes: options.remotes.iter().map(|_| Arc::new(Notify::new())).collect(),
        evict: Notify::new(),
        missing_bytes: AtomicU64::new(0),
        stopping: stop,
        all_sealed: CancellationToken::new(),
    });
    let tasks = tasks(&options, &shared, discoveries);
    // All tasks stay on the caller's thread: what takes time is in the engine's own tasks and on blocking threads.
    let notes = Notes::new(&options, SystemClock.now());
    LocalSet::new()
        .run_until(live(&options, &shared, tasks, notes.clone()))
        .await?;
    notes.write(&shared).await;
    let report = report(&options, &shared).await;
    drop(lock);
    report
}

/// From the first look to the end of the drain.
async fn live(options: &AgentOptions, shared: &Arc<Shared>, tasks: Tasks, notes: Notes) -> Result<()> {
    let Tasks {
        mut sealer,
        lanes,
        local,
        prunes,
    } = tasks;
    let mut running = JoinSet::new();
    let mut at_the_end = None;
    running.spawn_local(notes.work(Arc::clone(shared)));
    for lane in lanes {
        running.spawn_local(lane.work());
    }
    if options.once {
        at_the_end = Some((local, prunes));
    } else {
        // What became of the vault while nobody ran.
        shared.evict.notify_one();
        running.spawn_local(local.work());
        for prune in prunes {
            running.spawn_local(prune.work());
        }
    }
    let life = async {
        let seal = async {
            sealer.work().await?;
            shared.all_sealed.cancel();
            Ok(())
        };
        tokio::try_join!(seal, all_end(&mut running))?;
        if let Some((local, prunes)) = at_the_end.filter(|_| !shared.stopping.is_requested()) {
            local.apply().await;
            sealer.clean_all().await?;
            for mut prune in prunes {
                prune.apply().await;
            }
        }
        Ok(())
    };
    let deadline = async {
        shared.stopping.wait().await;
        let asked_for = shared.stopping.requested().and_then(|request| request.deadline);
        tokio::time::sleep_until(asked_for.unwrap_or_else(|| Instant::now() + options.drain_deadline)).await;
    };
    tokio::select! {
        biased;
        ended = life => ended?,
        () = deadline => {}
    }
    running.shutdown().await;
    Ok(())
}

/// The vault, locked, and without what a killed process left in it.
async fn open_vault(options: &AgentOptions) -> Result<(Vault, VaultLock)> {
    let directory = options.vault_directory.clone();
    blocking(move || {
        let vault = Vault::open_or_create(&directory)?;
        let lock = vault.lock()?;
        vault.clean_leftovers(&lock)?;
        Ok((vault, lock))
    })
    .await
}

/// Steps of a run that is not configured would wait for ever without a word.
async fn warn_of_strangers(
    options: &AgentOptions,
    vault: &Vault,
    observer: &Arc<dyn Observer>,
) -> Result<()> {
    let configured: Vec<RunName> = options.runs.iter().map(|run| run.run.clone()).collect();
    let vault = vault.clone();
    let strangers = blocking(move || {
        let mut strangers = Vec::new();
        for run in vault.runs()?.into_iter().filter(|run| !configured.contains(run)) {
            let steps = vault.steps(&run)?.steps.len();
            if steps > 0 {
                strangers.push((run, steps));
            }
        }
        Ok(strangers)
    })
    .await?;
    for (run, steps) in strangers {
        let message = format!(
            "the vault holds {steps} steps of the run {run}, which is not configured: they are neither uploaded nor \
             evicted"
        );
        observer.on_event(&Event::Warning { message: &message });
    }
    Ok(())
}

/// Waits for all tasks. One that broke down ends the service: whoever started it starts it again.
async fn all_end(running: &mut JoinSet<()>) -> Result<()> {
    while let Some(ended) = running.join_next().await {
        ended.map_err(|error| {
            Error::new(ErrorKind::Failed, "a task of the agent broke down").caused_by(error)
        })?;
    }
    Ok(())
}

async fn report(options: &AgentOptions, shared: &Arc<Shared>) -> Result<AgentReport> {
    let mut report = shared.board.report();
    let runs: Vec<(RunName, Vec<RunRemote>)> = options
        .runs
        .iter()
        .map(|run| (run.run.clone(), remotes_of(run, &options.remotes)))
        .collect();
    let shared = Arc::clone(shared);
    report.not_durable = blocking(move || {
        let mut missing = Vec::new();
        for (run, remotes) in runs {
            for step in shared.vault.steps(&run)?.steps {
                for remote in remotes.iter().filter(|remote| !is_durable(&step, remote)) {
                    let here = StepOnRemote {
                        run: run.clone(),
                        id: step.id(),
                        remote: remote.name().clone(),
                    };
                    missing.push(shared.board.why_not_durable(here, remote.settings.required));
                }
            }
        }
        Ok(missing)
    })
    .await?;
    Ok(report)
}

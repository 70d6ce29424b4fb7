//! Starting all tasks, stopping them, and saying what came of it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use stepvault_core::clock::Clock as _;
use stepvault_core::ids::RunName;
use stepvault_core::observe::{Event, Observer};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::run_remote::RunRemote;
use stepvault_engine::upload::missing_bytes;
use stepvault_local::lock::VaultLock;
use stepvault_local::vault::Vault;
use tokio::sync::Notify;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use crate::announcements::Announcements;
use crate::assembly::{Tasks, remotes_of, tasks};
use crate::board::Board;
use crate::clock::SystemClock;
use crate::control::Control;
use crate::discovery::{Discovery, Pace};
use crate::drain::{Hurry, NotForNow, announce, leave_word, say_what_was_left};
use crate::lane::is_durable;
use crate::metrics::{CountingObserver, Metrics};
use crate::note::Notes;
use crate::notice;
use crate::occupied::Occupied;
use crate::options::AgentOptions;
use crate::rates::{Metered, Rates};
use crate::report::{AgentReport, StepOnRemote};
use crate::shared::Shared;
use crate::starts::OwnStart;
use crate::stop::Stop;

/// Runs the service until `stop` is requested, or with `once` until everything there is has been taken care of.
///
/// Once requested it takes what is complete, uploads first what is closest to being durable, and returns in time to be
/// gone by the deadline; after a provider's notice it also takes what is finished later. Dropping the
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
    let hurry = Hurry::new(stop.clone(), options.drain_deadline);
    let open = async {
        let (vault, lock) = open_vault(&options).await?;
        warn_of_strangers(&options, &vault, &observer).await?;
        Ok((vault, lock))
    };
    let (vault, lock) = tokio::select! {
        biased;
        opened = open => opened?,
        () = hurry.uploads_end() => return Err(stopped_before_it_began(&options)),
    };
    let rates = Arc::new(Rates::default());
    let started_at = SystemClock.now();
    let metrics = Arc::new(Metrics::new(&options, started_at));
    let observer: Arc<dyn Observer> = Arc::new(CountingObserver {
        metrics: Arc::clone(&metrics),
        next: observer,
    });
    let shared = Arc::new(Shared {
        vault,
        observer: Arc::new(Metered {
            inner: observer,
            rates: Arc::clone(&rates),
        }),
        board: Board::default(),
        occupied: Occupied::default(),
        announcements: Announcements::default(),
        lanes: options.remotes.iter().map(|_| Arc::new(Notify::new())).collect(),
        evict: Notify::new(),
        missing_bytes: AtomicU64::new(0),
        rates,
        hurry,
        stopping: stop,
        all_sealed: CancellationToken::new(),
    });
    for run in &options.runs {
        shared.tell(&run.beginning(&options.vault_directory));
    }
    let own_start = OwnStart::note(&options, &shared).await;
    let tasks = tasks(&options, &shared, discoveries);
    // All tasks stay on the caller's thread: what takes time is in the engine's own tasks and on blocking threads.
    let notes = Notes::new(&options, started_at);
    let control = Control::start(&options, &shared, &notes, metrics).await?;
    let lived = LocalSet::new()
        .run_until(live(&options, &shared, tasks, notes.clone()))
        .await;
    own_start.note_end(&shared, &lived).await;
    lived?;
    let report = last_words(&options, &shared, notes).await;
    control.end(report.as_ref().ok()).await;
    drop(lock);
    report
}

/// The notes and the report; after a drain within what is left of its time.
async fn last_words(options: &AgentOptions, shared: &Arc<Shared>, notes: Notes) -> Result<AgentReport> {
    let Some(last_word_by) = shared.hurry.last_word_by() else {
        notes.write(shared).await;
        return report(options, shared).await;
    };
    // First what tells safe from lost. Without it nothing is said: no report would be taken for a good one.
    let report =
        timeout_at(last_word_by, report(options, shared))
            .await
            .map_err(|_| {
                Error::new(ErrorKind::Failed, "cannot say what the drain has left")
            .on(shared.vault.root().display())
            .because("the vault could not be read before the deadline")
            .hint("'stepvault status' tells, as long as the vault is there; the next start goes on with it")
            })??;
    leave_word(options, shared, &report, last_word_by).await;
    // Whoever reads it without this sees the state of two seconds before.
    let _ = timeout_at(last_word_by, notes.write(shared)).await;
    Ok(report)
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
    let outlooks = lanes
        .iter()
        .map(|lane| lane.outlook(NotForNow::default()))
        .collect();
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
    let mut beside = JoinSet::new();
    beside.spawn_local(announce(outlooks));
    let runs = options.runs.iter();
    let runs = runs.map(|run| (run.clone(), remotes_of(run, &options.remotes)));
    beside.spawn_local(say_what_was_left(Arc::clone(shared), runs.collect()));
    if !options.once {
        notice::watch(&options.notices, shared, &mut beside);
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
    tokio::select! {
        biased;
        ended = life => ended?,
        () = shared.hurry.uploads_end() => {}
    }
    running.shutdown().await;
    beside.shutdown().await;
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

/// A vault that takes so long to open is on a disk that hangs, or is being cleaned up after.
fn stopped_before_it_began(options: &AgentOptions) -> Error {
    Error::new(ErrorKind::Interrupted, "the agent was stopped before it began")
        .on(options.vault_directory.display())
        .because("the vault was not open by the deadline")
        .hint("what is sealed in it is safe from this; the next start goes on with it")
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
                    let required = remote.settings.required;
                    let missing_bytes = missing_bytes(&shared.vault, &step, remote.name())
                        .unwrap_or_else(|_| step.record().data_bytes());
                    missing.push(shared.board.why_not_durable(here, required, missing_bytes));
                }
            }
        }
        Ok(missing)
    })
    .await?;
    Ok(report)
}

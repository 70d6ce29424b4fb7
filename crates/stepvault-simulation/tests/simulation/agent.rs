//! An agent, as far as the engine is concerned: it seals what its trainer has finished, uploads it to every store,
//! and evicts what is durable there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use stepvault_core::config::LinkPolicy;
use stepvault_core::digest::DigestAlgorithm;
use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::nodes::Writer;
use stepvault_core::observe::Observer;
use stepvault_core::placement::LiveSave;
use stepvault_core::retention::{KeepRules, LocalLimits};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind};
use stepvault_engine::launches::knows_launches;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::placement::{CurrentWriter, Outcome, determine_attempts, make_provisional_again};
use stepvault_engine::prune::{LocalPrune, prune_local};
use stepvault_engine::push::{CheckpointToSeal, MetricsSource, SealOutcome, identify_and_seal};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::tier::step_state::forget_lost_steps;
use stepvault_engine::upload::{UploadSession, Uploaded};
use stepvault_local::seal_record::{AttemptOrigin, SealedFile};
use stepvault_local::sealed::{SealedStep, UploadState};
use stepvault_local::source::SourceFile;
use stepvault_local::tree::Checkpoint;
use stepvault_local::vault::Vault;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::actor::Actor;
use crate::content;
use crate::invariants::Judge;
use crate::planted::Bug;
use crate::trace::Trace;
use crate::trainer::{OVERWRITTEN, Trainer};
use crate::world::Tally;

/// State shared by the world and an agent; it outlives the process.
#[derive(Debug, Default)]
pub struct SharedState {
    pub wake: Notify,
    pub evict: AtomicBool,
    /// Whether nothing is left to do.
    pub idle: AtomicBool,
    /// Uploads that failed for good, with the reason, by store.
    pub failed: Mutex<BTreeMap<(usize, StepId), String>>,
    /// The step that a trainer which overwrites has announced, until it is sealed.
    pub announced: Mutex<Option<Step>>,
}

/// One agent process.
#[derive(Debug)]
pub struct Agent {
    pub actor: Actor,
    pub run: usize,
    pub writer: Writer,
    /// The algorithm of the digests of what it seals.
    pub digest: DigestAlgorithm,
    pub launch_since: Timestamp,
    pub vault_directory: PathBuf,
    pub outputs: PathBuf,
    pub remotes: Vec<RunRemote>,
    pub keep_local: u32,
    pub shared: Arc<SharedState>,
    pub judge: Arc<Mutex<Judge>>,
    pub trace: Arc<Trace>,
    pub observer: Arc<dyn Observer>,
    pub tally: Arc<Mutex<Tally>>,
    pub bug: Option<Bug>,
    /// Whether it is the single round of a job's epilog.
    pub is_epilog: bool,
}

/// The pause before the first retry of a failed upload; it doubles with each retry.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
const IDLE: Duration = Duration::from_mins(10);
const LOOK_AGAIN: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
struct State {
    sessions: BTreeMap<usize, UploadSession>,
    /// Checkpoints that were sealed or refused, with their contents at that time.
    known: BTreeMap<PathBuf, content::Content>,
    dropped: BTreeSet<(usize, StepId)>,
    failures: u32,
    /// The contents of the trainer's directory when this process started.
    there_at_first: BTreeSet<PathBuf>,
    /// The last whole save that appeared at or below the run's highest number.
    live_below_highest: Option<Step>,
    /// Steps of which this node's part is committed, by store.
    waiting: BTreeSet<(usize, StepId)>,
    /// How often the parts of other nodes were looked up.
    looks: u32,
    /// Stores whose steps were compared with what the vault believes.
    compared: BTreeSet<usize>,
}

impl Agent {
    /// Works until its machine stops it.
    pub async fn work(self) {
        let vault = Vault::open_or_create(&self.vault_directory).unwrap();
        let lock = loop {
            match vault.lock() {
                Ok(lock) => break lock,
                Err(_) => sleep(FIRST_PAUSE).await,
            }
        };
        vault.clean_leftovers(&lock).unwrap();
        let budget = MemoryBudget::new(0);
        let mut state = State {
            there_at_first: Trainer::checkpoints(&self.outputs).into_iter().collect(),
            ..State::default()
        };
        loop {
            self.shared.idle.store(false, Ordering::Relaxed);
            let woken = self.shared.wake.notified();
            let mut all_well = self.compare(&vault, &mut state).await;
            all_well &= self.take_over(&vault, &mut state).await;
            all_well &= self.determine(&vault).await;
            all_well &= self.upload_all(&vault, &budget, &mut state).await;
            if self.shared.evict.swap(false, Ordering::Relaxed) {
                all_well &= self.evict(&vault).await;
            }
            state
                .waiting
                .retain(|(store, id)| !self.shared.failed.lock().unwrap().contains_key(&(*store, *id)));
            let pause = if all_well {
                state.failures = 0;
                self.shared.idle.store(true, Ordering::Relaxed);
                IDLE
            } else {
                state.failures += 1;
                FIRST_PAUSE.saturating_mul(1 << state.failures.min(6)).min(LONGEST_PAUSE)
            };
            // The parts of other nodes are looked up again and again; nobody is prevented from finishing by them.
            let pause = if state.waiting.is_empty() {
                state.looks = 0;
                pause
            } else {
                state.looks += 1;
                pause.min(LOOK_AGAIN.saturating_mul(1 << state.looks.min(6)))
            };
            let until = Instant::now() + pause;
            if all_well {
                let _ = timeout(pause, woken).await;
            } else {
                tokio::time::sleep_until(until).await;
            }
        }
    }

    /// Compares what the vault takes for durable with every store, once; returns false when it must be retried.
    async fn compare(&self, vault: &Vault, state: &mut State) -> bool {
        for (store, remote) in self.remotes.iter().enumerate() {
            if self.bug == Some(Bug::NeverCompares) {
                state.compared.insert(store);
            }
            if state.compared.contains(&store) {
                continue;
            }
            if let Ok(lost) = forget_lost_steps(vault, remote).await {
                state.compared.insert(store);
                for id in lost {
                    self.trace.note(&self.actor, format_args!("store {store} lost {id}"));
                }
            }
        }
        state.compared.len() == self.remotes.len()
    }

    fn request(
        &self,
        source: &Path,
        in_launch: bool,
        live: Option<LiveSave>,
        announced: Option<Step>,
    ) -> CheckpointToSeal {
        CheckpointToSeal {
            run: self.remotes[0].keys.run().clone(),
            checkpoint: Checkpoint {
                links: if announced.is_some() { LinkPolicy::ReflinkOrCopy } else { LinkPolicy::Auto },
                ..Checkpoint::at(source).unwrap()
            },
            tree: None,
            step: announced,
            attempt: None,
            origin: AttemptOrigin {
                in_launch,
                not_before: in_launch.then_some(self.launch_since),
                live,
                ..AttemptOrigin::default()
            },
            current: self.current(),
            links_for_later: None,
            is_overwritten: false,
            metrics_source: MetricsSource::default(),
            digest: Some(self.digest),
            shown_in: None,
        }
    }

    fn current(&self) -> CurrentWriter {
        CurrentWriter { writer: self.writer.clone(), launch_since: self.launch_since }
    }

    /// Seals what is new; returns false when something must be retried.
    async fn take_over(&self, vault: &Vault, state: &mut State) -> bool {
        let mut all_well = true;
        // The order in which steps were written determines their attempts.
        let found = Trainer::checkpoints(&self.outputs).into_iter();
        let mut sources: Vec<_> = found.map(|source| (newest_write(&source), source)).collect();
        sources.sort();
        for (written, source) in sources {
            if newest_write(&source) != written {
                // It was written again meanwhile, so the order is different.
                return false;
            }
            // The trainer may have removed it while the previous one was examined.
            if !source.is_dir() {
                continue;
            }
            let is_overwritten = source.ends_with(OVERWRITTEN);
            let announced = *self.shared.announced.lock().unwrap();
            if is_overwritten && announced.is_none() {
                continue;
            }
            let announced = announced.filter(|_| is_overwritten);
            let there_at_first = announced.is_none() && state.there_at_first.contains(&source);
            let found = content::of_directory(&source);
            if state.known.get(&source) == Some(&found) {
                continue;
            }
            let run = self.remotes[0].keys.run();
            let is_live = !self.is_epilog && (!there_at_first || state.known.contains_key(&source));
            let in_launch = is_live || self.is_epilog && !knows_launches(vault, run).await;
            let live = is_live.then_some(LiveSave { after: state.live_below_highest });
            let mut request = self.request(&source, in_launch, live, announced);
            let is_changed = found.keys().any(|path| content::NOTES.contains(&path.as_str()));
            if is_changed && self.bug == Some(Bug::ChangesBeginAttempts) {
                request.attempt = Some(Attempt::new(2).unwrap());
            }
            let placed = identify_and_seal(vault, &self.remotes, request, &self.observer).await;
            match placed {
                Ok(SealOutcome::Sealed { step, new, is_live_below_highest }) => {
                    if new {
                        state.live_below_highest = is_live_below_highest.then(|| step.id().step);
                    }
                    self.trace.note(&self.actor, format_args!("staged {} ({new})", step.id()));
                    if new {
                        let sealed = content::of_directory(&step.data_root());
                        let mut judge = self.judge.lock().unwrap();
                        judge.sealed.entry((self.run, step.id())).or_default().push(sealed);
                    }
                }
                Ok(SealOutcome::DurableEverywhere(step)) => {
                    self.trace.note(&self.actor, format_args!("{} is durable everywhere", step.id));
                }
                // An attempt that is given may be taken; only a planted bug gives one.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Refused | ErrorKind::Usage)
                        || self.bug == Some(Bug::ChangesBeginAttempts)
                            && error.kind() == ErrorKind::Conflict =>
                {
                    self.trace.note(&self.actor, format_args!("left alone: {:?}", error.kind()));
                }
                Err(error) => {
                    self.trace.note(&self.actor, format_args!("not staged: {:?}", error.kind()));
                    all_well = false;
                    continue;
                }
            }
            if announced.is_some() {
                *self.shared.announced.lock().unwrap() = None;
                self.tally.lock().unwrap().overwritten += 1;
            }
            state.known.insert(source, found);
        }
        all_well
    }

    /// Determines the attempts of steps that were sealed while the stores were unreachable; returns false when none
    /// answers.
    async fn determine(&self, vault: &Vault) -> bool {
        let current = self.current();
        let run = self.remotes[0].keys.run();
        let determined = determine_attempts(vault, &self.remotes, run, &current, &self.observer).await;
        let determined = match determined {
            Ok(determined) => determined,
            Err(error) => {
                self.trace.note(&self.actor, format_args!("attempts are provisional: {:?}", error.kind()));
                return false;
            }
        };
        for one in determined {
            match one.outcome {
                Outcome::Placed(step) => {
                    self.trace.note(&self.actor, format_args!("{} is {}", one.before, step.id()));
                    let sealed = content::of_directory(&step.data_root());
                    let mut judge = self.judge.lock().unwrap();
                    judge.sealed.entry((self.run, step.id())).or_default().push(sealed);
                    drop(judge);
                    self.tally.lock().unwrap().determined += 1;
                }
                Outcome::Duplicate(id) => {
                    self.trace.note(&self.actor, format_args!("{} is the same as {id}", one.before));
                }
                Outcome::NoPlace(error) => {
                    self.trace.note(&self.actor, format_args!("{} has no place: {error}", one.before));
                }
            }
        }
        true
    }

    /// Uploads what is missing anywhere, the newest first; returns false when something must be retried.
    async fn upload_all(&self, vault: &Vault, budget: &MemoryBudget, state: &mut State) -> bool {
        let mut all_well = true;
        for (store, remote) in self.remotes.iter().enumerate() {
            let steps = vault.steps(remote.keys.run()).unwrap().steps;
            for step in steps.iter().rev() {
                let name = (store, step.id());
                let is_done = step.record().is_provisional()
                    || is_durable(step, remote)
                    || self.shared.failed.lock().unwrap().contains_key(&name)
                    || state.dropped.contains(&name);
                // It may have been renamed to another attempt since the listing.
                if is_done || vault.step(remote.keys.run(), step.id()).ok().flatten().is_none() {
                    continue;
                }
                let uploaded = self.upload(vault, budget, state, store, step).await;
                if let Err(error) = &uploaded
                    && make_provisional_again(vault, step, error).await.unwrap()
                {
                    self.trace.note(&self.actor, format_args!("{} gets another attempt", step.id()));
                    state.sessions.remove(&store);
                    state.waiting.remove(&(store, step.id()));
                    self.tally.lock().unwrap().reopened += 1;
                    return false;
                }
                if let Err(error) = uploaded
                    && !self.failed(state, store, step, &error)
                {
                    all_well = false;
                    if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Denied) {
                        break;
                    }
                }
            }
        }
        all_well
    }

    async fn upload(
        &self,
        vault: &Vault,
        budget: &MemoryBudget,
        state: &mut State,
        store: usize,
        step: &SealedStep,
    ) -> Result<(), Error> {
        let session = if let Some(session) = state.sessions.get(&store) {
            session.clone()
        } else {
            let (remote, observer) = (self.remotes[store].clone(), Arc::clone(&self.observer));
            let session = UploadSession::open(remote, vault.clone(), budget.clone(), observer, self.digest);
            let session = session.await?;
            state.sessions.insert(store, session.clone());
            session
        };
        let name = (store, step.id());
        let uploaded = if state.waiting.contains(&name) {
            session.commit_if_complete(step).await?
        } else {
            session.upload(step).await?
        };
        let text = match uploaded {
            Uploaded::Durable => "durable",
            Uploaded::AlreadyDurable => "durable before",
            Uploaded::Incomplete { missing } => {
                let actor = stepvault_core::nodes::listed(&missing);
                if state.waiting.insert(name) {
                    state.looks = 0;
                    self.trace
                        .note(&self.actor, format_args!("{} waits for {actor} on store {store}", step.id()));
                }
                return Ok(());
            }
        };
        self.trace.note(&self.actor, format_args!("{} is {text} on store {store}", step.id()));
        self.acknowledge(store, step);
        self.tally.lock().unwrap().acknowledged += 1;
        Ok(())
    }

    fn acknowledge(&self, store: usize, step: &SealedStep) {
        let content = content::of_directory(&step.data_root());
        let mut judge = self.judge.lock().unwrap();
        if self.writer.place.nodes().is_several() {
            self.tally.lock().unwrap().together += 1;
            return judge.acknowledge_part(store, (self.run, step.id()), &content);
        }
        let is_changed = |file: &&SealedFile| SourceFile::open(&step.file_path(&file.path), file).is_err();
        let changed = step.record().files.iter().filter(is_changed);
        let changed = changed.map(|file| file.path.to_string()).collect();
        judge.acknowledge(store, (self.run, step.id()), content, changed);
    }

    /// Records a failed upload; returns true when it failed for good.
    fn failed(&self, state: &mut State, store: usize, step: &SealedStep, error: &Error) -> bool {
        self.trace
            .note(&self.actor, format_args!("{} failed on store {store}: {:?}", step.id(), error.kind()));
        state.sessions.remove(&store);
        state.waiting.remove(&(store, step.id()));
        match self.bug {
            Some(Bug::AcknowledgesFailures) => {
                self.acknowledge(store, step);
                state.dropped.insert((store, step.id()));
            }
            Some(Bug::GivesUpSilently) => {
                state.dropped.insert((store, step.id()));
                return true;
            }
            _ => {}
        }
        let passes = error.is_transient()
            || !matches!(
                error.kind(),
                ErrorKind::Conflict
                    | ErrorKind::Refused
                    | ErrorKind::SourceChanged
                    | ErrorKind::Usage
                    | ErrorKind::NewerFormat
            );
        if !passes {
            let mut failed = self.shared.failed.lock().unwrap();
            failed.insert((store, step.id()), error.to_string());
        }
        !passes
    }

    async fn evict(&self, vault: &Vault) -> bool {
        let run = self.remotes[0].keys.run().clone();
        let required: Vec<usize> =
            (0..self.remotes.len()).filter(|store| self.remotes[*store].settings.required).collect();
        let removed: Vec<StepId> = if self.bug == Some(Bug::EvictsUnasked) {
            let steps = vault.steps(&run).unwrap().steps;
            steps.iter().map(SealedStep::id).filter(|id| vault.evict(&run, *id).unwrap()).collect()
        } else {
            let prune = LocalPrune {
                vault: vault.clone(),
                run,
                remotes: self.remotes.clone(),
                rules: KeepRules { last: Some(self.keep_local), ..KeepRules::default() },
                limits: LocalLimits::default(),
                maximum_deletions: None,
                uploading: BTreeSet::new(),
                observer: Arc::clone(&self.observer),
            };
            match prune_local(&prune).await {
                Ok(report) => report.removed,
                Err(_) => return false,
            }
        };
        self.tally.lock().unwrap().evicted += removed.len();
        for id in removed {
            self.trace.note(&self.actor, format_args!("evicted {id}"));
            self.judge.lock().unwrap().evicted((self.run, id), &required);
        }
        true
    }
}

fn newest_write(checkpoint: &Path) -> Option<SystemTime> {
    let written = |path: PathBuf| std::fs::metadata(path)?.modified();
    let files = ["model.bin", "common.json"].map(|name| written(checkpoint.join(name)).ok());
    files.into_iter().flatten().max()
}

/// Returns whether a store is known to hold a step.
pub fn is_durable(step: &SealedStep, remote: &RunRemote) -> bool {
    let state = step.remote_state(remote.name()).unwrap();
    state.is_some_and(|state| state.state == UploadState::Durable)
}

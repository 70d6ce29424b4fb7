//! An agent, as far as the engine goes: it takes over what its trainer has finished, brings it to every store, and
//! evicts what is safe there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepvault_core::ids::StepId;
use stepvault_core::nodes::Writer;
use stepvault_core::observe::Observer;
use stepvault_core::retention::{KeepRules, LocalLimits};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind};
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::metrics::MetricsSource;
use stepvault_engine::prune::{LocalPrune, evict_planned, plan_local};
use stepvault_engine::push::{Placed, StageRequest, stage};
use stepvault_engine::run_remote::RunRemote;
use stepvault_engine::upload::{Lane, Uploaded};
use stepvault_local::seal::LinkPolicy;
use stepvault_local::sealed::{SealedStep, UploadState};
use stepvault_local::vault::Vault;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::content;
use crate::invariants::Judge;
use crate::planted::Bug;
use crate::trace::Trace;
use crate::trainer::Trainer;
use crate::who::Who;
use crate::world::Tally;

/// What the world and an agent tell each other; it outlives the process.
#[derive(Debug, Default)]
pub struct Board {
    pub wake: Notify,
    pub evict: AtomicBool,
    /// Nothing is left to do.
    pub idle: AtomicBool,
    /// Uploads that failed for good and why, by store.
    pub failed: Mutex<BTreeMap<(usize, StepId), String>>,
}

/// One agent process.
#[derive(Debug)]
pub struct Agent {
    pub who: Who,
    pub run: usize,
    pub writer: Writer,
    pub launch_since: Timestamp,
    pub vault_directory: PathBuf,
    pub outputs: PathBuf,
    pub remotes: Vec<RunRemote>,
    pub keep_local: u32,
    pub board: Arc<Board>,
    pub judge: Arc<Mutex<Judge>>,
    pub trace: Arc<Trace>,
    pub observer: Arc<dyn Observer>,
    pub tally: Arc<Mutex<Tally>>,
    pub bug: Option<Bug>,
}

/// A failed upload is tried again after this, twice that, …
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
const IDLE: Duration = Duration::from_mins(10);
const LOOK_AGAIN: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
struct State {
    lanes: BTreeMap<usize, Lane>,
    /// Checkpoints that were taken over or refused, by what they looked like.
    known: BTreeMap<PathBuf, content::Content>,
    dropped: BTreeSet<(usize, StepId)>,
    failures: u32,
    /// What the trainer's directory held when this process began.
    there_at_first: BTreeSet<PathBuf>,
    /// Steps whose own part is there, by store.
    waiting: BTreeSet<(usize, StepId)>,
    /// How often it was looked for other nodes' parts.
    looks: u32,
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
            self.board.idle.store(false, Ordering::Relaxed);
            let woken = self.board.wake.notified();
            let mut all_well = self.take_over(&vault, &mut state).await;
            all_well &= self.upload_all(&vault, &budget, &mut state).await;
            if self.board.evict.swap(false, Ordering::Relaxed) {
                all_well &= self.evict(&vault).await;
            }
            state
                .waiting
                .retain(|(store, id)| !self.board.failed.lock().unwrap().contains_key(&(*store, *id)));
            let pause = if all_well {
                state.failures = 0;
                self.board.idle.store(true, Ordering::Relaxed);
                IDLE
            } else {
                state.failures += 1;
                FIRST_PAUSE
                    .saturating_mul(1 << state.failures.min(6))
                    .min(LONGEST_PAUSE)
            };
            // Other nodes' parts are looked for again and again; nobody is kept from calling it a day for them.
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

    fn request(&self, source: PathBuf, in_launch: bool) -> StageRequest {
        StageRequest {
            run: self.remotes[0].keys.run().clone(),
            source,
            members: Vec::new(),
            name: None,
            step: None,
            attempt: None,
            writer: self.writer.clone(),
            launch_since: self.launch_since,
            in_launch,
            metrics: BTreeMap::new(),
            metrics_source: MetricsSource::default(),
            links: LinkPolicy::Auto,
            expected: None,
        }
    }

    /// Seals what is new; false when something has to be tried again.
    async fn take_over(&self, vault: &Vault, state: &mut State) -> bool {
        let mut all_well = true;
        for source in Trainer::checkpoints(&self.outputs) {
            // The trainer may have removed it while the one before was looked at.
            if !source.is_dir() {
                continue;
            }
            let there_at_first = state.there_at_first.contains(&source);
            let found = content::of_directory(&source);
            if state.known.get(&source) == Some(&found) {
                continue;
            }
            let placed = stage(
                vault,
                &self.remotes,
                self.request(source.clone(), !there_at_first),
                &self.observer,
            )
            .await;
            match placed {
                Ok(Placed::Sealed { step, new }) => {
                    self.trace
                        .note(&self.who, format_args!("staged {} ({new})", step.id()));
                    if new {
                        let sealed = content::of_directory(&step.data_root());
                        let mut judge = self.judge.lock().unwrap();
                        judge
                            .sealed
                            .entry((self.run, step.id()))
                            .or_default()
                            .push(sealed);
                    }
                }
                Ok(Placed::DurableEverywhere { id, .. }) => {
                    self.trace
                        .note(&self.who, format_args!("{id} is durable everywhere"));
                }
                Err(error) if matches!(error.kind(), ErrorKind::Refused | ErrorKind::Usage) => {
                    self.trace
                        .note(&self.who, format_args!("left alone: {:?}", error.kind()));
                }
                Err(error) => {
                    self.trace
                        .note(&self.who, format_args!("not staged: {:?}", error.kind()));
                    all_well = false;
                    continue;
                }
            }
            state.known.insert(source, found);
        }
        all_well
    }

    /// Uploads what is missing anywhere, the newest first; false when something has to be tried again.
    async fn upload_all(&self, vault: &Vault, budget: &MemoryBudget, state: &mut State) -> bool {
        let mut all_well = true;
        for (store, remote) in self.remotes.iter().enumerate() {
            let steps = vault.steps(remote.keys.run()).unwrap().steps;
            for step in steps.iter().rev() {
                let name = (store, step.id());
                let is_done = is_durable(step, remote)
                    || self.board.failed.lock().unwrap().contains_key(&name)
                    || state.dropped.contains(&name);
                if is_done {
                    continue;
                }
                let uploaded = self.upload(vault, budget, state, store, step).await;
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
        let lane = if let Some(lane) = state.lanes.get(&store) {
            lane.clone()
        } else {
            let (remote, observer) = (self.remotes[store].clone(), Arc::clone(&self.observer));
            let lane = Lane::open(remote, vault.clone(), budget.clone(), observer).await?;
            state.lanes.insert(store, lane.clone());
            lane
        };
        let name = (store, step.id());
        let uploaded = if state.waiting.contains(&name) {
            lane.settle(step).await?
        } else {
            lane.upload(step).await?
        };
        let text = match uploaded {
            Uploaded::Durable => "durable",
            Uploaded::AlreadyDurable => "durable before",
            Uploaded::Waiting { missing } => {
                let who = stepvault_core::nodes::listed(&missing);
                if state.waiting.insert(name) {
                    state.looks = 0;
                    self.trace.note(
                        &self.who,
                        format_args!("{} waits for {who} on store {store}", step.id()),
                    );
                }
                return Ok(());
            }
        };
        self.trace.note(
            &self.who,
            format_args!("{} is {text} on store {store}", step.id()),
        );
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
        judge.acknowledge(store, (self.run, step.id()), content);
    }

    /// Notes a failed upload; true when it failed for good.
    fn failed(&self, state: &mut State, store: usize, step: &SealedStep, error: &Error) -> bool {
        self.trace.note(
            &self.who,
            format_args!("{} failed on store {store}: {:?}", step.id(), error.kind()),
        );
        state.lanes.remove(&store);
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
            let mut failed = self.board.failed.lock().unwrap();
            failed.insert((store, step.id()), error.to_string());
        }
        !passes
    }

    async fn evict(&self, vault: &Vault) -> bool {
        let run = self.remotes[0].keys.run().clone();
        let required: Vec<usize> = (0..self.remotes.len())
            .filter(|store| self.remotes[*store].settings.required)
            .collect();
        let removed: Vec<StepId> = if self.bug == Some(Bug::EvictsUnasked) {
            let steps = vault.steps(&run).unwrap().steps;
            steps
                .iter()
                .map(SealedStep::id)
                .filter(|id| vault.evict(&run, *id).unwrap())
                .collect()
        } else {
            let prune = LocalPrune {
                vault: vault.clone(),
                run,
                remotes: self.remotes.clone(),
                rules: KeepRules {
                    last: Some(self.keep_local),
                    ..KeepRules::default()
                },
                limits: LocalLimits::default(),
                maximum_deletions: None,
                observer: Arc::clone(&self.observer),
            };
            let evicted = match plan_local(&prune).await {
                Ok(plan) => evict_planned(&prune, plan).await,
                Err(error) => Err(error),
            };
            match evicted {
                Ok(report) => report.removed,
                Err(_) => return false,
            }
        };
        self.tally.lock().unwrap().evicted += removed.len();
        for id in removed {
            self.trace.note(&self.who, format_args!("evicted {id}"));
            self.judge.lock().unwrap().evicted((self.run, id), &required);
        }
        true
    }
}

/// Whether a store is known to hold a step.
pub fn is_durable(step: &SealedStep, remote: &RunRemote) -> bool {
    let state = step.remote_state(remote.name()).unwrap();
    state.is_some_and(|state| state.state == UploadState::Durable)
}

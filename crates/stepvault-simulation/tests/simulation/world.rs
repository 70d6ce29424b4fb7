//! The world of one seed: machines, stores, and a sequence of events until everything settles.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepvault_core::digest::DigestAlgorithm;
use stepvault_core::ids::{NodeName, RemoteName, RunName};
use stepvault_core::keys::RunKeys;
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::{NodePlace, NodeSet, Writer};
use stepvault_core::observe::{Observer, SilentObserver};
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::retention::{KeepRules, Selection};
use stepvault_core::timestamp::Timestamp;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_remote::open::decorate;
use stepvault_remote::retry::RetryPolicy;
use stepvault_remote::store::RemoteStore;
use tokio::time::sleep;

use crate::actor::{Actor, Role};
use crate::agent::{Agent, SharedState};
use crate::faults::Weather;
use crate::invariants::{Judge, StoreFacts, Violation};
use crate::link::Link;
use crate::machine::Machine;
use crate::planted::Bug;
use crate::store::{BEGINNING_SECONDS, Cloud, Stand};
use crate::trace::Trace;
use crate::trainer::Trainer;

/// One node of one run: a machine with a trainer and an agent.
#[derive(Debug)]
pub struct Site {
    pub run: usize,
    pub node: NodeName,
    pub machine: Arc<Machine>,
    pub directory: PathBuf,
    pub trainer: Trainer,
    pub shared: Arc<SharedState>,
    /// Whether its trainer runs.
    pub trains: bool,
    /// Whether its agent runs.
    pub runs: bool,
    /// The team that it writes steps with, and its rank in it.
    pub team: Option<(usize, usize)>,
    /// The number of this start of its job, if it writes alone and a launcher names the starts.
    pub launch: Option<u64>,
}

/// Nodes that write the steps of a run together.
#[derive(Debug)]
pub struct Team {
    pub run: usize,
    pub size: usize,
    /// The number of this start of the job.
    pub launch: u64,
    pub step: u64,
    /// The number of saves: two saves of one step count as two.
    pub saves: u64,
    /// The number of nodes that do not know yet what to resume from.
    pub asking: Arc<AtomicUsize>,
    /// While the job's epilog runs on its nodes: nobody trains.
    pub epilog: Option<UnderWay>,
}

/// The store that nothing is uploaded to: steps of store 0 are copied there.
#[derive(Debug, Clone)]
pub struct Fed {
    pub store: usize,
    /// Which steps it gets, without being asked for; without it, those that somebody copies by hand.
    pub selection: Option<Selection>,
}

/// An event at a later time.
#[derive(Debug, Clone)]
pub enum Later {
    Restart {
        site: usize,
        lost: bool,
    },
    /// A disk is replaced by this copy of it, from when its trainer had saved this step.
    GoBack {
        site: usize,
        copy: PathBuf,
        step: u64,
    },
    /// A store is replaced by this copy of it.
    StoreGoesBack {
        store: usize,
        copy: Box<(Stand, StoreFacts)>,
    },
    Thaw(Arc<Machine>),
    Connect(Arc<Machine>),
    Readable {
        store: usize,
        run: usize,
    },
    StoreIsBack(usize),
    Mount(usize),
    Freeze(Arc<Machine>),
    Gc {
        store: usize,
        run: usize,
    },
    Prune {
        store: usize,
        run: usize,
    },
    Copy,
    SavePart(PartOfSave),
    TeamRestart {
        team: usize,
        lost: Option<usize>,
    },
    TeamStart {
        team: usize,
        lost: Option<usize>,
    },
}

/// One node's part of a save, which it writes later than the others.
#[derive(Debug, Clone)]
pub struct PartOfSave {
    pub site: usize,
    pub launch: u64,
    pub step: u64,
    pub save: u64,
    pub common: Vec<u8>,
}

/// The results of a run, to verify that enough happened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    pub acknowledged: usize,
    pub retired: usize,
    pub evicted: usize,
    pub restored: usize,
    pub gc_removed: usize,
    pub failed: usize,
    /// The number of acknowledged steps of several nodes.
    pub together: usize,
    /// The number of restores on which several nodes agreed.
    pub agreed: usize,
    /// The number of attempts that were determined after the step was sealed.
    pub determined: usize,
    /// The number of steps that got another attempt because something else held theirs.
    pub reopened: usize,
    /// The number of runs whose newest acknowledged save was looked up at the end.
    pub newest_looked_for: usize,
    /// The number of steps that were sealed from files which the trainer overwrites.
    pub overwritten: usize,
    /// The number of jobs that started under the name of another's run.
    pub foreign_jobs: usize,
    /// The number of filesystems that were unmounted.
    pub unmounted: usize,
    /// The number of jobs at whose end an epilog ran.
    pub epilogs: usize,
    /// The number of steps that somebody changed who is not their trainer.
    pub touched: usize,
    /// The number of disks that went back in time.
    pub gone_back: usize,
    /// The number of machines that were cloned while they ran.
    pub cloned: usize,
    /// The number of stores that went back in time.
    pub stores_gone_back: usize,
    /// The number of stores that appeared only after the first start.
    pub appeared: usize,
    /// The number of steps that were copied to another store.
    pub copied: usize,
    /// The number of steps that were followed.
    pub followed: usize,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.acknowledged += other.acknowledged;
        self.retired += other.retired;
        self.evicted += other.evicted;
        self.restored += other.restored;
        self.gc_removed += other.gc_removed;
        self.failed += other.failed;
        self.together += other.together;
        self.agreed += other.agreed;
        self.determined += other.determined;
        self.reopened += other.reopened;
        self.newest_looked_for += other.newest_looked_for;
        self.overwritten += other.overwritten;
        self.foreign_jobs += other.foreign_jobs;
        self.unmounted += other.unmounted;
        self.epilogs += other.epilogs;
        self.touched += other.touched;
        self.gone_back += other.gone_back;
        self.cloned += other.cloned;
        self.stores_gone_back += other.stores_gone_back;
        self.appeared += other.appeared;
        self.copied += other.copied;
        self.followed += other.followed;
    }
}

#[derive(Debug)]
pub struct World {
    pub root: tempfile::TempDir,
    pub numbers: fastrand::Rng,
    pub trace: Arc<Trace>,
    pub judge: Arc<Mutex<Judge>>,
    pub clouds: Vec<Arc<Cloud>>,
    /// The number of stores that agents upload to: the first ones.
    pub uploaded_to: usize,
    pub fed: Option<Fed>,
    /// The vaults that were used to copy a run.
    pub copied_with: BTreeSet<(PathBuf, usize)>,
    /// Whether followers follow each step, and how many they keep.
    pub follows_each: bool,
    pub keep_followed: usize,
    pub required: Vec<bool>,
    /// Whether its stores are directories on filesystems that may not be mounted.
    pub are_filesystems: bool,
    pub weather: Arc<Weather>,
    pub runs: Vec<RunName>,
    pub sites: Vec<Site>,
    pub teams: Vec<Team>,
    /// Machines without a trainer, from which people prune, run gc and restore.
    pub others: Vec<Arc<Machine>>,
    pub observer: Arc<dyn Observer>,
    pub keep_last: u32,
    pub keep_local: u32,
    pub grace: Duration,
    pub concurrency: usize,
    pub bug: Option<Bug>,
    /// The number of starts of single-node jobs, over all runs.
    pub launches: u64,
    pub processes: u64,
    /// The number of operations under way.
    pub under_way: Arc<AtomicUsize>,
    pub tally: Arc<Mutex<Tally>>,
    pub later: Vec<(Duration, Later)>,
}

/// Counts an operation while it is under way, however it ends.
#[derive(Debug)]
pub struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    pub fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

const DAY_SECONDS: i64 = 86_400;

impl World {
    pub fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut numbers = fastrand::Rng::with_seed(seed);
        let trace = Arc::new(Trace::new());
        let run_count = numbers.usize(1..=2);
        let runs: Vec<RunName> =
            (0..run_count).map(|run| RunName::new(format!("run-{run}/checkpoints")).unwrap()).collect();
        let (uploaded_to, is_fed) = match numbers.u32(0..10) {
            0..2 => (2, false),
            2..6 => (1, true),
            _ => (1, false),
        };
        let store_count = uploaded_to + usize::from(is_fed);
        let fed = is_fed.then(|| Fed { store: uploaded_to, selection: any_selection(&mut numbers) });
        let keep_last = numbers.u32(1..=3);
        let grace = Duration::from_secs([1_800, 3_600][numbers.usize(0..2)]);
        let keys = runs.iter().cloned().map(RunKeys::new).collect();
        let mut judge = Judge::new(keys, store_count, keep_last as usize, grace);
        judge.fed.clone_from(&fed);
        let judge = Arc::new(Mutex::new(judge));
        let clouds = (0..store_count)
            .map(|index| {
                let (judge, trace) = (Arc::clone(&judge), Arc::clone(&trace));
                Arc::new(Cloud::new(index, numbers.bool(), judge, trace))
            })
            .collect();
        let weather = Arc::new(Weather::new(numbers.fork()));
        let others = (0..2).map(|index| Machine::new(&format!("other-{index}"), 0)).collect();
        let mut world = Self {
            root: scratch(),
            trace,
            judge,
            clouds,
            uploaded_to,
            fed,
            copied_with: BTreeSet::new(),
            follows_each: numbers.bool(),
            keep_followed: numbers.usize(1..=3),
            required: (0..store_count).map(|store| store == 0 || numbers.bool()).collect(),
            are_filesystems: numbers.bool(),
            weather,
            sites: Vec::new(),
            teams: Vec::new(),
            others,
            observer: Arc::new(SilentObserver),
            keep_last,
            keep_local: numbers.u32(1..=3),
            grace,
            concurrency: numbers.usize(1..=8),
            bug,
            launches: 0,
            processes: 0,
            under_way: Arc::default(),
            tally: Arc::default(),
            later: Vec::new(),
            runs,
            numbers,
        };
        world.plant_foreign_objects();
        if world.numbers.u32(0..8) == 0 {
            // As a directory whose parent is not mounted yet.
            let store = world.numbers.usize(0..store_count);
            world.clouds[store].go_away(true);
            world.after(2_000..1_800_000, Later::StoreIsBack(store));
            world.tally.lock().unwrap().appeared += 1;
        }
        // In a team, a node that overlooks tombstones waits for ever: that would break another promise.
        let has_team = world.numbers.u32(0..10) < 6 && bug != Some(Bug::OverlooksTombstones);
        for run in 0..run_count {
            if has_team && run + 1 == run_count {
                world.add_team(run);
            } else {
                world.add_site(run, &format!("node-{run}"), None);
            }
        }
        world
    }

    /// Plants objects that do not belong to stepvault, some of which look similar to its own.
    fn plant_foreign_objects(&self) {
        let mut judge = self.judge.lock().unwrap();
        let mut keys = vec!["readme.txt".to_owned()];
        for run in &self.runs {
            keys.extend([
                format!("{run}/notes.txt"),
                format!("{run}/step_10/model.bin"),
                format!("{run}/000000000005.a1/step_5/model.bin"),
                format!("{run}/.stepvault/notes.txt"),
                format!("{run}/.stepvault/commits/5.json"),
                format!("{run}-2/000000000010.a1/step_10/model.bin"),
            ]);
        }
        for cloud in &self.clouds {
            judge.foreign.extend(keys.iter().map(|key| (cloud.index, key.clone())));
        }
        drop(judge);
        for cloud in &self.clouds {
            for key in &keys {
                put_by_somebody(cloud, key, b"somebody's own");
            }
        }
    }

    fn add_team(&mut self, run: usize) {
        // A late part is written after the part of a later step.
        self.judge.lock().unwrap().times_tell_nothing(run);
        let (team, size) = (self.teams.len(), self.numbers.usize(2..=3));
        self.teams.push(Team {
            run,
            size,
            launch: 1,
            step: 0,
            saves: 0,
            asking: Arc::default(),
            epilog: None,
        });
        for rank in 0..size {
            self.add_site(run, &format!("node-{rank}"), Some((team, rank)));
        }
    }

    /// Returns the writer at a site, as its launch has it.
    pub fn writer(&self, index: usize) -> Writer {
        let site = &self.sites[index];
        let Some((team, _)) = site.team else {
            let launch = site.launch.map(|launch| LaunchName::new(format!("job-{launch}")).unwrap());
            return Writer { launch, ..Writer::single_node(site.node.clone()) };
        };
        let team = &self.teams[team];
        let place = if self.bug == Some(Bug::CommitsAlone) {
            NodePlace::single_node(site.node.clone())
        } else {
            NodePlace::new(site.node.clone(), NodeSet::counted(team.size).unwrap()).unwrap()
        };
        Writer {
            place,
            // As under torchrun: the name is the same for all starts.
            launch: Some(LaunchName::new(format!("job-of-{}", self.runs[team.run])).unwrap()),
            shared: false,
        }
    }

    /// Returns the time of a machine's clock.
    pub fn clock(&self, machine: &Machine) -> Timestamp {
        let elapsed = i64::try_from(BEGINNING_SECONDS + self.trace.elapsed().as_secs()).unwrap();
        Timestamp::from_seconds(elapsed + *machine.clock_off_seconds.lock().unwrap())
    }

    pub fn add_site(&mut self, run: usize, node: &str, team: Option<(usize, usize)>) {
        let index = self.sites.len();
        // A run's nodes are all started by the same launcher, or by none.
        let is_named = match self.sites.iter().find(|site| site.run == run) {
            Some(site) => site.launch.is_some(),
            None => team.is_none() && self.numbers.bool(),
        };
        let clock_off_seconds = self.numbers.i64(-5 * DAY_SECONDS..=5 * DAY_SECONDS);
        let directory = self.root.path().join(format!("site-{index}"));
        // A cloned machine has its disk already.
        std::fs::create_dir_all(&directory).unwrap();
        let large_once = self.numbers.u32(0..60) == 0;
        let overwrites = team.is_none() && self.numbers.u32(0..4) == 0;
        let outputs = directory.join("outputs");
        let trainer = Trainer::new(&outputs, self.numbers.fork(), large_once, overwrites);
        self.sites.push(Site {
            run,
            node: NodeName::new(node).unwrap(),
            machine: Machine::new(&format!("{node}.{index}"), clock_off_seconds),
            directory,
            trainer,
            shared: Arc::default(),
            trains: true,
            runs: false,
            team,
            launch: is_named.then_some(0),
        });
        self.next_launch(index);
        self.start_agent(index);
    }

    /// Restarts the job of a node that writes alone.
    pub fn next_launch(&mut self, index: usize) {
        if let Some(launch) = &mut self.sites[index].launch {
            self.launches += 1;
            *launch = self.launches;
        }
    }

    pub fn start_agent(&mut self, index: usize) {
        self.start_agent_as(index, false);
    }

    /// Starts an agent; `is_epilog` for the single round of a job's epilog.
    pub fn start_agent_as(&mut self, index: usize, is_epilog: bool) {
        let machine = Arc::clone(&self.sites[index].machine);
        let actor = self.process(&machine, Role::Agent);
        let remotes = self.uploaded(self.remotes(&machine, &actor, self.sites[index].run));
        let (writer, launch_since) = (self.writer(index), self.clock(&machine));
        let site = &mut self.sites[index];
        // Nobody trains during an epilog.
        site.runs = !is_epilog;
        site.shared.failed.lock().unwrap().clear();
        // The trainer that announced it is gone.
        *site.shared.announced.lock().unwrap() = None;
        // It changes while steps wait, and differs between nodes.
        let digest = DigestAlgorithm::ALL[usize::from(!self.processes.is_multiple_of(2))];
        let agent = Agent {
            digest,
            actor,
            run: site.run,
            writer,
            launch_since,
            vault_directory: site.directory.join("vault"),
            outputs: site.trainer.outputs.clone(),
            remotes,
            keep_local: self.keep_local,
            shared: Arc::clone(&site.shared),
            judge: Arc::clone(&self.judge),
            trace: Arc::clone(&self.trace),
            observer: Arc::clone(&self.observer),
            tally: Arc::clone(&self.tally),
            bug: self.bug,
            is_epilog,
        };
        machine.run(agent.work());
    }

    /// A new process on a machine.
    pub fn process(&mut self, machine: &Machine, role: Role) -> Actor {
        self.processes += 1;
        Actor { machine: machine.name.clone(), role, process: self.processes, began: self.trace.elapsed() }
    }

    /// Returns the run on every store, as a process reaches it.
    pub fn remotes(&self, machine: &Arc<Machine>, actor: &Actor, run: usize) -> Vec<RunRemote> {
        self.remotes_in(&self.weather, machine, actor, run)
    }

    /// Returns the same with other fault rates.
    pub fn remotes_in(
        &self,
        weather: &Arc<Weather>,
        machine: &Arc<Machine>,
        actor: &Actor,
        run: usize,
    ) -> Vec<RunRemote> {
        let remote = |store| {
            let settings = self.settings(store);
            let link = self.link(store, weather, machine, actor);
            RunRemote::new(self.decorated(link, &settings), Arc::new(settings), self.runs[run].clone())
        };
        (0..self.clouds.len()).map(remote).collect()
    }

    /// Leaves those of the remotes that agents upload to.
    pub fn uploaded(&self, mut remotes: Vec<RunRemote>) -> Vec<RunRemote> {
        remotes.truncate(self.uploaded_to);
        remotes
    }

    pub fn settings(&self, store: usize) -> RemoteSettings {
        let scheme = if self.are_filesystems { "file:///" } else { "memory://" };
        let url = format!("{scheme}store-{store}");
        let mut settings = RemoteSettings::new(store_name(store), url.parse().unwrap());
        settings.required = self.required[store];
        settings.retry_deadline_seconds = 60;
        settings.max_concurrent_requests = self.concurrency;
        let fed = self.fed.as_ref().filter(|fed| fed.store == store);
        settings.selection = fed.and_then(|fed| fed.selection.clone());
        settings
    }

    pub fn link(&self, store: usize, weather: &Arc<Weather>, machine: &Arc<Machine>, actor: &Actor) -> Link {
        let scheme = if self.are_filesystems { "file:///" } else { "memory://" };
        Link {
            cloud: Arc::clone(&self.clouds[store]),
            weather: Arc::clone(weather),
            machine: Arc::clone(machine),
            actor: actor.clone(),
            url: format!("{scheme}store-{store}"),
            bug: self.bug,
            copies_from: None,
            held: Arc::default(),
            forgotten: Arc::default(),
        }
    }

    /// Returns a store with the real retries.
    pub fn decorated(&self, link: Link, settings: &RemoteSettings) -> Arc<dyn RemoteStore> {
        let policy = RetryPolicy::of(settings, false);
        decorate(Arc::new(link), settings, policy, Arc::clone(&self.observer))
    }

    pub fn keep(&self) -> KeepRules {
        KeepRules { last: Some(self.keep_last), ..KeepRules::default() }
    }

    pub fn violation(&self) -> Option<Violation> {
        self.judge.lock().unwrap().violation()
    }

    /// Lets `events` events happen, then lets everything finish; returns the first broken promise, if any.
    pub async fn run(&mut self, events: usize) -> Option<Violation> {
        for _ in 0..events {
            let gap = self.gap();
            self.wait(gap).await;
            if let Some(violation) = self.violation() {
                return Some(violation);
            }
            self.something_happens().await;
        }
        self.settle().await;
        self.violation()
    }

    fn gap(&mut self) -> Duration {
        let milliseconds = match self.numbers.u32(0..100) {
            0..25 => self.numbers.u64(5..400),
            25..70 => self.numbers.u64(400..15_000),
            70..92 => self.numbers.u64(15_000..300_000),
            _ => self.numbers.u64(600_000..5_400_000),
        };
        Duration::from_millis(milliseconds)
    }

    /// Lets time pass and runs the events that are due in it.
    async fn wait(&mut self, time: Duration) {
        let until = self.trace.elapsed() + time;
        loop {
            let next = self.later.iter().enumerate().min_by_key(|(index, (due, _))| (*due, *index));
            let Some((index, due)) =
                next.map(|(index, (due, _))| (index, *due)).filter(|(_, due)| *due <= until)
            else {
                break;
            };
            sleep(due.saturating_sub(self.trace.elapsed())).await;
            let (_, deed) = self.later.remove(index);
            self.carry_out(deed).await;
        }
        sleep(until.saturating_sub(self.trace.elapsed())).await;
        for machine in self.machines() {
            machine.raise_panics().await;
        }
    }

    pub fn machines(&self) -> Vec<Arc<Machine>> {
        let sites = self.sites.iter().map(|site| &site.machine);
        sites.chain(&self.others).cloned().collect()
    }

    pub async fn carry_out(&mut self, deed: Later) {
        match deed {
            // A new disk remembers no store: it would start anew.
            Later::Restart { lost: true, .. }
            | Later::TeamRestart { lost: Some(_), .. }
            | Later::TeamStart { lost: Some(_), .. }
                if !self.is_all_mounted() =>
            {
                self.after(30_000..120_000, deed);
            }
            Later::Restart { site, lost } => {
                self.trace.note(&self.sites[site].machine, format_args!("starts, lost: {lost}"));
                if lost {
                    let directory = &self.sites[site].directory;
                    std::fs::remove_dir_all(directory).unwrap();
                    std::fs::create_dir(directory).unwrap();
                    self.next_launch(site);
                    // As in 'run': no trainer starts without an answer.
                    let Ok(newest) = self.go_on_from_newest(site).await else {
                        self.after(30_000..120_000, Later::Restart { site, lost });
                        return;
                    };
                    self.sites[site].trainer.step = newest.map_or(0, |id| id.step.number());
                }
                self.start_agent(site);
            }
            Later::GoBack { site, copy, step } => self.disk_goes_back(site, &copy, step).await,
            Later::StoreGoesBack { store, copy } => self.store_goes_back(store, *copy).await,
            Later::StoreIsBack(store) => {
                self.trace.note("world", format_args!("store {store} is back"));
                self.clouds[store].go_away(false);
            }
            Later::Mount(store) => {
                self.trace.note("world", format_args!("store {store} is mounted"));
                self.clouds[store].mount();
            }
            Later::Thaw(machine) => {
                self.trace.note(&machine, "thaws");
                machine.thaw();
            }
            Later::Connect(machine) => {
                self.trace.note(&machine, "is connected again");
                machine.cut_off(false);
            }
            Later::Readable { store, run } => self.readable(store, run),
            Later::Freeze(machine) => {
                self.trace.note(&machine, "freezes");
                machine.freeze();
            }
            Later::Gc { store, run } => self.gc_from_elsewhere(run, store),
            Later::Prune { store, run } => self.prune_on(run, store),
            Later::Copy => self.copy_somewhere(),
            Later::SavePart(part) => self.save_part(&part),
            Later::TeamRestart { team, lost } => self.restart_team(team, lost).await,
            Later::TeamStart { team, lost } => self.start_team(team, lost).await,
        }
    }

    /// Returns the keys on every store, for a digest of the end.
    pub fn keys(&self) -> BTreeMap<usize, Vec<String>> {
        let stores = self.clouds.iter();
        stores.map(|cloud| (cloud.index, cloud.objects().into_keys().collect())).collect()
    }
}

fn store_name(store: usize) -> RemoteName {
    RemoteName::new(format!("store-{store}")).unwrap()
}

/// Returns what a selective store gets, or nothing for a store that is filled by hand.
fn any_selection(numbers: &mut fastrand::Rng) -> Option<Selection> {
    let every_steps = [None, Some(20), Some(20), Some(30)][numbers.usize(0..4)]?;
    Some(Selection {
        from: store_name(0),
        rules: KeepRules { every_steps: Some(every_steps), ..KeepRules::default() },
        includes_newest: false,
        after_seconds: 0,
    })
}

/// Returns a directory in memory rather than on disk if possible: power cuts of the machine that runs the tests are
/// not under test.
fn scratch() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    if memory.is_dir() {
        return tempfile::tempdir_in(memory).unwrap();
    }
    tempfile::tempdir().unwrap()
}

pub fn put_by_somebody(cloud: &Cloud, key: &str, body: &'static [u8]) {
    let digest = stepvault_core::digest::PartDigest::of(body);
    cloud.create(&Actor::somebody(), key, &bytes::Bytes::from_static(body), &digest).unwrap();
}

//! The events in a world: saves, faults, and people and timers that prune, run gc, restore and pin.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::codec::decode;
use stepvault_core::config::RestoreSync;
use stepvault_core::digest::Crc32c;
use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::keys::{KeyKind, RunKeys};
use stepvault_core::launch::LaunchRecord;
use stepvault_core::observe::Tier;
use stepvault_core::retention::KeepRules;
use stepvault_engine::gc::run_gc;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::prune::{RemotePrune, prune_remote};
use stepvault_engine::restore::{RestoreContext, RestoreRequest, Target, Together, WantedSteps, restore};
use stepvault_engine::tier::catalog;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::vault::Vault;

use crate::actor::{Actor, Role};
use crate::content::{self, Content};
use crate::faults::Weather;
use crate::invariants::StoreFacts;
use crate::machine::Machine;
use crate::planted::{Bug, UNREADABLE_STEP};
use crate::store::{BEGINNING_SECONDS, Stand};
use crate::trainer::Trainer;
use crate::world::{Later, UnderWay, World, put_by_somebody};

/// Copies a directory with all times. The copies of files that were one under several names are, too.
fn copy_disk(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

impl World {
    pub async fn something_happens(&mut self) {
        if self.fed.is_some() && self.numbers.u32(0..12) == 0 {
            return self.copy_somewhere();
        }
        if self.numbers.u32(0..25) == 0 {
            return self.follow_somewhere();
        }
        if self.are_filesystems && self.numbers.u32(0..200) == 0 {
            return self.filesystem_is_unmounted();
        }
        match self.numbers.u32(0..100) {
            0..28 => self.save(),
            28..31 => self.somebody_touches_a_step(),
            31..35 => self.go_back().await,
            35..43 => self.prune_somewhere(Role::Pruner),
            43..44 => self.prune_somewhere(Role::KeepsNothing),
            44..54 => self.gc_somewhere(),
            54..60 => self.restore_somewhere(),
            60..63 => self.pin_something(),
            63..64 => self.unpin_something(),
            64..68 => self.evict(),
            68..72 => self.writer_stalls(),
            72..75 => self.prune_while_somebody_restores(),
            75..79 => self.prune_while_somebody_pins(),
            79..84 => self.cut_power().await,
            84..90 => self.freeze(),
            90..94 => self.cut_off(),
            94..96 => self.clock_jumps(),
            96..97 => self.becomes_unreadable(),
            97..98 => self.store_is_away_at_a_save(),
            98..99 if self.numbers.bool() => self.disk_is_copied(),
            98..99 => self.store_is_copied(),
            _ => match self.numbers.u32(0..3) {
                0 => self.replace_node(),
                1 => self.another_job_begins(),
                _ => self.machine_is_cloned(),
            },
        }
    }

    pub fn any_site(&mut self, wanted: impl Fn(&crate::world::Site) -> bool) -> Option<usize> {
        let sites: Vec<usize> = (0..self.sites.len()).filter(|index| wanted(&self.sites[*index])).collect();
        self.numbers.choice(sites)
    }

    fn any_machine(&mut self) -> Arc<Machine> {
        let machines = self.machines();
        Arc::clone(&machines[self.numbers.usize(0..machines.len())])
    }

    fn save(&mut self) {
        if let Some(index) = self.any_site(|site| site.trains && site.runs) {
            if let Some((team, _)) = self.sites[index].team {
                return self.save_together(team);
            }
            let again = self.numbers.u32(0..12) == 0;
            self.save_at(index, again);
        }
    }

    /// Lets a site's trainer write its next step, or its last one once more.
    pub fn save_at(&mut self, index: usize, again: bool) {
        let elapsed = self.trace.elapsed();
        let site = &mut self.sites[index];
        if site.trainer.overwrites && site.shared.announced.lock().unwrap().is_some() {
            // The trainer waits until the previous step is sealed.
            return;
        }
        let off = *site.machine.clock_off_seconds.lock().unwrap();
        let (step, content) = site.trainer.save(elapsed, off, again);
        self.trace.note(&site.machine, format_args!("saves step {step}"));
        let mut judge = self.judge.lock().unwrap();
        judge.saved(site.run, step, content);
        if site.trainer.overwrites {
            *site.shared.announced.lock().unwrap() = Some(step);
        }
        site.shared.idle.store(false, Ordering::Relaxed);
        site.shared.wake.notify_one();
    }

    async fn go_back(&mut self) {
        if let Some(index) = self.any_site(|site| site.trains && site.runs) {
            if let Some((team, _)) = self.sites[index].team {
                return self.restart_team(team, None).await;
            }
            // File times tell which launch wrote a save, with a resolution of seconds.
            tokio::time::sleep(Duration::from_secs(1)).await;
            if self.sites[index].launch.is_none() || !self.has_an_attempt(index) {
                // The numbers tell, until the agent has seen two saves; also where nothing is known of the launch before.
                let run = self.sites[index].run;
                self.judge.lock().unwrap().times_tell_nothing(run);
            }
            if self.sites[index].launch.is_some() {
                // A trainer that a launcher starts goes back by a restart.
                let machine = Arc::clone(&self.sites[index].machine);
                machine.cut_power().await;
                machine.thaw();
                self.next_launch(index);
                self.start_agent(index);
                // An agent starts before its trainer.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.sites[index].trainer.go_back();
            let step = self.sites[index].trainer.step;
            self.trace.note(&self.sites[index].machine, format_args!("goes back to step {step}"));
            self.save_at(index, false);
        }
    }

    /// Somebody who is not the trainer adds a file to one of its steps, or copies it over itself, which leaves other times;
    /// or fetches all of them again, the highest first.
    fn somebody_touches_a_step(&mut self) {
        let Some(index) = self.any_site(|site| site.runs && !site.trainer.overwrites) else {
            return;
        };
        let site = &self.sites[index];
        let checkpoints = Trainer::checkpoints(&site.trainer.outputs);
        let Some(path) = self.numbers.choice(checkpoints) else {
            return;
        };
        let site = &self.sites[index];
        let mut changed = vec![path.clone()];
        if self.numbers.u32(0..3) > 0 {
            let file = path.join(content::NOTES[self.numbers.usize(0..2)]);
            std::fs::write(&file, self.numbers.u64(..).to_string()).unwrap();
            changed.push(file);
        } else {
            let fetched = if site.launch.is_none() && self.numbers.bool() {
                let mut all = Trainer::checkpoints(&site.trainer.outputs);
                all.sort_by_key(|path| std::cmp::Reverse(Trainer::step_of(path)));
                all
            } else {
                // Copied files seem to be of the launch that is under way.
                self.judge.lock().unwrap().times_tell_nothing(site.run);
                vec![path.clone()]
            };
            changed = fetched;
            for path in changed.clone() {
                let files = content::of_directory(&path).into_keys();
                changed.extend(files.map(|name| path.join(name)));
            }
        }
        let now = BEGINNING_SECONDS + self.trace.elapsed().as_secs();
        let mut time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(now);
        for path in changed {
            std::fs::File::open(path).unwrap().set_modified(time).unwrap();
            time += Duration::from_secs(1);
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        self.trace.note("somebody", format_args!("changes {name}"));
        self.tally.lock().unwrap().touched += 1;
        site.shared.idle.store(false, Ordering::Relaxed);
        site.shared.wake.notify_one();
    }

    /// A writer stalls in the middle of an upload while one gc run completes, and continues while another one runs.
    fn writer_stalls(&mut self) {
        let Some(index) = self.any_site(|site| site.trains && site.runs) else {
            return;
        };
        match self.sites[index].team {
            Some((team, _)) => self.save_together(team),
            None => self.save_at(index, false),
        }
        let (run, machine) = (self.sites[index].run, Arc::clone(&self.sites[index].machine));
        let store = self.numbers.usize(0..self.clouds.len());
        self.after(100..2_500, Later::Freeze(Arc::clone(&machine)));
        let grace = u64::try_from(self.grace.as_millis()).unwrap();
        self.after(grace + 5_000..grace + 60_000, Later::Gc { store, run });
        let awake = grace + self.numbers.u64(120_000..600_000);
        self.after(awake - 2_000..awake + 2_000, Later::Gc { store, run });
        self.after(awake - 1_000..awake + 1_000, Later::Thaw(machine));
    }

    pub fn gc_from_elsewhere(&mut self, run: usize, store: usize) {
        let machine = Arc::clone(&self.others[self.numbers.usize(0..self.others.len())]);
        let work = self.run_gc(&machine, run, store);
        self.operate(&machine, async move {
            let _ = work.await;
        });
    }

    pub fn prune_on(&mut self, run: usize, store: usize) {
        let machine = self.any_machine();
        let work = self.prune(&machine, run, store, Role::Pruner);
        self.operate(&machine, async move {
            let _ = work.await;
        });
    }

    fn prune_while_somebody_restores(&mut self) {
        let (run, store) = self.any_run();
        self.restore_on(run, store, true);
        self.prune_on(run, store);
    }

    fn prune_while_somebody_pins(&mut self) {
        let (run, store) = self.any_run();
        self.prune_on(run, store);
        self.pin_on(run, store);
    }

    fn evict(&mut self) {
        if let Some(index) = self.any_site(|site| site.runs) {
            let shared = &self.sites[index].shared;
            shared.evict.store(true, Ordering::Relaxed);
            shared.idle.store(false, Ordering::Relaxed);
            shared.wake.notify_one();
        }
    }

    async fn cut_power(&mut self) {
        let machine = self.any_machine();
        let site = self.sites.iter().position(|site| site.runs && Arc::ptr_eq(&site.machine, &machine));
        self.trace.note(&machine, "loses power");
        machine.cut_power().await;
        machine.thaw();
        if let Some(site) = site {
            let lost = self.numbers.u32(0..3) == 0;
            self.sites[site].runs = false;
            // Runs after every request under way has arrived or was lost.
            let deed = match self.sites[site].team {
                // A job does not survive the loss of a node's disk.
                Some((team, _)) if lost => Later::TeamRestart { team, lost: Some(site) },
                _ => Later::Restart { site, lost },
            };
            self.after(10_000..120_000, deed);
        }
    }

    fn freeze(&mut self) {
        let machine = self.any_machine();
        self.trace.note(&machine, "freezes");
        machine.freeze();
        let times = [500..15_000, 60_000..900_000, 1_200_000..10_800_000];
        let time = times[self.numbers.usize(0..times.len())].clone();
        self.after(time, Later::Thaw(machine));
    }

    fn cut_off(&mut self) {
        let machine = self.any_machine();
        self.trace.note(&machine, "is cut off");
        machine.cut_off(true);
        self.after(5_000..900_000, Later::Connect(machine));
    }

    /// The stores become unreachable at the moment when a step needs its attempt, and stay so for a while.
    fn store_is_away_at_a_save(&mut self) {
        let Some(index) = self.any_site(|site| site.trains && site.runs) else {
            return;
        };
        for store in 0..self.clouds.len() {
            if self.clouds[store].is_away() || self.numbers.u32(0..4) == 0 {
                continue;
            }
            self.trace.note("world", format_args!("store {store} is away"));
            self.clouds[store].go_away(true);
            self.after(2_000..1_800_000, Later::StoreIsBack(store));
        }
        match self.sites[index].team {
            Some((team, _)) => self.save_together(team),
            None => self.save_at(index, false),
        }
    }

    /// Returns the step that the trainer of a new disk resumes from, once it is known; its vault remembers it.
    pub async fn go_on_from_newest(&mut self, index: usize) -> Result<Option<StepId>, ErrorKind> {
        let machine = Machine::new("starter", 0);
        let actor = self.process(&machine, Role::Restorer);
        let weather = Arc::new(Weather::calm(self.numbers.fork()));
        let site = &self.sites[index];
        let run = site.run;
        let context = RestoreContext {
            vault: Some(Vault::open_or_create(&site.directory.join("vault")).unwrap()),
            remotes: self.uploaded(self.remotes_in(&weather, &machine, &actor, run)),
            sync: RestoreSync::Full,
            budget: MemoryBudget::new(0),
            observer: Arc::clone(&self.observer),
        };
        let directory = self.root.path().join(format!("restored-{}", actor.process));
        let request = RestoreRequest {
            together: Some(Together {
                writer: self.writer(index),
                since: self.clock(&site.machine),
                patience: Duration::ZERO,
            }),
            resumes: true,
            ..RestoreRequest::newest(self.runs[run].clone(), Target::As(directory.clone()))
        };
        match restore(&context, &request).await {
            Ok(report) => {
                let id = report.plan.id;
                self.trace.note(&self.sites[index].machine, format_args!("goes on from {id}"));
                std::fs::remove_dir_all(&directory).unwrap();
                Ok(Some(id))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            // Somebody is modifying the store, or it is unreachable.
            Err(error) => Err(error.kind()),
        }
    }

    fn clock_jumps(&mut self) {
        let machine = self.any_machine();
        for site in &self.sites {
            if Arc::ptr_eq(&site.machine, &machine) {
                self.judge.lock().unwrap().times_tell_nothing(site.run);
            }
        }
        let jump = self.numbers.i64(-200_000..200_000);
        *machine.clock_off_seconds.lock().unwrap() += jump;
        self.trace.note(&machine, format_args!("has its clock jump by {jump} seconds"));
    }

    pub fn after(&mut self, milliseconds: std::ops::Range<u64>, deed: Later) {
        let due = self.trace.elapsed() + Duration::from_millis(self.numbers.u64(milliseconds));
        self.later.push((due, deed));
    }

    fn unreadable_key(&self, run: usize) -> String {
        let id = StepId::new(Attempt::FIRST, Step::new(UNREADABLE_STEP).unwrap());
        RunKeys::new(self.runs[run].clone()).commit(id)
    }

    fn becomes_unreadable(&mut self) {
        let (store, run) = (self.numbers.usize(0..self.clouds.len()), self.numbers.usize(0..self.runs.len()));
        if !self.clouds[store].is_mounted() {
            return;
        }
        let key = self.unreadable_key(run);
        put_by_somebody(&self.clouds[store], &key, b"{");
        let since = (key, self.trace.elapsed());
        self.judge.lock().unwrap().unreadable(store, run, Some(since));
        self.after(1_000..120_000, Later::Prune { store, run });
        self.after(60_000..3_600_000, Later::Readable { store, run });
    }

    pub fn readable(&mut self, store: usize, run: usize) {
        if !self.clouds[store].is_mounted() {
            return self.after(60_000..120_000, Later::Readable { store, run });
        }
        let key = self.unreadable_key(run);
        self.clouds[store].delete(&Actor::somebody(), &[key]);
        self.judge.lock().unwrap().unreadable(store, run, None);
    }

    /// A node is given up while it is frozen, and another takes its name; then the first continues.
    fn replace_node(&mut self) {
        if self.sites.len() >= 4 || !self.is_all_mounted() {
            return;
        }
        let Some(index) = self.any_site(|site| site.trains && site.runs && site.team.is_none()) else {
            return;
        };
        let (run, node) = (self.sites[index].run, self.sites[index].node.to_string());
        if !self.has_an_attempt(index) || self.sites[index].launch.is_none() {
            // Which of two nodes that do not see each other continues is decided by the clocks of both.
            self.judge.lock().unwrap().times_tell_nothing(run);
        }
        let machine = Arc::clone(&self.sites[index].machine);
        self.trace.note(&machine, "freezes and is replaced");
        machine.freeze();
        self.sites[index].trains = false;
        self.after(60_000..7_200_000, Later::Thaw(machine));
        let step = self.sites[index].trainer.step;
        self.add_site(run, &node, None);
        let newest = self.sites.len() - 1;
        self.sites[newest].trainer.step = step.saturating_sub(10 * self.numbers.u64(0..3));
    }

    /// Somebody starts another job under a run's name by mistake: two launches write its steps at once.
    fn another_job_begins(&mut self) {
        if self.sites.len() >= 4 || !self.is_all_mounted() {
            return;
        }
        let Some(index) = self.any_site(|site| site.trains && site.runs && site.team.is_none()) else {
            return;
        };
        let run = self.sites[index].run;
        // Nobody can tell which of two trainers that know nothing of each other is further ahead.
        self.judge.lock().unwrap().times_tell_nothing(run);
        let step = self.sites[index].trainer.step;
        let newest = self.sites.len();
        self.add_site(run, &format!("foreign-{newest}"), None);
        self.sites[newest].trainer.step = step.saturating_sub(10 * self.numbers.u64(0..3));
        self.tally.lock().unwrap().foreign_jobs += 1;
        self.save_at(newest, false);
    }

    /// Somebody makes a copy of a node's disk, as of a volume, and goes back to it later.
    fn disk_is_copied(&mut self) {
        let Some(index) = self.any_site(|site| site.runs && site.team.is_none()) else {
            return;
        };
        let copy = self.root.path().join(format!("copy-{index}-{}", self.numbers.u64(..)));
        let site = &self.sites[index];
        copy_disk(&site.directory, &copy);
        self.trace.note(&site.machine, "has its disk copied");
        let step = site.trainer.step;
        self.after(10_000..3_600_000, Later::GoBack { site: index, copy, step });
    }

    /// The vault and the trainer have forgotten what they did since.
    pub async fn disk_goes_back(&mut self, index: usize, copy: &Path, step: u64) {
        if !self.sites[index].runs || !self.is_all_mounted() {
            return;
        }
        let machine = Arc::clone(&self.sites[index].machine);
        machine.cut_power().await;
        machine.thaw();
        let site = &mut self.sites[index];
        std::fs::remove_dir_all(&site.directory).unwrap();
        copy_disk(copy, &site.directory);
        site.trainer.step = step;
        self.trace.note(&machine, format_args!("goes back in time to step {step}"));
        self.judge.lock().unwrap().times_tell_nothing(self.sites[index].run);
        self.tally.lock().unwrap().gone_back += 1;
        self.next_launch(index);
        self.start_agent(index);
    }

    /// Somebody makes a copy of a store, and restores it from that later.
    fn store_is_copied(&mut self) {
        let store = self.numbers.usize(0..self.clouds.len());
        let facts = self.judge.lock().unwrap().facts(store);
        let objects = self.clouds[store].objects();
        // Where a run began only later, a person has to say that the store is the one that it was.
        let has_all = self.runs.iter().all(|run| objects.contains_key(&RunKeys::new(run.clone()).marker()));
        let Some(facts) = facts.filter(|_| has_all && self.clouds[store].is_mounted()) else {
            return;
        };
        self.trace.note("world", format_args!("store {store} is copied"));
        let copy = Box::new((self.clouds[store].copy_of_all(), facts));
        self.after(10_000..3_600_000, Later::StoreGoesBack { store, copy });
    }

    /// A store goes back in time while nothing runs. Vaults have it that steps are durable which it lacks.
    pub async fn store_goes_back(&mut self, store: usize, (stand, facts): (Stand, StoreFacts)) {
        if !self.clouds[store].is_mounted() {
            return;
        }
        for machine in self.machines() {
            machine.cut_power().await;
            machine.thaw();
        }
        self.trace.note("world", format_args!("store {store} goes back in time"));
        self.clouds[store].go_back(stand);
        self.judge.lock().unwrap().goes_back(store, facts);
        self.tally.lock().unwrap().stores_gone_back += 1;
        for run in 0..self.runs.len() {
            self.judge.lock().unwrap().times_tell_nothing(run);
        }
        for team in 0..self.teams.len() {
            self.restart_team(team, None).await;
        }
        for site in 0..self.sites.len() {
            if self.sites[site].runs && self.sites[site].team.is_none() {
                self.next_launch(site);
                self.start_agent(site);
            }
        }
    }

    /// A machine is cloned while it runs, and both train: two vaults begin with the same content.
    fn machine_is_cloned(&mut self) {
        if self.sites.len() >= 4 || !self.is_all_mounted() {
            return;
        }
        let Some(index) = self.any_site(|site| site.trains && site.runs && site.team.is_none()) else {
            return;
        };
        let (run, node) = (self.sites[index].run, self.sites[index].node.to_string());
        self.judge.lock().unwrap().times_tell_nothing(run);
        self.trace.note(&self.sites[index].machine, "is cloned");
        let newest = self.sites.len();
        copy_disk(&self.sites[index].directory, &self.root.path().join(format!("site-{newest}")));
        let step = self.sites[index].trainer.step;
        self.add_site(run, &node, None);
        self.sites[newest].trainer.step = step;
        self.tally.lock().unwrap().cloned += 1;
    }

    pub fn is_all_mounted(&self) -> bool {
        self.clouds.iter().all(|cloud| cloud.is_mounted())
    }

    /// An empty, writable directory replaces a store that is a filesystem, for a while. A vault that has never seen
    /// the store cannot detect this: for it, no store exists.
    fn filesystem_is_unmounted(&mut self) {
        let store = self.numbers.usize(0..self.clouds.len());
        let is_remembered = if store < self.uploaded_to {
            let mut sites = self.sites.iter();
            sites.all(|site| self.remembers(&site.directory.join("vault"), site.run, store))
        } else {
            self.copied_with.iter().all(|(vault, run)| self.remembers(vault, *run, store))
        };
        if !self.clouds[store].is_mounted() || !is_remembered {
            return;
        }
        self.trace.note("world", format_args!("store {store} is unmounted"));
        self.clouds[store].unmount();
        self.tally.lock().unwrap().unmounted += 1;
        self.after(2_000..1_800_000, Later::Mount(store));
        self.save();
        self.evict();
    }

    /// Returns whether a vault has seen the marker of a run on a store.
    pub fn remembers(&self, vault: &Path, run: usize, store: usize) -> bool {
        let note = format!("remote-store-{store}");
        let vault = Vault::open(vault).unwrap();
        vault.is_some_and(|vault| vault.note_keys(&self.runs[run]).unwrap().contains(&note))
    }

    /// Starts an operation on a machine.
    pub fn operate(&self, machine: &Arc<Machine>, work: impl Future<Output = ()> + 'static) {
        let under_way = UnderWay::new(&self.under_way);
        machine.run(async move {
            let _under_way = under_way;
            work.await;
        });
    }

    /// Returns whether a site's launch has its attempt: the next launch then has a higher one.
    fn has_an_attempt(&self, index: usize) -> bool {
        let keys = RunKeys::new(self.runs[self.sites[index].run].clone());
        let launch = self.writer(index).launch;
        let objects = self.clouds[0].objects();
        let mut records =
            objects.iter().filter(|(key, _)| matches!(keys.classify(key), Some(KeyKind::Launch(_))));
        launch.is_some_and(|launch| {
            records.any(|(key, object)| {
                decode::<LaunchRecord>(&object.bytes, key).is_ok_and(|record| record.launch == launch)
            })
        })
    }

    fn any_run(&mut self) -> (usize, usize) {
        let run = self.numbers.usize(0..self.runs.len());
        (run, self.numbers.usize(0..self.clouds.len()))
    }

    fn prune_somewhere(&mut self, role: Role) {
        let (machine, (run, store)) = (self.any_machine(), self.any_run());
        let work = self.prune(&machine, run, store, role);
        self.operate(&machine, async move {
            let _ = work.await;
        });
    }

    pub fn prune(
        &mut self,
        machine: &Arc<Machine>,
        run: usize,
        store: usize,
        role: Role,
    ) -> impl Future<Output = stepvault_core::Result<()>> + use<> {
        let actor = self.process(machine, role);
        let rules = if role == Role::KeepsNothing {
            KeepRules { last: Some(0), ..KeepRules::default() }
        } else {
            self.keep()
        };
        let mut remotes = self.remotes(machine, &actor, run);
        let fed = self.fed.as_ref().filter(|fed| fed.selection.is_some() && store == 0);
        let selective = fed.filter(|_| self.bug != Some(Bug::OverlooksAwaited));
        let prune = RemotePrune {
            selective: selective.map(|fed| remotes[fed.store].clone()).into_iter().collect(),
            remote: remotes.swap_remove(store),
            rules,
            manages_imported: false,
            maximum_deletions: (self.bug == Some(Bug::NeverPrunes)).then_some(0),
            pinned_elsewhere: BTreeSet::new(),
            observer: Arc::clone(&self.observer),
        };
        let (trace, tally) = (Arc::clone(&self.trace), Arc::clone(&self.tally));
        async move {
            let report = prune_remote(&prune).await;
            match &report {
                Ok(report) => {
                    tally.lock().unwrap().retired += report.removed.len();
                    let (removed, spared) = (report.removed.len(), report.spared.len());
                    trace.note(&actor, format_args!("removed {removed}, spared {spared}"));
                }
                Err(error) => trace.note(&actor, format_args!("did not prune: {:?}", error.kind())),
            }
            report.map(drop)
        }
    }

    fn gc_somewhere(&mut self) {
        let (machine, (run, store)) = (self.any_machine(), self.any_run());
        let work = self.run_gc(&machine, run, store);
        self.operate(&machine, async move {
            let _ = work.await;
        });
    }

    pub fn run_gc(
        &mut self,
        machine: &Arc<Machine>,
        run: usize,
        store: usize,
    ) -> impl Future<Output = stepvault_core::Result<()>> + use<> {
        let actor = self.process(machine, Role::Gc);
        let remote = self.remotes(machine, &actor, run).swap_remove(store);
        let grace = if self.bug == Some(Bug::GcAtOnce) { Duration::ZERO } else { self.grace };
        let dry_run = self.bug == Some(Bug::NeverGc);
        let (trace, tally) = (Arc::clone(&self.trace), Arc::clone(&self.tally));
        let observer = Arc::clone(&self.observer);
        async move {
            let report = run_gc(&remote, grace, dry_run, &observer).await;
            match &report {
                Ok(report) => {
                    tally.lock().unwrap().gc_removed += report.removed.len();
                    let (removed, marked) = (report.removed.len(), report.marked.len());
                    trace.note(&actor, format_args!("gc removed {removed}, marked {marked}"));
                }
                Err(error) => trace.note(&actor, format_args!("gc failed: {:?}", error.kind())),
            }
            report.map(drop)
        }
    }

    fn pin_something(&mut self) {
        let (run, store) = self.any_run();
        self.pin_on(run, store);
    }

    fn pin_on(&mut self, run: usize, store: usize) {
        let machine = self.any_machine();
        let visible: Vec<StepId> = self.judge.lock().unwrap().visible(store, run).into_keys().collect();
        let Some(id) = self.numbers.choice(visible) else {
            return;
        };
        let actor = self.process(&machine, Role::Pinner);
        let remote = self.remotes(&machine, &actor, run).swap_remove(store);
        let (judge, trace) = (Arc::clone(&self.judge), Arc::clone(&self.trace));
        let cloud = Arc::clone(&self.clouds[store]);
        self.operate(&machine, async move {
            let pinned = catalog::pin(&remote, id, "").await.is_ok();
            // Another process may have removed it before the response arrived.
            if pinned && cloud.objects().contains_key(&remote.keys.pin(id)) {
                trace.note(&actor, format_args!("pinned {id}"));
                judge.lock().unwrap().pin(store, (run, id));
            }
        });
    }

    fn unpin_something(&mut self) {
        let (machine, (run, store)) = (self.any_machine(), self.any_run());
        let pinned: Vec<StepId> = self.judge.lock().unwrap().pinned(store, run).into_iter().collect();
        let Some(id) = self.numbers.choice(pinned) else {
            return;
        };
        let actor = self.process(&machine, Role::Pinner);
        let remote = self.remotes(&machine, &actor, run).swap_remove(store);
        self.judge.lock().unwrap().unpin(store, (run, id));
        self.operate(&machine, async move {
            let _ = catalog::unpin(&remote, id).await;
        });
    }

    fn restore_somewhere(&mut self) {
        let ((run, store), by_name) = (self.any_run(), self.numbers.u32(0..3) == 0);
        self.restore_on(run, store, by_name);
    }

    /// Restores the newest step, or a step that a store owes by its name.
    fn restore_on(&mut self, run: usize, store: usize, by_name: bool) {
        let site = self.any_site(|site| site.run == run && site.runs);
        let site = site.filter(|_| self.numbers.bool());
        let machine = if let Some(site) = site {
            Arc::clone(&self.sites[site].machine)
        } else {
            let index = self.numbers.usize(0..self.others.len());
            Arc::clone(&self.others[index])
        };
        let wanted = if by_name {
            let owed: Vec<StepId> = self.judge.lock().unwrap().owed(store, run).into_keys().collect();
            self.numbers.choice(owed)
        } else {
            None
        };
        let stores: Vec<usize> = (0..self.clouds.len()).collect();
        let work = self.restore(&machine, run, &stores, wanted, site);
        self.operate(&machine, async move {
            work.await;
        });
    }

    /// Restores a step, the newest if none is given, from some stores and the vault of a site; returns the result.
    pub fn restore(
        &mut self,
        machine: &Arc<Machine>,
        run: usize,
        stores: &[usize],
        wanted: Option<StepId>,
        site: Option<usize>,
    ) -> impl Future<Output = Option<(StepId, Content)>> + use<> {
        let actor = self.process(machine, Role::Restorer);
        let all = self.remotes(machine, &actor, run);
        let remotes: Vec<RunRemote> = stores.iter().map(|store| all[*store].clone()).collect();
        let directory = self.root.path().join(format!("restored-{}", actor.process));
        let vault = site.map(|site| self.sites[site].directory.join("vault"));
        let (judge, trace) = (Arc::clone(&self.judge), Arc::clone(&self.trace));
        let (observer, tally) = (Arc::clone(&self.observer), Arc::clone(&self.tally));
        let (stores, bug, clouds) = (stores.to_vec(), self.bug, self.clouds.clone());
        async move {
            let mounts = || clouds.iter().map(|cloud| cloud.mounts()).sum::<u64>();
            let (mounts_before, all_mounted) = (mounts(), clouds.iter().all(|cloud| cloud.is_mounted()));
            if bug == Some(Bug::ReadsWithoutCommit) && wanted.is_none() {
                return read_without_commit(&remotes[0], run, stores[0], &judge).await;
            }
            let seen = |id: Option<StepId>| {
                let judge = judge.lock().unwrap();
                let ids = stores.iter().flat_map(|store| judge.visible(*store, run).into_keys());
                ids.filter(|one| id.is_none_or(|id| *one == id)).collect::<BTreeSet<StepId>>()
            };
            let before = seen(wanted);
            let context = RestoreContext {
                vault: vault.and_then(|vault| Vault::open(&vault).unwrap()),
                remotes,
                sync: RestoreSync::Full,
                budget: MemoryBudget::new(0),
                observer,
            };
            let name = context.remotes[0].keys.run().clone();
            let request = RestoreRequest {
                wanted: WantedSteps {
                    step: wanted.map(|id| id.step),
                    attempt: wanted.map(|id| id.attempt),
                    revision: wanted.map(|id| id.revision),
                },
                ..RestoreRequest::newest(name, Target::As(directory.clone()))
            };
            let report = restore(&context, &request).await;
            match report {
                Ok(report) => {
                    let id = report.plan.id;
                    trace.note(&actor, format_args!("restored {id}"));
                    tally.lock().unwrap().restored += 1;
                    let got = content::of_directory(&directory);
                    let from: &[usize] =
                        if report.plan.sources.contains(&Tier::Local) { &[] } else { &stores };
                    let mut judge = judge.lock().unwrap();
                    judge.renamed_in(context.vault.as_ref(), run);
                    judge.restored((run, id), &got, from);
                    drop(judge);
                    std::fs::remove_dir_all(&directory).unwrap();
                    Some((id, got))
                }
                Err(error) => {
                    trace.note(&actor, format_args!("did not restore: {:?}", error.kind()));
                    let lasting: Vec<StepId> = before.intersection(&seen(wanted)).copied().collect();
                    let found_none = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NoneValid);
                    // A process without a vault mistakes an empty directory for an empty store.
                    if let Some(id) = lasting.last()
                        && found_none
                        && all_mounted
                        && mounts() == mounts_before
                    {
                        judge
                            .lock()
                            .unwrap()
                            .broken("L4", format!("{actor} found none, and {id} was there: {error}"));
                    }
                    None
                }
            }
        }
    }
}

/// Reads like a reader that knows nothing of commits.
async fn read_without_commit(
    remote: &RunRemote,
    run: usize,
    store: usize,
    judge: &Arc<std::sync::Mutex<crate::invariants::Judge>>,
) -> Option<(StepId, Content)> {
    let objects = remote.list(&remote.keys.prefix()).await.ok()?;
    let mut newest: Option<(StepId, String)> = None;
    for object in &objects {
        if let Some(KeyKind::Data { id, name, .. }) = remote.keys.classify(&object.key) {
            newest = newest.max(Some((id, name)));
        }
    }
    let (id, name) = newest.filter(|(id, _)| id.step.number() >= 10)?;
    let prefix = remote.keys.data_prefix(&name, id);
    let mut got = Content::new();
    for object in objects.iter().filter(|object| object.key.starts_with(&prefix)) {
        let bytes = remote.read_small(&object.key).await.ok()??;
        let path = object.key[prefix.len()..].to_owned();
        got.insert(path, (bytes.len() as u64, Crc32c::of(&bytes)));
    }
    judge.lock().unwrap().restored((run, id), &got, &[store]);
    Some((id, got))
}

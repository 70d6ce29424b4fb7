//! Followers: each restores new durable steps of a run into a directory of its own and keeps the last ones.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepvault_core::config::RestoreSync;
use stepvault_core::follow::{FollowRules, FollowedSteps, next_step};
use stepvault_core::ids::StepId;
use stepvault_core::keys::KeyKind;
use stepvault_core::{Error, ErrorKind};
use stepvault_engine::follow::{
    DurableSteps, FollowRequest, FollowedStep, Unfollowed, durable_steps, restore_followed, unfollowed,
};
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::restore::RestoreContext;
use stepvault_local::follow_directory::FollowDirectory;
use tokio::time::{sleep, timeout};

use crate::actor::{Actor, Role};
use crate::content;
use crate::invariants::Judge;
use crate::machine::Machine;
use crate::planted::Bug;
use crate::store::Cloud;
use crate::trace::Trace;
use crate::world::{Tally, World};

/// The directory of a follower; at most one process at a time has it.
type Directory = Arc<parking_lot::Mutex<FollowDirectory>>;

const INTERVAL: Duration = Duration::from_secs(30);
/// How long the removal of older steps takes.
const REMOVAL: Duration = Duration::from_secs(1);

/// One process.
struct Follower {
    actor: Actor,
    run: usize,
    path: PathBuf,
    context: RestoreContext,
    rules: FollowRules,
    keep: usize,
    /// How long the command runs for each step.
    command: Duration,
    bug: Option<Bug>,
    judge: Arc<Mutex<Judge>>,
    trace: Arc<Trace>,
    tally: Arc<Mutex<Tally>>,
    clouds: Vec<Arc<Cloud>>,
    required: Vec<usize>,
}

/// What the stores have of a run at one moment.
struct Stand {
    visible: BTreeSet<StepId>,
    /// Visible on each required store.
    durable: BTreeSet<StepId>,
    removed: BTreeSet<StepId>,
    /// How often a filesystem was mounted or unmounted; `None` while one is not mounted.
    mounts: Option<u64>,
}

impl World {
    /// Somebody follows a run for a while, often while it is pruned.
    pub fn follow_somewhere(&mut self) {
        let run = self.numbers.usize(0..self.runs.len());
        let machine = Arc::clone(&self.others[run % self.others.len()]);
        let mut killed = Vec::new();
        if self.numbers.bool() {
            for _ in 0..self.numbers.usize(1..4) {
                let after = if self.numbers.bool() { 10..3_000 } else { 3_000..120_000 };
                killed.push((self.follower(&machine, run), Duration::from_millis(self.numbers.u64(after))));
            }
        }
        let (follower, looks) = (self.follower(&machine, run), self.numbers.u32(1..40));
        self.operate(&machine, async move {
            for (follower, after) in killed {
                let _ = timeout(after, follower.work(looks)).await;
            }
            follower.work(looks).await;
        });
        if self.numbers.bool() {
            let store = self.numbers.usize(0..self.uploaded_to);
            self.prune_on(run, store);
        }
    }

    fn followed_path(&self, run: usize) -> PathBuf {
        self.root.path().join(format!("followed-{run}"))
    }

    fn follower(&mut self, machine: &Arc<Machine>, run: usize) -> Follower {
        let actor = self.process(machine, Role::Follower);
        Follower {
            run,
            path: self.followed_path(run),
            context: RestoreContext {
                vault: None,
                remotes: self.uploaded(self.remotes(machine, &actor, run)),
                sync: RestoreSync::Full,
                budget: MemoryBudget::new(0),
                observer: Arc::clone(&self.observer),
            },
            rules: FollowRules { every: None, each: self.follows_each },
            keep: self.keep_followed,
            command: Duration::from_millis(self.numbers.u64(1..5_000)),
            bug: self.bug,
            judge: Arc::clone(&self.judge),
            trace: Arc::clone(&self.trace),
            tally: Arc::clone(&self.tally),
            clouds: self.clouds[..self.uploaded_to].to_vec(),
            required: (0..self.uploaded_to).filter(|store| self.required[*store]).collect(),
            actor,
        }
    }

    /// Checks promise L4 for followers: once faults have stopped, each gets the newest step.
    pub async fn followers_come_through(&mut self) {
        let machine = Arc::clone(&self.others[0]);
        for run in 0..self.runs.len() {
            let path = self.followed_path(run);
            if !path.exists() {
                continue;
            }
            let follower = self.follower(&machine, run);
            follower.work(1).await;
            let directory = FollowDirectory::open(&path, &self.runs[run]).unwrap();
            let (record, durable) = (directory.followed().clone(), follower.stand().durable);
            let (finished, newest) = (record.newest(), durable.last().copied());
            if self.tally.lock().unwrap().stores_gone_back > 0 {
                continue;
            }
            if finished < newest {
                let text = format!("the follower of run {run} has {finished:?}, and {newest:?} is there");
                self.broken("L4", text);
            }
            // By what was seen of it, and not by its own record.
            let seen = self.judge.lock().unwrap().followed.iter().copied().collect::<Vec<_>>();
            let seen = seen.into_iter().filter(|(of_run, _)| *of_run == run).map(|(_, id)| id).collect();
            let seen = FollowedSteps { finished: seen, skipped: record.skipped, all_until: None };
            if let Some(next) = next_step(&durable, &seen, follower.rules) {
                let text = format!("the follower of run {run} did not follow {}, which is there", next.id);
                self.broken("L4", text);
            }
        }
    }
}

impl Follower {
    /// Follows what is new, and looks again and again, as many times as `looks`.
    async fn work(&self, looks: u32) {
        let run = self.context.remotes[0].keys.run();
        if self.bug == Some(Bug::FollowsAgain) {
            let _ = std::fs::remove_file(self.path.join(".stepvault-follow/state.json"));
        }
        // It is locked while another process follows.
        let Ok(directory) = FollowDirectory::open(&self.path, run) else {
            return;
        };
        let directory = Arc::new(parking_lot::Mutex::new(directory));
        directory.lock().remove_older(self.keep).unwrap();
        self.check_kept(&directory);
        for look in 1..=looks {
            while self.follow_next(&directory).await {}
            if look < looks {
                sleep(INTERVAL).await;
            }
        }
    }

    fn stand(&self) -> Stand {
        let judge = self.judge.lock().unwrap();
        let stores = || self.clouds.iter().map(|cloud| cloud.index);
        let are_mounted = self.clouds.iter().all(|cloud| cloud.is_mounted());
        let visible: BTreeSet<StepId> =
            stores().flat_map(|store| judge.visible(store, self.run).into_keys()).collect();
        let mut durable = visible.clone();
        for store in &self.required {
            let there = judge.visible(*store, self.run);
            durable.retain(|id| there.contains_key(id));
        }
        Stand {
            visible,
            durable,
            removed: stores().flat_map(|store| judge.removed(store, self.run)).collect(),
            mounts: are_mounted.then(|| self.clouds.iter().map(|cloud| cloud.mounts()).sum()),
        }
    }

    /// Lists the durable steps.
    async fn durable(&self, followed: &FollowedSteps) -> DurableSteps {
        let remotes = &self.context.remotes;
        let mut durable = durable_steps(remotes, |id| followed.is_waiting(id, self.rules)).await;
        if self.bug == Some(Bug::FollowsTooSoon) {
            for remote in remotes {
                durable.ids.extend(durable_steps(slice::from_ref(remote), |_| true).await.ids);
            }
        }
        durable
    }

    fn next(&self, durable: &BTreeSet<StepId>, followed: &FollowedSteps) -> Option<StepId> {
        if self.bug == Some(Bug::FollowsAbandoned) {
            return durable.iter().find(|id| followed.is_waiting(**id, self.rules)).copied();
        }
        next_step(durable, followed, self.rules).map(|next| next.id)
    }

    async fn restore(&self, directory: &Directory, id: StepId) -> stepvault_core::Result<FollowedStep> {
        if self.bug == Some(Bug::FollowsUnverified) {
            return self.place_unverified(directory, id).await;
        }
        let run = self.context.remotes[0].keys.run().clone();
        let request = FollowRequest { run, id, include: Vec::new(), thaw: None };
        restore_followed(&self.context, directory, request).await
    }

    /// Follows the next step; returns whether another one may follow at once.
    async fn follow_next(&self, directory: &Directory) -> bool {
        let (followed, before) = (directory.lock().followed().clone(), self.stand());
        let mut durable = self.durable(&followed).await;
        let placed = directory.lock().placed_steps().unwrap();
        durable.ids.extend(placed.into_iter().filter(|id| followed.is_waiting(*id, self.rules)));
        let Some(id) = self.next(&durable.ids, &followed) else {
            return false;
        };
        match self.restore(directory, id).await {
            Ok(step) => {
                if step.report.is_some() || self.bug == Some(Bug::FollowsUnverified) {
                    self.check_restored(id, &before, &content::of_directory(&step.path));
                }
                self.finish(directory, id, &step.path).await;
                true
            }
            Err(error) => {
                self.trace.note(&self.actor, format_args!("did not follow {id}: {:?}", error.kind()));
                match unfollowed(&self.context.remotes, id, &error).await {
                    Unfollowed::Unknown => return false,
                    // The next listing is without it.
                    Unfollowed::Removed => return true,
                    Unfollowed::Damaged => directory.lock().skip(id).unwrap(),
                }
                let after = self.stand();
                let was_there = before.durable.contains(&id) && after.durable.contains(&id);
                if was_there && before.mounts.is_some() && before.mounts == after.mounts {
                    let text = format!("{} skipped {id}, which was there: {error}", self.actor);
                    self.judge.lock().unwrap().broken("L4", text);
                }
                true
            }
        }
    }

    fn check_restored(&self, id: StepId, before: &Stand, got: &content::Content) {
        let after = self.stand();
        let was_removed = before.removed.contains(&id) && !before.visible.contains(&id);
        let stores: Vec<usize> = self.clouds.iter().map(|cloud| cloud.index).collect();
        let mut judge = self.judge.lock().unwrap();
        if was_removed && !after.visible.contains(&id) {
            let text = format!("{} followed {id}, which had been removed before it looked", self.actor);
            judge.broken("S3", text);
        }
        let is_removed = before.removed.contains(&id) || after.removed.contains(&id);
        if !before.durable.contains(&id) && !after.durable.contains(&id) && !is_removed {
            judge.broken("S10", format!("{} followed {id}, which was not durable", self.actor));
        }
        let mut lasting = before.durable.intersection(&after.durable);
        if let Some(later) = lasting.find(|one| one.attempt > id.attempt && one.step <= id.step) {
            let text = format!("{} followed {id}, which {later} had left behind", self.actor);
            judge.broken("S10", text);
        }
        judge.restored((self.run, id), got, &stores);
    }

    /// Runs the command for a step that was placed. The process may be killed at each await.
    async fn finish(&self, directory: &Directory, id: StepId, path: &Path) {
        directory.lock().point_to(id, path).unwrap();
        sleep(self.command).await;
        self.trace.note(&self.actor, format_args!("followed {id}"));
        self.tally.lock().unwrap().followed += 1;
        self.judge.lock().unwrap().saw_followed((self.run, id), self.rules.each, &self.actor);
        let each = self.rules.each && self.bug != Some(Bug::FollowsNoneLate);
        directory.lock().finish(id, FollowRules { each, ..self.rules }).unwrap();
        sleep(REMOVAL).await;
        directory.lock().remove_older(self.keep).unwrap();
        self.check_kept(directory);
    }

    fn check_kept(&self, directory: &Directory) {
        let left = directory.lock().placed_steps().unwrap().len();
        if left > self.keep {
            let text = format!("{} keeps {left} steps instead of {}", self.actor, self.keep);
            self.judge.lock().unwrap().broken("L1", text);
        }
    }

    /// Places a step as the responses have it.
    async fn place_unverified(
        &self,
        directory: &Directory,
        id: StepId,
    ) -> stepvault_core::Result<FollowedStep> {
        let missing = || Error::new(ErrorKind::NotFound, "the step has no files").on(id);
        let (remote, target) = (&self.context.remotes[0], directory.lock().begin(id)?);
        let mut restored = None;
        for object in remote.list(&remote.keys.prefix()).await? {
            let Some(KeyKind::Data { id: of, name, .. }) = remote.keys.classify(&object.key) else {
                continue;
            };
            if of == id {
                let bytes = remote.read_small(&object.key).await?.ok_or_else(missing)?;
                let root = target.join(&name);
                let path = root.join(&object.key[remote.keys.data_prefix(&name, id).len()..]);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, bytes).unwrap();
                restored = Some(root);
            }
        }
        let path = directory.lock().place(id, &restored.ok_or_else(missing)?)?;
        Ok(FollowedStep { path, report: None })
    }
}

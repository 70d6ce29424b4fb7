//! The end of a run: faults stop, and every operation that was started must finish.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::keys::KeyKind;
use stepvault_local::vault::Vault;
use tokio::time::sleep;

use crate::actor::Role;
use crate::agent::is_durable;
use crate::store::Object;
use crate::world::World;

/// The time by which everything must have finished.
const BOUND: Duration = Duration::from_hours(4);
const LOOK: Duration = Duration::from_secs(30);
/// Longer than a lease that nobody renews is valid.
const LEASES_RUN_OUT: Duration = Duration::from_mins(20);

impl World {
    pub async fn settle(&mut self) {
        self.trace.note("world", "calms down");
        self.weather.clear_up();
        for cloud in &self.clouds {
            cloud.go_away(false);
            cloud.mount();
        }
        // A start that gets no answer is postponed.
        while !self.later.is_empty() {
            for (_, deed) in std::mem::take(&mut self.later) {
                self.carry_out(deed).await;
            }
            sleep(LOOK).await;
        }
        for machine in self.machines() {
            machine.thaw();
            machine.cut_off(false);
        }
        self.staged_steps_come_through().await;
        if self.violation().is_none() {
            self.copies_come_through().await;
        }
        if self.violation().is_none() {
            self.followers_come_through().await;
        }
        if self.violation().is_none() {
            self.retention_deletes().await;
        }
        if self.violation().is_none() {
            self.orphans_go().await;
        }
        if self.violation().is_none() {
            self.everything_owed_comes_back().await;
        }
    }

    pub fn broken(&self, promise: &'static str, text: impl Into<String>) {
        self.judge.lock().unwrap().broken(promise, text);
    }

    fn wake_agents(&self) {
        for site in &self.sites {
            site.shared.idle.store(false, Ordering::Relaxed);
            site.shared.wake.notify_one();
        }
    }

    /// Checks promise L2.
    async fn staged_steps_come_through(&mut self) {
        let until = self.trace.elapsed() + BOUND;
        // A step that waits for other nodes is checked once more when the others have finished.
        let mut rounds = 2;
        self.wake_agents();
        loop {
            sleep(LOOK).await;
            for machine in self.machines() {
                machine.raise_panics().await;
            }
            let busy = self.sites.iter().filter(|site| !site.shared.idle.load(Ordering::Relaxed)).count();
            let operations = self.under_way.load(Ordering::Relaxed);
            if self.violation().is_some() {
                return;
            }
            if busy == 0 && operations == 0 {
                rounds -= 1;
                if rounds == 0 {
                    break;
                }
                self.wake_agents();
                continue;
            }
            if self.trace.elapsed() > until {
                let text = format!("{busy} agents and {operations} operations never came to an end");
                return self.broken("L2", text);
            }
        }
        for site in &self.sites {
            let run = &self.runs[site.run];
            let Some(vault) = Vault::open(&site.directory.join("vault")).unwrap() else {
                continue;
            };
            let actor = crate::actor::Actor::somebody();
            let remotes = self.uploaded(self.remotes(&site.machine, &actor, site.run));
            let failed = site.shared.failed.lock().unwrap().clone();
            self.tally.lock().unwrap().failed += failed.len();
            for step in vault.steps(run).unwrap().steps {
                for (store, remote) in remotes.iter().enumerate() {
                    if is_durable(&step, remote) {
                        self.judge.lock().unwrap().believed(store, (site.run, step.id()));
                    }
                    let is_named =
                        step.record().is_one_of_several() && self.lacks_parts(store, remote, &step);
                    if !is_durable(&step, remote) && !failed.contains_key(&(store, step.id())) && !is_named {
                        let text = format!(
                            "{} of {run} is staged on {}, neither durable on store {store} nor failed",
                            step.id(),
                            site.machine
                        );
                        self.broken("L2", text);
                    }
                }
            }
        }
    }

    /// Returns whether this node's part of a step exists and another's does not: then the missing nodes must be
    /// named.
    fn lacks_parts(
        &self,
        store: usize,
        remote: &stepvault_engine::tier::run_remote::RunRemote,
        step: &stepvault_local::sealed::SealedStep,
    ) -> bool {
        let (record, objects) = (step.record(), self.clouds[store].objects());
        let has_part = |node| objects.contains_key(&remote.keys.part(record.id, node));
        has_part(&record.node) && !record.nodes().iter().all(has_part)
    }

    /// Checks promise L1.
    async fn retention_deletes(&mut self) {
        sleep(LEASES_RUN_OUT).await;
        let machine = Arc::clone(&self.others[0]);
        for run in 0..self.runs.len() {
            for store in 0..self.clouds.len() {
                for _ in 0..2 {
                    if let Err(error) = self.prune(&machine, run, store, Role::Pruner).await {
                        return self.broken("L1", format!("a prune failed in calm weather: {error}"));
                    }
                }
                let ids: BTreeSet<StepId> =
                    self.judge.lock().unwrap().visible(store, run).into_keys().collect();
                let allowed = self.kept(store, run, &ids);
                if let Some(id) = ids.difference(&allowed).next() {
                    let text = format!("no rule keeps {id} of run {run} and it stands on store {store}");
                    self.broken("L1", text);
                }
            }
        }
    }

    /// Returns the steps that the rules keep, computed independently.
    fn kept(&self, store: usize, run: usize, ids: &BTreeSet<StepId>) -> BTreeSet<StepId> {
        let mut begins: BTreeMap<Attempt, Step> = BTreeMap::new();
        for id in ids {
            let begin = begins.entry(id.attempt).or_insert(id.step);
            *begin = (*begin).min(id.step);
        }
        let is_left_behind =
            |id: &StepId| begins.iter().any(|(attempt, begin)| *attempt > id.attempt && *begin <= id.step);
        let mut kept = BTreeSet::new();
        let mut places = self.keep_last;
        let steps: BTreeSet<StepId> = ids.iter().map(|id| id.first_revision()).collect();
        for step in steps.iter().rev() {
            if places == 0 {
                break;
            }
            kept.extend(ids.iter().filter(|id| id.is_revision_of(*step)));
            places -= u32::from(!is_left_behind(step));
        }
        let judge = self.judge.lock().unwrap();
        kept.extend(ids.iter().filter(|id| store == 0 && judge.awaits((run, **id))));
        let keys = &judge.runs[run];
        let pinned = self.clouds[store].objects().into_keys().filter_map(|key| {
            let KeyKind::Pin(id) = keys.classify(&key)? else {
                return None;
            };
            Some(id)
        });
        kept.extend(pinned);
        kept
    }

    /// Checks promise L3.
    async fn orphans_go(&mut self) {
        sleep(self.grace + LEASES_RUN_OUT).await;
        let machine = Arc::clone(&self.others[0]);
        for run in 0..self.runs.len() {
            for store in 0..self.clouds.len() {
                for _ in 0..2 {
                    let is_empty = self.judge.lock().unwrap().visible(store, run).is_empty();
                    match self.run_gc(&machine, run, store).await {
                        // Nothing was ever written here.
                        Err(_) if is_empty => {}
                        Err(error) => {
                            return self.broken("L3", format!("gc failed in calm weather: {error}"));
                        }
                        Ok(()) => {}
                    }
                }
                if let Some(orphan) = self.orphan(store, run) {
                    self.broken("L3", format!("{orphan} is left on store {store}"));
                }
            }
        }
        for cloud in &self.clouds {
            if let Some(key) = cloud.pending_keys(self.grace).first() {
                self.broken("L3", format!("an upload of {key} is left pending"));
            }
        }
    }

    /// Returns an object of ours that nothing refers to.
    fn orphan(&self, store: usize, run: usize) -> Option<String> {
        let judge = self.judge.lock().unwrap();
        let visible = judge.visible(store, run);
        let objects = self.clouds[store].objects();
        let has_marker = objects.contains_key(&judge.runs[run].marker());
        // An object that a running process has just written must not be deleted yet.
        let now = self.clouds[store].now();
        let is_old = |object: &Object| now.duration_since(object.modified).unwrap_or_default() >= self.grace;
        let mut keys = objects.into_iter().filter(|(_, object)| is_old(object)).map(|(key, _)| key);
        keys.find(|key| match judge.runs[run].classify(key) {
            None
            | Some(
                KeyKind::Marker
                | KeyKind::GcRecord
                | KeyKind::Retired(_)
                | KeyKind::Tombstone(_)
                | KeyKind::Pin(_)
                | KeyKind::Launch(_)
                | KeyKind::Staged(..)
                | KeyKind::Follower(..)
                | KeyKind::Resume(_)
                | KeyKind::Damaged(_)
                | KeyKind::Commit(_),
            ) => false,
            Some(KeyKind::Claim(id)) => !visible.contains_key(&id) && has_marker,
            Some(_) => {
                let is_foreign = judge.foreign.contains(&(store, key.clone()));
                has_marker && !is_foreign && !visible.values().any(|commit| commit.refers_to(key))
            }
        })
    }

    /// Checks promises S1 and L4.
    async fn everything_owed_comes_back(&mut self) {
        let machine = Arc::clone(&self.others[0]);
        for run in 0..self.runs.len() {
            for store in 0..self.clouds.len() {
                let (visible, owed) = {
                    let judge = self.judge.lock().unwrap();
                    (judge.visible(store, run), judge.owed(store, run))
                };
                let got = self.restore(&machine, run, &[store], None, None).await;
                if let Some((id, content)) = &got {
                    let known = self.judge.lock().unwrap().newest_is(store, run, *id, content);
                    self.tally.lock().unwrap().newest_looked_for += usize::from(known);
                }
                if got.as_ref().map(|(id, _)| *id) != visible.keys().next_back().copied() {
                    let found = got.map(|(id, _)| id.label());
                    self.broken("L4", format!("the newest of run {run} was not restored, but {found:?}"));
                }
                for (id, content) in owed {
                    let text = format!("{id} of run {run} was acknowledged on store {store}");
                    if !visible.contains_key(&id) {
                        return self.broken("S1", format!("{text} and is not there"));
                    }
                    match self.restore(&machine, run, &[store], Some(id), None).await {
                        Some((_, got)) if got == content => {}
                        _ => self.broken("S1", format!("{text} and does not come back as it was")),
                    }
                    if self.violation().is_some() {
                        return;
                    }
                }
            }
        }
    }
}

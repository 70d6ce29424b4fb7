//! The promises, each as a named check. Promises about the store are checked at every change to it, the others when a
//! process reports what it was told or got. The checks never call the engine: they read the contents of the store.

mod copies;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use stepvault_core::codec::decode;
use stepvault_core::commit::Commit;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::{Step, StepId};
use stepvault_core::keys::{KeyKind, RETIRED, RunKeys};
use stepvault_core::manifest::PartManifest;
use stepvault_core::records::Lease;
use stepvault_core::retired::{RetiredRecord, RetiredSteps};
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;

use crate::actor::{Actor, Role};
use crate::content::{self, Content};
use crate::store::{Cloud, Object};
use crate::world::Fed;

/// A step of one of the runs, by the run's index.
pub type Name = (usize, StepId);
type Objects = BTreeMap<String, Object>;

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its name: `S1` to `S10`, `L1` to `L4`.
    pub promise: &'static str,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} is broken: {}", self.promise, self.text)
    }
}

/// A commit that exists on a store.
#[derive(Debug, Clone)]
pub struct VisibleCommit {
    references: BTreeSet<String>,
}

#[derive(Debug, Clone)]
struct Tombstoned {
    version: u64,
    by: Role,
}

#[derive(Debug, Clone)]
struct LeaseFacts {
    name: Name,
    version: u64,
    renewed: std::time::SystemTime,
    time_to_live: Duration,
}

impl VisibleCommit {
    pub fn refers_to(&self, key: &str) -> bool {
        self.references.contains(key)
    }
}

/// The facts about one store.
#[derive(Debug, Default, Clone)]
pub struct StoreFacts {
    commits: BTreeMap<Name, VisibleCommit>,
    /// Every commit that ever existed there, with the digest of its record.
    ever: BTreeMap<Name, (Sha256Digest, Content, u64)>,
    tombstones: BTreeMap<Name, Tombstoned>,
    /// Steps whose commit was removed by the retention rules.
    retired: BTreeSet<Name>,
    pinned: BTreeSet<Name>,
    leases: BTreeMap<String, LeaseFacts>,
    /// The gc runs that listed a run, and the last change that each can have seen.
    gc_runs: BTreeMap<(usize, u64), u64>,
    /// Since when a run has had an unreadable commit.
    unreadable: BTreeMap<usize, (String, Duration)>,
}

/// Observes every change and checks it. Only the first broken promise counts, because others may follow from it.
#[derive(Debug, Default)]
pub struct Judge {
    grace: Duration,
    keep_last: usize,
    pub runs: Vec<RunKeys>,
    stores: Vec<StoreFacts>,
    /// Objects that do not belong to stepvault.
    pub foreign: BTreeSet<(usize, String)>,
    /// Every save of a trainer, by run and step.
    pub written: BTreeMap<(usize, Step), Vec<Content>>,
    pub sealed: BTreeMap<Name, Vec<Content>>,
    /// The part of each node of a save by several nodes, by run, step and save.
    parts: BTreeMap<(usize, Step, u64), BTreeMap<usize, Content>>,
    /// The step that the nodes of a launch resumed from, by run and launch.
    resumed: BTreeMap<(usize, u64), (String, Option<StepId>)>,
    /// The steps that were called durable, by store.
    pub acknowledged: BTreeMap<(usize, Name), Content>,
    /// The saves of each run, in order.
    saves: BTreeMap<usize, BTreeMap<u64, Content>>,
    /// The store that gets its steps from store 0.
    pub fed: Option<Fed>,
    /// The steps that followers have finished, by run.
    pub followed: BTreeSet<(usize, StepId)>,
    /// Every commit that any agent made: a copy has no other.
    commits: BTreeSet<(Name, Sha256Digest)>,
    /// Whether the store that gets copies has gone back in time: what was removed because it had it may be missing there.
    copies_are_lost: bool,
    /// Runs whose saves cannot be ordered by times or launches.
    untimed: BTreeSet<usize>,
    violation: Option<Violation>,
}

impl Judge {
    pub fn new(runs: Vec<RunKeys>, stores: usize, keep_last: usize, grace: Duration) -> Self {
        let mut judge = Self { grace, keep_last, runs, ..Self::default() };
        judge.stores.resize_with(stores, StoreFacts::default);
        judge
    }

    pub fn violation(&self) -> Option<Violation> {
        self.violation.clone()
    }

    pub fn broken(&mut self, promise: &'static str, text: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(Violation { promise, text: text.into() });
        }
    }

    fn classify(&self, key: &str) -> Option<(usize, KeyKind)> {
        let mut runs = self.runs.iter().enumerate();
        runs.find_map(|(run, keys)| Some((run, keys.classify(key)?)))
    }

    /// Returns the steps that a reader of a store sees: committed and not tombstoned.
    pub fn visible(&self, store: usize, run: usize) -> BTreeMap<StepId, VisibleCommit> {
        let facts = &self.stores[store];
        let commits = facts.commits.iter().filter(|(name, _)| name.0 == run);
        commits
            .filter(|(name, _)| !facts.tombstones.contains_key(name))
            .map(|(name, commit)| (name.1, commit.clone()))
            .collect()
    }

    /// Returns the facts about a store, if every commit on it is readable.
    pub fn facts(&self, store: usize) -> Option<StoreFacts> {
        let facts = &self.stores[store];
        facts.unreadable.is_empty().then(|| facts.clone())
    }

    /// A store went back to the time of these facts: what was acknowledged since is not owed any more.
    pub fn goes_back(&mut self, store: usize, facts: StoreFacts) {
        self.acknowledged.retain(|(at, name), _| *at != store || facts.ever.contains_key(name));
        self.stores[store] = facts;
        self.copies_are_lost |= self.fed.as_ref().is_some_and(|fed| fed.store == store);
    }

    /// A vault takes a step for durable on a store: it must be there, unless it was removed.
    pub fn believed(&mut self, store: usize, name: Name) {
        let facts = &self.stores[store];
        let is_there = facts.commits.contains_key(&name)
            || facts.tombstones.contains_key(&name)
            || facts.retired.contains(&name);
        if !is_there {
            let text = describe(store, name);
            self.broken("S1", format!("a vault takes {text} for durable, and it is not there"));
        }
    }

    /// Records a write.
    pub fn written(&mut self, cloud: &Cloud, actor: &Actor, key: &str, object: &Object, objects: &Objects) {
        let store = cloud.index;
        if self.foreign.contains(&(store, key.to_owned())) && actor.role != Role::Somebody {
            self.broken("S7", format!("{actor} overwrote {key}, which is none of ours"));
        }
        let Some((run, kind)) = self.classify(key) else {
            return;
        };
        match kind {
            KeyKind::Commit(id) if actor.role != Role::Somebody => {
                self.committed(store, (run, id), object, objects, actor);
            }
            KeyKind::Tombstone(id) => {
                let record = Tombstoned { version: object.version, by: actor.role };
                let tombstones = &mut self.stores[store].tombstones;
                tombstones.entry((run, id)).or_insert(record);
            }
            KeyKind::Lease(id, _) => self.leased(store, (run, id), key, object),
            _ => {}
        }
    }

    fn leased(&mut self, store: usize, name: Name, key: &str, object: &Object) {
        let Ok(lease) = decode::<Lease>(&object.bytes, key) else {
            return;
        };
        let time_to_live = Duration::from_secs(lease.time_to_live_seconds);
        let leases = &mut self.stores[store].leases;
        // A lease that had expired and is renewed is valid from now on.
        let since = leases
            .get(key)
            .filter(|before| is_live(before.renewed, object.modified, time_to_live))
            .map_or(object.version, |before| before.version);
        leases.insert(
            key.to_owned(),
            LeaseFacts { name, version: since, renewed: object.modified, time_to_live },
        );
    }

    fn committed(&mut self, store: usize, name: Name, object: &Object, objects: &Objects, actor: &Actor) {
        let text = describe(store, name);
        let digest = Sha256Digest::of(&object.bytes);
        if let Some((before, ..)) = self.stores[store].ever.get(&name)
            && *before != digest
        {
            self.broken("S9", format!("{text} was committed before, as something else ({actor})"));
        }
        let (references, content) = match self.whole(name, &object.bytes, objects) {
            Ok(found) => found,
            // The commit of a step that is being removed does not count.
            Err(_) if self.stores[store].tombstones.contains_key(&name) => return,
            Err(why) => return self.broken("S2", format!("{text} was committed by {actor}: {why}")),
        };
        if actor.role != Role::Copier {
            self.commits.insert((name, digest));
        } else if !self.commits.contains(&(name, digest)) {
            self.broken("S3", format!("{text} was copied, and no other store ever had it so"));
        }
        // Neither does one that came after the tombstone of a gc run, which had seen the step without a commit twice: nobody
        // ever sees it, and its writer finds the tombstone before it says that the step is durable.
        let tombstone = self.stores[store].tombstones.get(&name);
        if tombstone.is_some_and(|tombstone| tombstone.by == Role::Gc && tombstone.version < object.version) {
            return;
        }
        let is_one_save = self
            .written
            .get(&(name.0, name.1.step))
            .is_some_and(|saves| saves.contains(&content::without_notes(&content)));
        if !is_one_save {
            self.broken("S3", format!("{text} is committed and no trainer ever wrote it so"));
        }
        let facts = &mut self.stores[store];
        facts.ever.entry(name).or_insert((digest, content, object.version));
        facts.commits.insert(name, VisibleCommit { references });
    }

    /// Returns the contents that a commit refers to, if all of them exist as recorded.
    fn whole(
        &self,
        name: Name,
        bytes: &Bytes,
        objects: &Objects,
    ) -> Result<(BTreeSet<String>, Content), String> {
        let keys = &self.runs[name.0];
        let commit: Commit = decode(bytes, "commit").map_err(|error| error.to_string())?;
        let mut references = BTreeSet::new();
        let mut manifests = Vec::new();
        for part in &commit.parts {
            let key = keys.part(commit.id, &part.node);
            let object = objects.get(&key).ok_or(format!("{key} is missing"))?;
            if Sha256Digest::of(&object.bytes) != part.manifest_sha256 {
                return Err(format!("{key} is another manifest"));
            }
            references.insert(key);
            manifests.push(decode::<PartManifest>(&object.bytes, "part").map_err(|error| error.to_string())?);
        }
        for file in manifests.iter().flat_map(|manifest| &manifest.files) {
            let key = keys.data(&commit.name, commit.id, &file.path).map_err(|error| error.to_string())?;
            let object = objects.get(&key).ok_or(format!("{key} is missing"))?;
            let found = content::digest(file.algorithm(), &object.bytes);
            if Some(found) != file.digest() {
                return Err(format!("{key} holds other bytes than recorded"));
            }
            references.insert(key);
        }
        Ok((references, content::of_manifests(&manifests)))
    }

    /// Records the pages of a listing.
    pub fn listed(&mut self, cloud: &Cloud, actor: &Actor, prefix: &str, sequence: u64) {
        if actor.role != Role::Gc {
            return;
        }
        if let Some(run) = self.runs.iter().position(|keys| keys.prefix() == prefix) {
            let gc_runs = &mut self.stores[cloud.index].gc_runs;
            gc_runs.insert((run, actor.process), sequence);
        }
    }

    /// Records a deletion.
    pub fn deleted(&mut self, cloud: &Cloud, actor: &Actor, key: &str, object: &Object, objects: &Objects) {
        let store = cloud.index;
        if actor.role == Role::Somebody {
            return;
        }
        if self.foreign.contains(&(store, key.to_owned())) {
            return self.broken("S7", format!("{actor} deleted {key}, which is none of ours"));
        }
        let Some((run, kind)) = self.classify(key) else {
            return self.broken("S7", format!("{actor} deleted {key}, which is none of ours"));
        };
        let is_own = object.writer.process == actor.process;
        if let KeyKind::Commit(id) = kind {
            self.uncommitted(cloud, (run, id), actor);
        }
        if let KeyKind::Tombstone(id) = kind {
            return self.pardoned(store, (run, id), actor, objects);
        }
        if let KeyKind::Retired(_) = kind {
            return self.names_kept(store, run, actor, objects);
        }
        if let KeyKind::Pin(id) = kind
            && actor.role == Role::Pinner
        {
            self.unpin(store, (run, id));
        }
        self.stores[store].leases.remove(key);
        let facts = &self.stores[store];
        let mut commits = facts.commits.iter();
        if let Some((name, _)) = commits.find(|(_, commit)| commit.references.contains(key)) {
            let promise = match (actor.role, facts.tombstones.contains_key(name)) {
                (Role::Gc, _) => "S7",
                (_, true) => "S5",
                (_, false) => "S2",
            };
            let text = describe(store, *name);
            return self.broken(promise, format!("{actor} deleted {key} while the commit of {text} stood"));
        }
        if is_own {
            return;
        }
        if let Some((unreadable, since)) = facts.unreadable.get(&run)
            && *since < actor.began
            && matches!(actor.role, Role::Pruner | Role::Gc)
        {
            let text = format!("{actor} deleted {key} while {unreadable} could not be read");
            return self.broken("S8", text);
        }
        match actor.role {
            Role::KeepsNothing => {
                self.broken("S8", format!("{actor} deleted {key} by rules that keep nothing"));
            }
            Role::Gc => self.removed_by_gc(cloud, run, key, object, actor),
            _ => {}
        }
    }

    /// Returns whether a record of retired steps holds the name of a step.
    fn is_retired(&self, name: Name, objects: &Objects) -> bool {
        let prefix = self.runs[name.0].all(RETIRED);
        let mut retired = RetiredSteps::default();
        for (key, object) in objects.range(prefix.clone()..) {
            if !key.starts_with(&prefix) {
                break;
            }
            retired.extend(decode::<RetiredRecord>(&object.bytes, key).unwrap());
        }
        retired.contains(name.1)
    }

    /// A record of retired steps was deleted: the name of each removed step must still be recorded somewhere.
    fn names_kept(&mut self, store: usize, run: usize, actor: &Actor, objects: &Objects) {
        let removed: Vec<Name> = self.stores[store].tombstones.keys().copied().collect();
        for name in removed.into_iter().filter(|name| name.0 == run) {
            let tombstone = self.runs[run].tombstone(name.1);
            if !objects.contains_key(&tombstone) && !self.is_retired(name, objects) {
                let text = describe(store, name);
                self.broken("S9", format!("{actor} forgot that {text} was removed"));
            }
        }
    }

    /// A tombstone was deleted: either its name remains used for good, or its step is visible to everybody again.
    fn pardoned(&mut self, store: usize, name: Name, actor: &Actor, objects: &Objects) {
        if self.is_retired(name, objects) {
            return;
        }
        self.stores[store].tombstones.remove(&name);
        let text = describe(store, name);
        let Some(commit) = objects.get(&self.runs[name.0].commit(name.1)) else {
            return self.broken("S9", format!("{actor} took the tombstone of {text} away"));
        };
        match self.whole(name, &commit.bytes, objects) {
            Ok((references, content)) => {
                let (digest, facts) = (Sha256Digest::of(&commit.bytes), &mut self.stores[store]);
                self.commits.insert((name, digest));
                // A commit that came after the tombstone did not count until now.
                facts.ever.entry(name).or_insert((digest, content, commit.version));
                facts.commits.insert(name, VisibleCommit { references });
            }
            Err(why) => self.broken("S2", format!("{actor} took the tombstone of {text} away: {why}")),
        }
    }

    fn removed_by_gc(&mut self, cloud: &Cloud, run: usize, key: &str, object: &Object, actor: &Actor) {
        if self.came_too_late(cloud.index, run, key, object) {
            return;
        }
        let age = cloud.now().duration_since(object.modified).unwrap_or_default();
        if age < self.grace {
            let text = format!("{actor} deleted {key}, which was {} seconds old", age.as_secs());
            return self.broken("S7", text);
        }
        let gc_runs = &self.stores[cloud.index].gc_runs;
        let seen = gc_runs.iter().filter(|((of, _), until)| *of == run && **until >= object.version);
        if seen.count() < 2 {
            self.broken("S7", format!("{actor} deleted {key}, which one gc run alone had seen"));
        }
    }

    /// Returns whether the object was written under an already used name, by a writer that had not seen the
    /// tombstone. It is useless, and was deleted with the orphans of that step.
    fn came_too_late(&self, store: usize, run: usize, key: &str, object: &Object) -> bool {
        let keys = &self.runs[run];
        let of = |id: StepId| {
            key == keys.claim(id)
                || key.starts_with(&keys.step_parts_prefix(id))
                || matches!(keys.classify(key), Some(KeyKind::Data { id: of, .. }) if of == id)
        };
        self.stores[store]
            .tombstones
            .iter()
            .any(|(name, tombstoned)| name.0 == run && of(name.1) && tombstoned.version < object.version)
    }

    /// A commit was deleted: checks every reason that forbids it.
    fn uncommitted(&mut self, cloud: &Cloud, name: Name, actor: &Actor) {
        let store = cloud.index;
        let text = describe(store, name);
        let facts = &mut self.stores[store];
        if facts.commits.remove(&name).is_none() {
            // Nobody could read it, or it arrived late from the network after its step was deleted.
            return;
        }
        let Some(tombstoned) = facts.tombstones.get(&name) else {
            return self.broken(
                "S9",
                format!("{actor} removed {text} without a tombstone: its name could be used again"),
            );
        };
        let is_acknowledged = self.acknowledged.contains_key(&(store, name));
        if tombstoned.by == Role::Gc && is_acknowledged {
            return self.broken("S1", format!("{text} had been acknowledged, and gc tombstoned it"));
        }
        if facts.pinned.contains(&name) {
            return self.broken("S4", format!("{actor} removed {text}, which is pinned"));
        }
        let now = cloud.now();
        let holder = facts.leases.iter().find(|(_, lease)| {
            lease.name == name
                && lease.version < tombstoned.version
                && is_live(lease.renewed, now, lease.time_to_live)
        });
        if let Some((lease, _)) = holder {
            let text = format!("{actor} removed {text}, which is being restored under {lease}");
            return self.broken("S4", text);
        }
        facts.retired.insert(name);
        let by_gc = tombstoned.by == Role::Gc;
        if store == 0 && !by_gc && self.is_owed_to_fed(name) {
            return self.broken("S4", format!("{actor} removed {text}, which waits to be copied"));
        }
        let visible = self.visible(store, name.0);
        let later: BTreeSet<StepId> = visible.range(name.1..).map(|(id, _)| id.first_revision()).collect();
        let newer = later.len();
        let left: Vec<StepId> =
            visible.range(name.1..).map(|(id, _)| *id).take_while(|id| id.is_revision_of(name.1)).collect();
        if !left.is_empty() && !by_gc {
            let facts = &self.stores[store];
            let files = |id: StepId| facts.ever.get(&(name.0, id)).map(|(_, content, _)| content);
            let Some(removed) = files(name.1) else { return };
            let kept: BTreeSet<&String> =
                left.iter().filter_map(|id| files(*id)).flat_map(BTreeMap::keys).collect();
            let lost = removed.keys().find(|path| !kept.contains(path)).cloned();
            if let Some(path) = lost.filter(|_| newer <= self.keep_last.max(1)) {
                let text = format!("{actor} removed {text}, and {path} is in no revision that is left");
                self.broken("S4", text);
            }
        } else if newer < self.keep_last.max(1) && !by_gc {
            let text = format!("{actor} removed {text}, and {newer} newer ones were left");
            self.broken("S4", text);
        }
    }

    /// An agent was told that a step is durable. Files that were written over in place since they were sealed are `changed`:
    /// the vault no longer has what they were.
    pub fn acknowledge(&mut self, store: usize, name: Name, mut content: Content, changed: Vec<String>) {
        let text = describe(store, name);
        let facts = &self.stores[store];
        let Some((_, committed, version)) = facts.ever.get(&name) else {
            return self.never_committed(store, name);
        };
        let sealed = changed.into_iter().filter_map(|path| {
            let file = *committed.get(&path)?;
            Some((path, file))
        });
        content.extend(sealed);
        if *committed != content {
            return self.broken("S1", format!("{text} was acknowledged and holds other files"));
        }
        if let Some(tombstoned) = facts.tombstones.get(&name)
            && tombstoned.version < *version
        {
            return self.broken("S9", format!("{text} was acknowledged under a name that was used before"));
        }
        self.acknowledged.insert((store, name), content);
    }

    /// A step was acknowledged that never had a valid commit: no commit at all, or one under a used name whose files
    /// are gone.
    fn never_committed(&mut self, store: usize, name: Name) {
        let promise = if self.stores[store].tombstones.contains_key(&name) { "S9" } else { "S1" };
        let text = describe(store, name);
        self.broken(promise, format!("{text} was acknowledged and never committed"));
    }

    /// Sealed steps may have got other attempts, as by a restore, or by a seal that failed afterwards; their contents must
    /// be the same as before.
    pub fn renamed_in(&mut self, vault: Option<&Vault>, run: usize) {
        let name = self.runs[run].run().clone();
        for step in vault.iter().flat_map(|vault| vault.steps(&name).unwrap().steps) {
            self.renamed(run, &step);
        }
    }

    fn renamed(&mut self, run: usize, step: &SealedStep) {
        let content = content::of_directory(&step.data_root());
        let origin = &step.record().attempt;
        let former = origin.former.iter().map(|attempt| StepId::new(*attempt, step.id().step));
        // A record names the attempts that it had, and not its revisions in them.
        let was_sealed = |id: StepId| {
            let mut known =
                self.sealed.iter().filter(|((of, known), _)| *of == run && known.is_revision_of(id));
            known.any(|(_, known)| known.contains(&content))
        };
        if former.chain(origin.lost.iter().copied()).any(was_sealed) {
            self.sealed.entry((run, step.id())).or_default().push(content);
        }
    }

    /// A trainer saved a step.
    pub fn saved(&mut self, run: usize, step: Step, content: Content) {
        let order = self.saves.get(&run).map_or(0, |saves| saves.len() as u64);
        self.saved_as(run, step, order, content);
    }

    fn saved_as(&mut self, run: usize, step: Step, order: u64, content: Content) {
        self.saves.entry(run).or_default().insert(order, content.clone());
        self.written.entry((run, step)).or_default().push(content);
    }

    /// From now on nobody can tell which of a run's saves came later.
    pub fn times_tell_nothing(&mut self, run: usize) {
        self.untimed.insert(run);
    }

    fn order(&self, run: usize, content: &Content) -> Option<u64> {
        let content = &content::without_notes(content);
        let mut saves = self.saves.get(&run)?.iter().rev();
        saves.find(|(_, save)| *save == content).map(|(order, _)| *order)
    }

    /// A process that asked a store for the newest step got this one. It must not be older than the newest
    /// acknowledged there; returns `false` if nobody can tell.
    pub fn newest_is(&mut self, store: usize, run: usize, id: StepId, got: &Content) -> bool {
        let of = |(at, name): &&(usize, Name)| *at == store && name.0 == run;
        let acknowledged = self.acknowledged.iter().filter(|(key, _)| of(key));
        let newest =
            acknowledged.filter_map(|((_, name), content)| Some((self.order(run, content)?, name.1))).max();
        let (Some((newest, newest_id)), Some(found)) = (newest, self.order(run, got)) else {
            return false;
        };
        if self.untimed.contains(&run) {
            return false;
        }
        if found < newest {
            self.broken(
                "L4",
                format!("save {newest} of run {run} was acknowledged on store {store} as {newest_id}, and the newest that comes back is save {found}, {id}"),
            );
        }
        true
    }

    /// A node wrote its part of a save by `size` nodes. The step is complete only when all of them have written.
    pub fn part_written(
        &mut self,
        run: usize,
        step: Step,
        save: u64,
        rank: usize,
        size: usize,
        content: Content,
    ) {
        let parts = self.parts.entry((run, step, save)).or_default();
        parts.insert(rank, content);
        if parts.len() == size {
            let whole = parts.values().flatten().map(|(path, file)| (path.clone(), *file)).collect();
            self.saved_as(run, step, save, whole);
        }
    }

    /// A node of several was told that a step is durable of which it wrote this part.
    pub fn acknowledge_part(&mut self, store: usize, name: Name, own: &Content) {
        let text = describe(store, name);
        let Some((_, committed, _)) = self.stores[store].ever.get(&name) else {
            return self.never_committed(store, name);
        };
        let committed = committed.clone();
        if own.iter().any(|(path, file)| committed.get(path) != Some(file)) {
            return self.broken("S1", format!("{text} was acknowledged without a node's files"));
        }
        self.acknowledge(store, name, committed, Vec::new());
    }

    /// A node of a launch resumes from a step.
    pub fn resumed(&mut self, run: usize, launch: u64, actor: &Actor, id: Option<StepId>) {
        let first = self.resumed.entry((run, launch)).or_insert_with(|| (actor.to_string(), id));
        if first.1 != id {
            let text =
                format!("in launch {launch} {} goes on from {:?} and {actor} from {id:?}", first.0, first.1);
            self.broken("S3", text);
        }
    }

    /// An agent pinned a step.
    pub fn pin(&mut self, store: usize, name: Name) {
        self.stores[store].pinned.insert(name);
    }

    pub fn unpin(&mut self, store: usize, name: Name) {
        self.stores[store].pinned.remove(&name);
    }

    pub fn pinned(&self, store: usize, run: usize) -> BTreeSet<StepId> {
        let pinned = self.stores[store].pinned.iter();
        pinned.filter(|name| name.0 == run).map(|name| name.1).collect()
    }

    /// Records since when a run has had an unreadable commit, or that it no longer has one.
    pub fn unreadable(&mut self, store: usize, run: usize, since: Option<(String, Duration)>) {
        match since {
            Some(since) => self.stores[store].unreadable.insert(run, since),
            None => self.stores[store].unreadable.remove(&run),
        };
    }

    /// A local copy was evicted, although its agent had to keep it until these stores have it.
    pub fn evicted(&mut self, name: Name, required: &[usize]) {
        for store in required {
            let facts = &self.stores[*store];
            let is_there = facts.commits.contains_key(&name)
                || facts.tombstones.contains_key(&name)
                || facts.retired.contains(&name);
            if !is_there {
                let text = describe(*store, name);
                self.broken("S6", format!("the local copy went and {text} is not durable"));
            }
        }
    }

    /// A process restored a step.
    pub fn restored(&mut self, name: Name, got: &Content, from: &[usize]) {
        let text = format!("step {} of attempt {}", name.1.step, name.1.attempt);
        let committed: Vec<&Content> = self
            .stores
            .iter()
            .filter_map(|facts| facts.ever.get(&name).map(|(_, content, _)| content))
            .collect();
        let sealed = self.sealed.get(&name).into_iter().flatten();
        let known: Vec<&Content> =
            if from.is_empty() { sealed.chain(committed).collect() } else { committed };
        if known.contains(&got) {
            return;
        }
        let was_acknowledged = self.acknowledged.keys().any(|(_, of)| *of == name);
        if known.is_empty() {
            self.broken("S3", format!("{text} was restored and never committed"));
        } else if was_acknowledged {
            self.broken("S1", format!("{text} was restored with other bytes than acknowledged"));
        } else {
            self.broken("S3", format!("{text} was restored as a mixture"));
        }
    }

    /// The command of a follower has run for a step.
    pub fn saw_followed(&mut self, (run, id): Name, each: bool, actor: &Actor) {
        let of_run = self.followed.iter().filter(|(of, _)| *of == run);
        let newest = of_run.map(|(_, id)| *id).max();
        let is_new = self.followed.insert((run, id));
        if !is_new || !each && newest > Some(id) {
            self.broken("S10", format!("{actor} followed {id} of run {run} after {newest:?}"));
        }
    }

    /// Returns the steps that were acknowledged and not removed by the retention rules.
    pub fn owed(&self, store: usize, run: usize) -> BTreeMap<StepId, Content> {
        let acknowledged = self.acknowledged.iter().filter(|((at, name), _)| {
            *at == store && name.0 == run && !self.stores[store].retired.contains(name)
        });
        acknowledged.map(|((_, name), content)| (name.1, content.clone())).collect()
    }
}

fn is_live(renewed: std::time::SystemTime, now: std::time::SystemTime, time_to_live: Duration) -> bool {
    now.duration_since(renewed).map_or(true, |age| age < time_to_live)
}

fn describe(store: usize, name: Name) -> String {
    format!("{} of run {} on store {store}", name.1, name.0)
}

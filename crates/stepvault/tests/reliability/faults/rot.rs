//! Bit rot on a remote: one flipped bit of an object at a time, and objects that are cut off, missing, exchanged, or
//! replaced by those of an older step.
//!
//! The store has been in use: it holds the steps of two attempts, a pin, a tombstone, a lease of a killed process, a
//! gc record, and histories of launches. The test lists its keys and damages each in turn, so that no kind of object
//! is left out. After each fault another node verifies every byte, restores, and now and then prunes.
//!
//! Readers rely on data, part manifests and commits: `verify` must name a damaged step, and `restore` must return the
//! newest undamaged step, identical in every byte and mode. `UNPROMISED` explains for each other kind why its bytes
//! are not promised: damage there must not change the result of `verify` and `restore` for the step.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::objects::StoredObject;
use stepvault_testkit::process::Outcome;
use stepvault_testkit::random::Random;
use stepvault_testkit::tree::{FileTree, fast_directory, read_tree, remove, write_tree};

use crate::faults::check::Harm;
use crate::faults::settings::{Settings, of_environment};
use crate::faults::tally::Tally;
use crate::faults::world::{Kept, RUN, Store, World};

/// Small, so that many faults can be tested; several files, and an empty one.
const FILES: [(&str, usize); 3] = [("model.bin", 40_000), ("optimizer/state.bin", 3_000), ("empty.json", 0)];

/// Kinds of objects whose bytes are not promised, and why.
pub(crate) const UNPROMISED: [(&str, &str); 12] = [
    ("vault.json", "who writes is refused if it is damaged, who reads needs no marker"),
    ("attempts", "a claim is compared by the node that uploads the step again"),
    ("tombstones", "its key is what counts"),
    ("pins", "its key is what counts"),
    ("leases", "one that cannot be read lasts as long as the longest"),
    ("gc", "without it orphans go one gc run later"),
    ("starts", "history for people; one that cannot be read counts as none"),
    ("launches", "whose an attempt is; attempts are compared by their files"),
    ("drains", "a message to people"),
    ("staged", "what a node says of itself, and says again"),
    ("resumes", "nodes that cannot read what they agreed on decide again"),
    ("damaged", "one more reason against a step, and not the only one"),
];

/// Attempt and step, in this order: the newest sorts last.
type Id = (u64, u64);

/// A store in use, and the steps on it.
struct Rotting {
    world: World,
    kept: Kept,
    steps: BTreeMap<(u64, u64), FileTree>,
}

/// The damage to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rot {
    Flip,
    Truncation,
    Deletion,
    /// Exchanged with another object of the same kind.
    Exchange,
    /// Replaced by the object of an older step or attempt, of the same kind.
    Replay,
}

fn of_step(world: &World, step: u64, attempt: u64) -> FileTree {
    world.step(step + 1000 * (attempt - 1))
}

impl Rotting {
    fn new(root: &std::path::Path, store: Store) -> Self {
        let world = World::of(root, store, &FILES);
        let mut steps = BTreeMap::new();
        let mut push = |step: u64, attempt: u64| {
            let tree = of_step(&world, step, attempt);
            let directory = world.root.join(format!("outputs/step_{step}"));
            remove(&directory);
            write_tree(&directory, &tree);
            let ran = world
                .push(step)
                .option("--attempt", attempt.to_string())
                .env("STEPVAULT_LAUNCH", format!("launch-{attempt}"))
                .run();
            assert_eq!(ran.code, 0, "{ran:?}");
            // Sorted by attempt, then by step: the newest last.
            steps.insert((attempt, step), tree);
        };
        let done = |ran: Outcome| assert_eq!(ran.code, 0, "{ran:?}");
        for step in 1..=4 {
            push(step, 1);
        }
        // Step 1 is deleted and leaves its tombstone.
        done(world.on_run(["prune", "--keep-last", "3"]).run());
        done(world.on_run(["pin", "2", "--note", "for the paper"]).run());
        for step in 3..=5 {
            push(step, 2);
        }
        steps.remove(&(1, 1));
        done(world.on_run(["gc"]).run());
        done(world.on_run(["run", "--into", "resumed"]).with(["--", "true"]).run());
        leave_lease(&world);
        let kept = world.keep();
        Self { world, kept, steps }
    }

    /// Restores the original state.
    fn mend(&self) {
        let objects = self.world.store.objects();
        objects.with(|objects| objects.clone_from(&self.kept.objects));
        remove(&self.world.scratch);
        std::fs::create_dir(&self.world.scratch).unwrap();
    }

    /// Returns the step of a key, if a reader relies on it.
    fn promised(key: &str) -> Option<Id> {
        let rest = key.split_once(&format!("{RUN}/"))?.1;
        let number = |text: &str| text.parse::<u64>().ok();
        if let Some(record) = rest.strip_prefix(".stepvault/") {
            let label = record.strip_prefix("commits/").or_else(|| record.strip_prefix("parts/"))?;
            let (step, rest) = label.split_once(".a")?;
            return Some((number(rest.split(['.', '/']).next()?)?, number(step)?));
        }
        let (step, attempt) = rest.split('/').next()?.split_once(".a")?;
        Some((number(attempt)?, number(step)?))
    }

    /// Returns the kind of an object.
    fn kind(key: &str) -> &str {
        match key.split_once("/.stepvault/") {
            None => "data",
            Some((_, record)) => record.split('/').next().unwrap_or(record),
        }
    }

    /// Damages one object; returns whether anything changed.
    fn hurt(&self, key: &str, rot: Rot, random: &mut Random) -> bool {
        let like = |other: &String| {
            let name = |key: &str| key.rsplit('/').next().unwrap_or_default().to_owned();
            let same_file = Self::kind(key) != "data" || name(other) == name(key);
            Self::kind(other) == Self::kind(key) && other != key && same_file
        };
        self.world.store.objects().with(|objects| {
            let before = objects.get(key).cloned().unwrap();
            let others: Vec<&String> = objects.keys().filter(|other| like(other)).collect();
            let older = others.iter().rfind(|other| other.as_str() < key);
            let other = match rot {
                Rot::Exchange => others.get(random.index(others.len().max(1))),
                Rot::Replay => older,
                _ => None,
            };
            let other = other.map(|other| ((*other).clone(), objects[*other].clone()));
            // Keep the time of the object. A changed bit or length leaves the store's checksum as it was: the store
            // does not know. Exchanged objects bring their own checksums.
            let body = |body: Bytes| StoredObject { body, ..before.clone() };
            let is_empty = before.body.is_empty();
            let now = match (rot, &other) {
                (Rot::Flip | Rot::Truncation, _) if is_empty => return false,
                (Rot::Flip, _) => {
                    let mut bytes = before.body.to_vec();
                    let at = random.index(bytes.len());
                    bytes[at] ^= 1 << random.index(8);
                    body(bytes.into())
                }
                (Rot::Truncation, _) => body(before.body.slice(..random.index(before.body.len()))),
                (Rot::Deletion, _) => {
                    objects.remove(key);
                    return true;
                }
                (Rot::Exchange | Rot::Replay, None) => return false,
                (Rot::Exchange | Rot::Replay, Some((_, other))) if other.body == before.body => return false,
                (Rot::Exchange | Rot::Replay, Some((_, other))) => {
                    StoredObject { modified: before.modified, ..other.clone() }
                }
            };
            if let (Rot::Exchange, Some((name, other))) = (rot, other) {
                let moved = StoredObject { modified: other.modified, ..before };
                objects.insert(name, moved);
            }
            objects.insert(key.to_owned(), now);
            true
        })
    }

    /// Returns the steps whose bytes have changed, as known by the test.
    fn hit(&self) -> (BTreeSet<Id>, BTreeSet<Id>) {
        self.world.store.objects().with(|objects| {
            let mut hit = BTreeSet::new();
            let mut gone = BTreeSet::new();
            for (key, object) in &self.kept.objects {
                let Some(id) = Self::promised(key) else {
                    continue;
                };
                let now = objects.get(key);
                if now.is_some_and(|now| now.body == object.body) {
                    continue;
                }
                if now.is_none() && Self::kind(key) == "commits" {
                    gone.insert(id);
                } else {
                    hit.insert(id);
                }
            }
            (hit, gone)
        })
    }

    /// Checks that `verify` names every damaged step, and no other.
    fn verify(&self, hit: &BTreeSet<Id>, gone: &BTreeSet<Id>) -> Result<(), Harm> {
        let ran = self.world.elsewhere(["verify", "--deep", "--json", "--tier", "store"]).run();
        let document = ran.try_json().map_err(Harm::Stuck)?;
        let mut named = BTreeSet::new();
        let mut seen = BTreeSet::new();
        for step in document["steps"].as_array().unwrap() {
            let id = (step["attempt"].as_u64().unwrap(), step["step"].as_u64().unwrap());
            seen.insert(id);
            if step["tiers"].as_array().unwrap().iter().any(|tier| tier["sound"] != true) {
                named.insert(id);
            }
        }
        let wanted = i32::from(!hit.is_empty());
        let missing: Vec<_> =
            self.steps.keys().filter(|id| !seen.contains(id) && !gone.contains(id)).collect();
        if named != *hit || ran.code != wanted || !missing.is_empty() {
            return Err(Harm::Torn(format!(
                "verify ends with {:?} and names {named:?} (attempt, step), not {hit:?}: {}",
                ran.code,
                ran.stdout.replace('\n', " ")
            )));
        }
        Ok(())
    }

    /// Checks that `restore` returns the newest undamaged step and names the steps that it skipped. A commit with a
    /// time or metrics that differ from its manifests is no reason to skip a step whose bytes are right.
    fn restore(&self, hit: &BTreeSet<Id>, gone: &BTreeSet<Id>) -> Result<(), Harm> {
        let target = self.world.scratch.join("got");
        remove(&target);
        let ran = self.world.elsewhere(["restore", "--json", "--as", target.to_str().unwrap()]).run();
        let document = ran.try_json().map_err(Harm::Stuck)?;
        let newest = self.steps.keys().rfind(|id| !hit.contains(id) && !gone.contains(id));
        let newest = *newest.ok_or_else(|| Harm::Stuck("the test left no step".to_owned()))?;
        let given = (document["attempt"].as_u64().unwrap_or(0), document["step"].as_u64().unwrap_or(0));
        let right = self.steps.get(&given);
        if target.exists() && right.is_none_or(|right| read_tree(&target) != *right) || given < newest {
            return Err(Harm::Torn(format!("{newest:?} (attempt, step) was due: {ran:?}")));
        }
        let skipped: BTreeSet<Id> = document["skipped"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|step| (step["attempt"].as_u64().unwrap(), step["step"].as_u64().unwrap()))
            .collect();
        let due: BTreeSet<Id> = hit.iter().copied().filter(|id| *id > given).collect();
        if ran.code != 0 || !target.exists() || skipped != due {
            return Err(Harm::Stuck(format!("{due:?} were to be skipped: {ran:?}")));
        }
        Ok(())
    }

    /// Checks that `prune` keeps the newest sound step, and the pinned one.
    fn prune(&self, hit: &BTreeSet<Id>, gone: &BTreeSet<Id>) -> Result<(), Harm> {
        // The lease of the killed reader would keep its step.
        self.world.let_leases_run_out();
        let order = self.world.elsewhere(["prune", "--tier", "store", "--keep-last", "1"]);
        let ran = order.run();
        if ran.signal.is_some() || ran.stderr.contains("panicked at") {
            return Err(Harm::Stuck(format!("{ran:?}")));
        }
        self.restore(hit, gone).map_err(|harm| match harm {
            Harm::Torn(story) => Harm::Torn(format!("after prune: {story}")),
            Harm::Lost(story) | Harm::Stuck(story) => Harm::Lost(format!("after prune {ran:?}: {story}")),
        })
    }
}

/// Leaves the lease of a restore that was killed.
fn leave_lease(world: &World) {
    let faults = world.store.faults();
    let path = if world.store.name() == "GCS" { "%2Fmodel.bin" } else { "/model.bin" };
    faults.inject("GET", path, u64::MAX, FaultAction::Hang);
    let mut restore =
        world.elsewhere(["restore", "--into", world.scratch.join("never").to_str().unwrap()]).start();
    restore.wait_until("a lease", || world.keys().iter().any(|key| key.contains("/leases/")));
    restore.kill();
    faults.clear();
}

fn rots(store: fn() -> Store, settings: &Settings) -> Vec<Tally> {
    let place = fast_directory();
    let rotting = Rotting::new(place.path(), store());
    let name = rotting.world.store.name();
    let mut random = Random(settings.seed ^ name.len() as u64);
    let keys: Vec<String> = rotting.kept.objects.keys().cloned().collect();
    let kinds: BTreeSet<&str> = keys.iter().map(|key| Rotting::kind(key)).collect();
    let known = |kind: &&&str| {
        ["data", "commits", "parts"].contains(kind)
            || UNPROMISED.iter().any(|(unpromised, _)| *unpromised == **kind)
    };
    let unknown: Vec<_> = kinds.iter().filter(|kind| !known(kind)).collect();
    assert!(unknown.is_empty(), "what do {unknown:?} promise?");
    let mut tallies = Vec::new();
    for (rot, what, small, full) in [
        (Rot::Flip, "a bit", 12, 400),
        (Rot::Truncation, "cut off", 4, 60),
        (Rot::Deletion, "gone", 4, 60),
        (Rot::Exchange, "exchanged with another", 4, 60),
        (Rot::Replay, "an older one in its place", 4, 60),
    ] {
        let mut tally = Tally::new("Rot", &format!("{name}, {what}"), settings.seed);
        let mut struck: BTreeMap<&str, usize> = BTreeMap::new();
        let mut found = 0;
        // Each key is damaged once before any is damaged twice.
        let mut turns: Vec<&String> = Vec::new();
        let times = settings.times(small, full);
        while tally.runs < times {
            if turns.is_empty() {
                turns.extend(&keys);
            }
            let key = turns.swap_remove(random.index(turns.len()));
            rotting.mend();
            if !rotting.hurt(key, rot, &mut random) {
                continue;
            }
            let (hit, gone) = rotting.hit();
            tally.runs += 1;
            tally.faults += 1;
            tally.acknowledged += rotting.steps.len() - hit.len() - gone.len();
            *struck.entry(Rotting::kind(key)).or_default() += 1;
            let outcome =
                rotting.verify(&hit, &gone).and_then(|()| rotting.restore(&hit, &gone)).and_then(|()| {
                    // A prune relies on the store's checksums, which do not detect a flipped bit: `verify --deep`
                    // does.
                    let unseen = rot == Rot::Flip && Rotting::kind(key) == "data";
                    if tally.runs % 4 == 1 && !unseen {
                        return rotting.prune(&hit, &gone);
                    }
                    Ok(())
                });
            match outcome {
                Ok(()) => found += usize::from(!hit.is_empty()),
                Err(harm) => tally.harmed(&format!("seed {}, {rot:?} of {key}", settings.seed), harm),
            }
        }
        let struck: Vec<String> = struck.iter().map(|(kind, times)| format!("{kind} {times}")).collect();
        tally.note = format!("{found} damaged steps named by verify; {}", struck.join(", "));
        tally.report();
        tallies.push(tally);
    }
    tallies
}

#[test]
fn rot_on_s3_is_found_and_never_restored() {
    let tallies = rots(Store::s3, &of_environment());
    tallies.iter().for_each(Tally::assert_no_harm);
}

#[test]
fn rot_on_gcs_is_found_and_never_restored() {
    let tallies = rots(Store::gcs, &of_environment());
    tallies.iter().for_each(Tally::assert_no_harm);
}

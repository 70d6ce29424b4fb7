//! A trainer that keeps writing to files in place while they are uploaded.
//!
//! A vault that holds hard links holds these very files. So the push must detect the change, or it must send exactly
//! what was sealed: a step that becomes durable is compared on the store with the earlier contents of the files, and
//! with the digests of its manifest. A step that does not become durable must be reported as changed, and must leave
//! no commit.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use stepvault_core::digest::Sha256Digest;
use stepvault_testkit::network::Network;
use stepvault_testkit::random::Random;
use stepvault_testkit::tree::{read_tree, remove, write_tree};

use crate::faults::check::{Harm, stored, stored_as};
use crate::faults::settings::{Settings, of_environment};
use crate::faults::tally::Tally;
use crate::faults::world::{Store, World};

const PART_BYTES: usize = 8 << 20;
/// 2 parts, and one.
const FILES: [(&str, usize); 2] = [("model.bin", (8 << 20) + 70_000), ("optimizer/state.bin", 300_000)];
/// Slow enough to interfere in the middle.
const BYTES_PER_SECOND: u64 = 64 << 20;

/// A change by the trainer.
#[derive(Debug, Clone, Copy)]
enum Change {
    /// Writes single bytes at several positions until the push ends.
    Often,
    /// Writes one byte once.
    Once,
    /// Truncates the file and writes the end again.
    Cut,
}

const CHANGES: [Change; 3] = [Change::Often, Change::Once, Change::Cut];

/// Changes a file in place, from the moment that the push has sent a number of requests until it has ended.
fn trainer(
    world: &World,
    file: PathBuf,
    change: Change,
    from_request: usize,
    seed: u64,
    ended: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<bool> {
    let (faults, ended) = (world.store.faults().clone(), Arc::clone(ended));
    std::thread::spawn(move || {
        let mut random = Random(seed);
        let sent = || {
            let requests = faults.requests().into_iter();
            // Count requests for the step's own bytes: by then it is sealed.
            requests.filter(|request| request.path.contains("step_1")).count()
        };
        while sent() < from_request {
            if ended.load(Ordering::SeqCst) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let file = fs::File::options().read(true).write(true).open(file).unwrap();
        let length = file.metadata().unwrap().len();
        loop {
            let at = random.number() % length;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[!byte[0]], at).unwrap();
            match change {
                Change::Once => return true,
                Change::Cut => {
                    file.set_len(length / 2).unwrap();
                    file.set_len(length).unwrap();
                    return true;
                }
                Change::Often if ended.load(Ordering::SeqCst) => return true,
                Change::Often => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    })
}

/// Checks that each object agrees with its manifest.
fn as_in_manifest(world: &World) -> Result<(), Harm> {
    world.store.objects().with(|objects| {
        let (key, manifest) = objects
            .iter()
            .find(|(key, _)| key.contains("/.stepvault/parts/"))
            .ok_or_else(|| Harm::Lost("there is no manifest".to_owned()))?;
        let manifest: Value =
            serde_json::from_slice(&manifest.body).map_err(|error| Harm::Torn(error.to_string()))?;
        for file in manifest["files"].as_array().unwrap() {
            let path = file["path"].as_str().unwrap();
            let ending = format!("/000000000001.a1/step_1/{path}");
            let object = objects.iter().find(|(key, _)| key.ends_with(&ending));
            let (_, object) = object.ok_or_else(|| Harm::Lost(format!("{key}: there is no {path}")))?;
            let parts = object.body.chunks(PART_BYTES).map(Sha256Digest::of);
            let digests: Vec<String> = parts.map(|digest| digest.to_string()).collect();
            let said: Vec<&str> =
                file["parts_sha256"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            if digests != said {
                return Err(Harm::Torn(format!("{path} is not what its manifest says")));
            }
        }
        Ok(())
    })
}

/// The expected results.
#[derive(PartialEq, Eq)]
enum Outcome {
    Caught,
    AsSealed,
    /// The trainer came too late.
    Undisturbed,
}

struct Bench<'a> {
    root: &'a Path,
    store: fn() -> Store,
    /// `local.links`.
    links: &'a str,
}

impl Bench<'_> {
    fn run(&self, random: &mut Random) -> Result<Outcome, Harm> {
        remove(&self.root.join("live"));
        let mut world = World::of(self.root, (self.store)(), &FILES);
        let network = Network::to(world.store.address());
        network.limit(Some(BYTES_PER_SECOND), None);
        world.way = Some(network.address());
        let tree = world.step(1);
        let source = world.root.join("outputs/step_1");
        write_tree(&source, &tree);
        let change = CHANGES[random.index(3)];
        let file = source.join(FILES[random.index(2)].0);
        let ended = Arc::<AtomicBool>::default();
        let trainer = trainer(&world, file, change, 1 + random.index(4), random.number(), &ended);
        let mut order = world.push(1);
        order.env("STEPVAULT_LOCAL_LINKS", self.links);
        let ran = order.run();
        ended.store(true, Ordering::SeqCst);
        let wrote = trainer.join().unwrap();
        let committed = world.keys().iter().any(|key| key.contains("/.stepvault/commits/"));
        if ran.code == 0 {
            as_in_manifest(&world)?;
            stored(&world, 1, 1, &tree)?;
            return Ok(if wrote { Outcome::AsSealed } else { Outcome::Undisturbed });
        }
        let named = ran.stderr.contains("cannot read the sealed file")
            || ran.stderr.contains("a sealed step changed");
        if committed || !named || !wrote {
            return Err(Harm::Torn(format!("{change:?}, committed: {committed}: {ran:?}")));
        }
        // The trainer has finished: its files now belong to another save.
        let now = read_tree(&source);
        let again = world.push(1).run();
        if again.code != 0 {
            return Err(Harm::Stuck(format!("the next push: {again:?}")));
        }
        // What was begun under the first name may have left objects there.
        let labels = ["a1", "a1r2", "a2"];
        let is_stored = labels.iter().map(|label| stored_as(&world, 1, label, &now)).find(Result::is_ok);
        is_stored.unwrap_or_else(|| stored(&world, 1, 1, &now)).map(|()| Outcome::Caught)
    }
}

fn changed(store: fn() -> Store, links: &'static str, runs: usize, settings: &Settings) -> Tally {
    let place = tempfile::tempdir().unwrap();
    let name = store().name();
    let what = format!("push to {name}, links = \"{links}\"");
    let mut tally = Tally::new("Source changes while it is sent", &what, settings.seed);
    let mut random = Random(settings.seed ^ what.len() as u64);
    let bench = Bench { root: place.path(), store, links };
    let (mut caught, mut as_sealed, mut undisturbed) = (0, 0, 0);
    for run in 0..runs {
        tally.runs += 1;
        match bench.run(&mut random) {
            Ok(Outcome::Caught) => caught += 1,
            Ok(Outcome::AsSealed) => as_sealed += 1,
            Ok(Outcome::Undisturbed) => undisturbed += 1,
            Err(harm) => tally.harmed(&format!("seed {}, run {run}", settings.seed), harm),
        }
    }
    tally.faults = tally.runs - undisturbed;
    tally.acknowledged = as_sealed + undisturbed;
    tally.note = format!(
        "{caught} caught, and saved whole by the next push; {as_sealed} durable with what was sealed; {undisturbed} ended \
         before the change"
    );
    tally
}

fn found_out(store: fn() -> Store, links: &'static str, small: usize, full: usize) {
    let settings = of_environment();
    let tally = changed(store, links, settings.times(small, full), &settings);
    tally.report();
    tally.assert_no_harm();
}

#[test]
fn a_file_that_changes_while_s3_gets_it_is_caught() {
    found_out(Store::s3, "auto", 6, 250);
}

#[test]
fn a_file_that_changes_while_gcs_gets_it_is_caught() {
    found_out(Store::gcs, "auto", 6, 250);
}

#[test]
fn a_copy_in_the_vault_does_not_change_with_its_source() {
    found_out(Store::s3, "copy", 3, 50);
}

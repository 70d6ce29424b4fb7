//! Uploads in parts whose process is killed, and whose node comes back or does not.
//!
//! A node that comes back resumes the upload that its journal names. It resends only parts that the store has and the
//! journal does not: never more than were under way at once. A node that does not come back leaves all that it had
//! sent. `gc` aborts such uploads once they are older than the grace period, and leaves younger ones alone.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use stepvault_testkit::network::Network;
use stepvault_testkit::random::Random;
use stepvault_testkit::tree::{FileTree, fast_directory, files_below, remove, write_tree};

use crate::faults::check::{Harm, stored};
use crate::faults::settings::{Settings, of_environment};
use crate::faults::tally::Tally;
use crate::faults::world::{Store, World};

const PART_BYTES: u64 = 8 << 20;
/// 8 and 3 parts.
const FILES: [(&str, usize); 2] = [("model.bin", 64 << 20), ("optimizer/state.bin", (16 << 20) + 5)];
const FILE_BYTES: u64 = (80 << 20) + 5;
/// The number of parts under way at once.
const AT_ONCE: u64 = 4;
/// Slow enough for a kill in the middle.
const BYTES_PER_SECOND: u64 = 128 << 20;

struct Node {
    world: World,
    network: Network,
}

impl Node {
    fn new(root: &std::path::Path, store: Store) -> Self {
        let mut world = World::of(root, store, &FILES);
        let network = Network::to(world.store.address());
        network.limit(Some(BYTES_PER_SECOND), None);
        world.way = Some(network.address());
        world.options = format!("&max-concurrent-requests={AT_ONCE}");
        Self { world, network }
    }

    fn pending_bytes(&self) -> u64 {
        self.world.store.pending().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the bytes of a step on the store, in whole objects and in parts.
    fn stored_bytes(&self, step: u64) -> u64 {
        let of_step = format!("/step_{step}/");
        let whole: u64 = self.world.store.objects().with(|objects| {
            let of_step = objects.iter().filter(|(key, _)| key.contains(&of_step));
            of_step.map(|(_, object)| object.body.len() as u64).sum()
        });
        let parts = self.world.store.pending().into_iter();
        whole + parts.filter(|(key, _)| key.contains(&of_step)).map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Pushes the step and kills the push once the store has this many bytes; returns the bytes it has then.
    fn killed_push(&self, step: u64, at_bytes: u64) -> Result<u64, Harm> {
        let mut push = self.world.push(step).start();
        while self.stored_bytes(step) < at_bytes {
            if push.ended().is_some() {
                let outcome = push.wait();
                return Err(Harm::Stuck(format!("it ended before it was killed: {outcome:?}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        push.kill();
        // Bodies that the server had received by then may still be on their way into the table.
        let mut seen = (0, self.stored_bytes(step));
        while seen.0 != seen.1 {
            std::thread::sleep(Duration::from_millis(250));
            seen = (seen.1, self.stored_bytes(step));
        }
        Ok(seen.1)
    }

    /// Returns the bytes of parts that were sent after a request.
    fn part_bytes_after(&self, request: usize) -> u64 {
        let requests = self.world.store.faults().requests_after(request).into_iter();
        let parts = requests.filter(|request| request.method == "PUT" && request.path.contains("partNumber"));
        parts.map(|part| part.body_bytes).sum()
    }
}

/// Returns the bytes of parts that the journals in a vault name.
fn journalled_bytes(vault: &std::path::Path) -> u64 {
    let mut bytes = 0;
    for file in files_below(vault) {
        let text = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
        for line in text.lines().filter(|line| line.contains("part-done")) {
            if let Ok(line) = serde_json::from_str::<Value>(line) {
                bytes += line["entry"]["digest"]["size_bytes"].as_u64().unwrap_or(0);
            }
        }
    }
    bytes
}

/// Returns a random number of bytes in the middle.
fn somewhere(random: &mut Random) -> u64 {
    PART_BYTES + random.number() % (FILE_BYTES - 3 * PART_BYTES)
}

fn comes_back(store: fn() -> Store, settings: &Settings) -> Tally {
    let place = fast_directory();
    let name = store().name();
    let mut tally = Tally::new("Killed uploads", &format!("{name}, the node comes back"), settings.seed);
    let mut random = Random(settings.seed ^ name.len() as u64);
    let tree: FileTree = World::of(place.path(), store(), &FILES).step(1);
    write_tree(&place.path().join("live/outputs/step_1"), &tree);
    let mut most = 0;
    for _ in 0..settings.times(2, 40) {
        remove(&place.path().join("live/vault"));
        let node = Node::new(place.path(), store());
        tally.runs += 1;
        tally.faults += 1;
        tally.acknowledged += 1;
        let at_bytes = somewhere(&mut random);
        let outcome = node.killed_push(1, at_bytes).and_then(|there| {
            let before = node.world.store.faults().requests().len();
            node.network.limit(None, None);
            let ran = node.world.push(1).run();
            if ran.code != 0 {
                return Err(Harm::Stuck(format!("{ran:?}")));
            }
            stored(&node.world, 1, 1, &tree)?;
            // Allow one more header for each request.
            let again = node.part_bytes_after(before).saturating_sub(FILE_BYTES - there);
            most = most.max(again);
            if again > AT_ONCE * PART_BYTES + 4096 {
                return Err(Harm::Stuck(format!("{again} bytes were sent again")));
            }
            match node.pending_bytes() {
                0 => Ok(()),
                left => Err(Harm::Stuck(format!("{left} bytes of parts stay behind"))),
            }
        });
        if let Err(harm) = outcome {
            tally.harmed(&format!("seed {}, at {at_bytes} bytes", settings.seed), harm);
        }
    }
    tally.note = format!(
        "11 parts, {AT_ONCE} at once; at most {:.1} parts sent again; no byte stays behind",
        parts(most)
    );
    tally
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn parts(bytes: u64) -> f64 {
    bytes as f64 / PART_BYTES as f64
}

fn is_lost(store: fn() -> Store, settings: &Settings) -> Tally {
    let place = fast_directory();
    let name = store().name();
    let nodes = u64::try_from(settings.times(2, 10)).unwrap();
    let mut tally =
        Tally::new("Killed uploads", &format!("{name}, the node does not come back"), settings.seed);
    (tally.runs, tally.faults) = (1, usize::try_from(nodes).unwrap());
    match lost(store, settings, place.path(), nodes) {
        Ok(note) => tally.note = note,
        Err(harm) => tally.harmed(name, harm),
    }
    tally
}

/// Each node dies in the middle of its own step; one more dies late, and comes back.
fn lost(
    store: fn() -> Store,
    settings: &Settings,
    root: &std::path::Path,
    nodes: u64,
) -> Result<String, Harm> {
    let mut random = Random(settings.seed);
    let mut node = Node::new(root, store());
    let vault = |step: u64| -> PathBuf { root.join(format!("live/vault-{step}")) };
    let mut unknown = 0;
    for step in 1..=nodes {
        node.world.vault = vault(step);
        node.world.write(step);
        // Kill before either file is complete: whole objects are not tested here.
        let there = node.killed_push(step, PART_BYTES + random.number() % (4 * PART_BYTES))?;
        unknown += there.saturating_sub(journalled_bytes(&node.world.vault));
        remove(&node.world.vault);
    }
    let left = node.pending_bytes();
    if unknown > AT_ONCE * PART_BYTES * nodes {
        return Err(Harm::Stuck(format!("{unknown} bytes that no journal names")));
    }
    let gc = |node: &Node| {
        let ran = node.world.elsewhere(["gc", "--grace", "1h", "--json"]).run();
        match ran.code {
            0 => Ok(node.pending_bytes()),
            _ => Err(Harm::Stuck(format!("{ran:?}"))),
        }
    };
    for _ in 0..2 {
        if gc(&node)? != left {
            return Err(Harm::Lost("gc aborts uploads within the grace period".to_owned()));
        }
    }
    node.world.store.age_pending(Duration::from_hours(2));
    let late = nodes + 1;
    node.world.vault = vault(late);
    node.world.write(late);
    let young = node.killed_push(late, 3 * PART_BYTES)?;
    gc(&node)?;
    let after = gc(&node)?;
    if after != young {
        return Err(Harm::Stuck(format!("{after} bytes after gc, {young} of them young")));
    }
    let before = node.world.store.faults().requests().len();
    let ran = node.world.push(late).run();
    if ran.code != 0 {
        return Err(Harm::Stuck(format!("{ran:?}")));
    }
    stored(&node.world, late, 1, &node.world.step(late))?;
    let again = node.part_bytes_after(before).saturating_sub(FILE_BYTES - young);
    if again > AT_ONCE * PART_BYTES + 4096 {
        return Err(Harm::Stuck(format!("{again} bytes were sent again after gc")));
    }
    Ok(format!(
        "{nodes} nodes, {AT_ONCE} parts at once; {:.1} parts left by them, {:.1} of those in no journal; after the grace \
         period and gc: {} bytes; a younger upload stays, and is finished",
        parts(left),
        parts(unknown),
        node.pending_bytes()
    ))
}

fn killed(tally: &Tally) {
    tally.report();
    tally.assert_no_harm();
}

#[test]
fn a_killed_upload_to_s3_is_gone_on_with() {
    killed(&comes_back(Store::s3, &of_environment()));
}

#[test]
fn a_killed_upload_to_gcs_is_gone_on_with() {
    killed(&comes_back(Store::gcs, &of_environment()));
}

#[test]
fn what_dead_nodes_left_on_s3_is_deleted() {
    killed(&is_lost(Store::s3, &of_environment()));
}

#[test]
fn what_dead_nodes_left_on_gcs_is_deleted() {
    killed(&is_lost(Store::gcs, &of_environment()));
}

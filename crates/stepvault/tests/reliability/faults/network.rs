//! A network that breaks: connections reset, bodies cut off in both directions, responses lost after their requests
//! took effect, silence, delays and trickles.
//!
//! The seed determines where it breaks: after a number of bytes, counted over all connections. A push must succeed,
//! with exactly the step's bytes on the store; a restore must succeed with exactly those at its target. The bytes
//! carried are compared with those of an undisturbed command for the same step, headers and records included. A cut
//! loses at most the part that its connection carries, of 8 MiB; the cuts of a run are few enough compared with its
//! parts that they may cost at most a fifth more bytes.

use std::time::Duration;

use stepvault_testkit::network::{Direction, Mishap, Network, Trouble};
use stepvault_testkit::random::Random;
use stepvault_testkit::tree::{FileTree, fast_directory, read_tree, remove, write_tree};

use crate::faults::check::{Harm, stored};
use crate::faults::settings::{Settings, of_environment};
use crate::faults::tally::Tally;
use crate::faults::world::{Store, World};

/// 8 and 3 parts, and small files.
const FEW_PARTS: [(&str, usize); 4] = [
    ("model.bin", 56 << 20),
    ("optimizer/state.bin", (16 << 20) + 5),
    ("optimizer/rank_0.bin", 70_000),
    ("empty.json", 0),
];
/// 33 parts, and small files.
const MANY_PARTS: [(&str, usize); 4] = [
    ("model.bin", (200 << 20) + 5),
    ("optimizer/state.bin", 56 << 20),
    ("optimizer/rank_0.bin", 3_000_000),
    ("empty.json", 0),
];
/// The maximum of bytes in a disturbed run, relative to an undisturbed one.
const MOST: f64 = 1.2;
/// The time after which a connection that moves nothing is given up; 30 s without the option.
const OPTIONS: &str = "&stall-timeout=2s";

/// Bytes to the server and back, of an undisturbed push and restore.
type Undisturbed = [(u64, u64); 2];

struct Ways {
    world: World,
    network: Network,
    tree: FileTree,
}

impl Ways {
    /// Returns an empty store, an empty vault, and the step that was written before.
    fn new(
        root: &std::path::Path,
        store: Store,
        files: &'static [(&'static str, usize)],
        tree: FileTree,
    ) -> Self {
        let mut world = World::of(root, store, files);
        remove(&world.vault);
        let network = Network::to(world.store.address());
        world.way = Some(network.address());
        OPTIONS.clone_into(&mut world.options);
        Self { world, network, tree }
    }

    fn push(&self, troubles: &[Trouble]) -> Result<(), Harm> {
        self.network.prepare(troubles);
        let ran = self.world.push(1).run();
        if ran.code != 0 {
            return Err(Harm::Stuck(format!("{ran:?}")));
        }
        stored(&self.world, 1, 1, &self.tree)?;
        // An upload whose start was lost stays, and holds nothing.
        let left: u64 = self.world.store.pending().iter().map(|(_, bytes)| bytes).sum();
        if left == 0 {
            return Ok(());
        }
        Err(Harm::Stuck(format!("{left} bytes of parts stay behind")))
    }

    fn restore(&self, troubles: &[Trouble]) -> Result<(), Harm> {
        self.network.prepare(troubles);
        remove(&self.world.scratch);
        std::fs::create_dir(&self.world.scratch).unwrap();
        let target = self.world.scratch.join("restored");
        let path = target.to_str().unwrap();
        let ran = self.world.elsewhere(["restore", "--as", path]).run();
        if target.exists() && read_tree(&target) != self.tree {
            return Err(Harm::Torn(format!("{path} holds other files: {ran:?}")));
        }
        if ran.code == 0 && target.exists() {
            return Ok(());
        }
        Err(Harm::Stuck(format!("{ran:?}")))
    }

    fn bytes(&self) -> (u64, u64) {
        let carried = self.network.carried();
        (carried.to_server_bytes, carried.to_client_bytes)
    }
}

/// Returns a cut at a random position within `bytes`: usually a reset, or a lost response.
fn cut(random: &mut Random, direction: Direction, bytes: u64) -> Trouble {
    let mishap = match random.index(20) {
        0..8 => Mishap::Reset,
        8..11 => Mishap::Close,
        11..18 => Mishap::Lose,
        _ => Mishap::Stall,
    };
    somewhere(random, direction, bytes, mishap)
}

/// Excludes the end, because no two runs carry exactly the same bytes.
fn somewhere(random: &mut Random, direction: Direction, bytes: u64, mishap: Mishap) -> Trouble {
    let after_bytes = random.number() % (bytes / 100 * 95).max(1);
    Trouble { direction, after_bytes, mishap }
}

/// Returns `cuts` cuts of the bytes that a command carries, two in three in the direction of its data, and a pause
/// and a trickle.
fn troubles(random: &mut Random, cuts: usize, is_push: bool, bytes: (u64, u64)) -> Vec<Trouble> {
    let data = if is_push { (Direction::ToServer, bytes.0) } else { (Direction::ToClient, bytes.1) };
    let rest = if is_push { (Direction::ToClient, bytes.1) } else { (Direction::ToServer, bytes.0) };
    let slow = Mishap::Trickle { pieces: 10, apart: Duration::from_millis(20) };
    let mut troubles: Vec<Trouble> = (0..cuts)
        .map(|_| {
            let (direction, bytes) = if random.index(3) == 2 { rest } else { data };
            cut(random, direction, bytes)
        })
        .collect();
    troubles.push(somewhere(random, data.0, data.1, Mishap::Pause(Duration::from_millis(300))));
    troubles.push(somewhere(random, data.0, data.1, slow));
    troubles
}

/// The bytes carried by one kind of command.
#[derive(Default)]
struct Sum {
    carried: u64,
    undisturbed: u64,
    cuts: [usize; 4],
}

impl Sum {
    fn add(&mut self, ways: &Ways, bytes: u64, undisturbed: u64) -> usize {
        self.carried += bytes;
        self.undisturbed += undisturbed;
        let struck = ways.network.carried().struck;
        for mishap in &struck {
            let which = match mishap {
                Mishap::Reset => 0,
                Mishap::Close => 1,
                Mishap::Lose => 2,
                Mishap::Stall => 3,
                Mishap::Pause(_) | Mishap::Trickle { .. } => continue,
            };
            self.cuts[which] += 1;
        }
        struck.len()
    }

    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    fn ratio(&self) -> f64 {
        self.carried as f64 / self.undisturbed as f64
    }
}

fn rounds(store: fn() -> Store, settings: &Settings) -> Tally {
    let (cuts, files) = if settings.full { (6, &MANY_PARTS) } else { (1, &FEW_PARTS) };
    let place = fast_directory();
    let name = store().name();
    let mut tally = Tally::new("Broken network", &format!("push to {name} and restore"), settings.seed);
    let mut random = Random(settings.seed ^ name.len() as u64);
    let tree = World::of(place.path(), store(), files).step(1);
    write_tree(&place.path().join("live/outputs/step_1"), &tree);
    let new = || Ways::new(place.path(), store(), files, tree.clone());

    let quiet = new();
    quiet.push(&[]).unwrap();
    let pushed = quiet.bytes();
    quiet.restore(&[]).unwrap();
    let undisturbed: Undisturbed = [pushed, quiet.bytes()];
    drop(quiet);

    let (mut push, mut restore) = (Sum::default(), Sum::default());
    for round in 0..settings.times(3, 21) {
        let ways = new();
        tally.runs += 2;
        tally.acknowledged += 1;
        let at = format!("seed {}, round {round}", settings.seed);
        let outcome = ways.push(&troubles(&mut random, cuts, true, undisturbed[0]));
        tally.faults += push.add(&ways, ways.bytes().0, undisturbed[0].0);
        let outcome = outcome.and_then(|()| {
            let outcome = ways.restore(&troubles(&mut random, cuts, false, undisturbed[1]));
            tally.faults += restore.add(&ways, ways.bytes().1, undisturbed[1].1);
            outcome
        });
        if let Err(harm) = outcome {
            tally.harmed(&at, harm);
        }
    }
    let cuts: Vec<usize> = (0..4).map(|which| push.cuts[which] + restore.cuts[which]).collect();
    tally.note = format!(
        "{} cuts: {} resets, {} ends, {} losses, {} silences; the rest are pauses and trickles; bytes carried: {:.3} of \
         an undisturbed push, {:.3} of an undisturbed restore",
        cuts.iter().sum::<usize>(),
        cuts[0],
        cuts[1],
        cuts[2],
        cuts[3],
        push.ratio(),
        restore.ratio(),
    );
    if push.ratio() > MOST || restore.ratio() > MOST {
        let why = format!("more than {MOST} of the bytes: {}", tally.note);
        tally.harmed("all rounds", Harm::Stuck(why));
    }
    tally
}

fn broken(store: fn() -> Store) {
    let tally = rounds(store, &of_environment());
    tally.report();
    tally.assert_no_harm();
}

#[test]
fn s3_on_a_broken_network_gets_and_gives_every_byte() {
    broken(Store::s3);
}

#[test]
fn gcs_on_a_broken_network_gets_and_gives_every_byte() {
    broken(Store::gcs);
}

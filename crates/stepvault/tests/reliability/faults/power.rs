//! The power is cut at a random call of the binary, with a random subset of the files written back before.
//!
//! Each filesystem is tested twice: either the local tier or the `file://` remote is on the disk that loses power.
//! What a command reported as sealed, or durable, exists after the cut to the last byte, and no reader sees a torn
//! step.
//!
//! The control is the same binary without any sync: the same checks must detect the difference, in at least half of the
//! runs. The small tier repeats the control until it is detected once: a single run may lose nothing by chance.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::errno::Errno;
use stepvault_testkit::random::Random;
use stepvault_testkit::tree::{fast_directory, remove};

use crate::faults::calls::syncs;
use crate::faults::check::{Harm, holds};
use crate::faults::image::{Image, with_own_mounts};
use crate::faults::settings::{Settings, not_run, settings};
use crate::faults::tally::Tally;
use crate::faults::tracer::{Fault, Plan, Scope, trace};
use crate::faults::world::{SMALL, Store, World, acknowledged_steps};

/// Maximum number of runs of the small tier's control. Nearly every run is detected (see docs/reference/faults.md), so
/// this many undetected ones are no coincidence.
const MAX_SHORT_CONTROLS: usize = 10;

/// The tier on the disk that loses power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tier {
    Local,
    Remote,
}

impl Tier {
    /// Returns its name in `verify` and in acknowledgements.
    fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "store",
        }
    }

    /// Returns a world with this tier on the disk and the other one off it.
    fn world(self, disk: &Path, elsewhere: &Path) -> World {
        match self {
            Self::Local => {
                let mut world = World::with_directory(disk, &SMALL);
                fs::create_dir_all(elsewhere).unwrap();
                world.store = Store::Directory(elsewhere.join("disk"));
                world.scratch = elsewhere.join("scratch");
                world
            }
            Self::Remote => {
                let mut world = World::with_directory(elsewhere, &SMALL);
                fs::create_dir_all(disk).unwrap();
                world.store = Store::Directory(disk.join("disk"));
                world
            }
        }
    }
}

/// The event before the power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// The last command is killed at some call.
    Killed,
    /// One of its syncs fails, without an effect.
    SyncFailed,
    /// The last command is killed, and nothing was ever synced.
    NeverSynced,
}

/// Pushes two or three steps, kills one of the pushes, cuts the power, and checks; returns the number of
/// acknowledgements that had to hold.
fn cut(
    image: &Image,
    tier: Tier,
    random: &mut Random,
    before: Before,
    elsewhere: &Path,
) -> (usize, usize, Result<(), Harm>) {
    let disk = image.mounted.join("work");
    let world = tier.world(&disk, elsewhere);
    let mut acknowledged = BTreeSet::new();
    let mut calls = 1;
    let dies_in = 2 + random.index(2) as u64;
    let mut kills = 0;
    for step in 1..=dies_in {
        world.write(step);
        let plan = Plan {
            counts: Some(if before == Before::SyncFailed { syncs } else { |_| true }),
            scope: Scope::Changing,
            // The killed push may also finish before.
            first: if step == dies_in { 1 + random.index(calls + 3) } else { usize::MAX },
            only_one: true,
            fault: if before == Before::SyncFailed { Fault::Fail(Errno::EIO) } else { Fault::Kill },
            syncs_nothing: before == Before::NeverSynced,
        };
        let traced = trace(&world.push(step), Some(plan));
        calls = traced.sites.len();
        kills += traced.injected;
        acknowledged.extend(acknowledged_steps(&traced.ran, tier.name()));
        if traced.ran.code == 0 && !acknowledged.contains(&step) {
            let harm = Harm::Stuck(format!("push {step} acknowledged nothing: {:?}", traced.ran));
            return (kills, 0, Err(harm));
        }
        if traced.injected == 0 && traced.ran.code != 0 {
            return (kills, 0, Err(Harm::Stuck(format!("push {step}: {:?}", traced.ran))));
        }
    }
    let chance = [0, 10, 50][random.index(3)];
    Image::write_some_back(random, &disk, chance);
    image.lose_power().unwrap();
    let needed = acknowledged.len();
    let outcome = holds(&world, tier.name(), &acknowledged).and_then(|_| goes_on(&world, tier, dies_in));
    (kills, needed, outcome)
}

/// Pushes the next step on the disk that came back, beside the existing ones.
fn goes_on(world: &World, tier: Tier, last: u64) -> Result<(), Harm> {
    // The power cut may have deleted what a trainer had written; its next try writes it again.
    fs::create_dir_all(&world.root).unwrap();
    let steps = if tier == Tier::Remote { vec![last, last + 1] } else { vec![last + 1] };
    for step in &steps {
        world.write(*step);
        let ran = world.push(*step).run();
        if ran.code != 0 {
            return Err(Harm::Stuck(format!("push {step} after the power came back: {ran:?}")));
        }
    }
    holds(world, tier.name(), &steps.into_iter().collect()).map(|_| ())
}

fn many(kind: &'static str, tier: Tier, settings: Settings, before: Before) -> Result<Tally, String> {
    let place = fast_directory();
    with_own_mounts(|| {
        let image = Image::make(place.path(), kind)?;
        let what = match tier {
            Tier::Local => format!("{kind}, local tier"),
            Tier::Remote => format!("{kind}, file:// remote"),
        };
        let section = match before {
            Before::Killed => "Power cuts",
            Before::SyncFailed => "Power cuts after a sync that failed",
            Before::NeverSynced => "Power cuts without syncs (control)",
        };
        let mut tally = Tally::new(section, &what, settings.seed);
        let is_short_control = before == Before::NeverSynced && !settings.full;
        let runs = match before {
            Before::Killed => settings.power_cuts,
            Before::NeverSynced if is_short_control => settings.controls.max(MAX_SHORT_CONTROLS),
            Before::SyncFailed | Before::NeverSynced => settings.controls,
        };
        for run in 0..runs {
            let mut random =
                Random(settings.seed ^ ((run as u64) << 20) ^ (tier as u64) << 8 ^ kind.len() as u64);
            let elsewhere = place.path().join("elsewhere");
            let (kills, acknowledged, outcome) = cut(&image, tier, &mut random, before, &elsewhere);
            tally.runs += 1;
            tally.faults += 1 + kills;
            tally.acknowledged += acknowledged;
            if let Err(harm) = outcome {
                tally.harmed(&format!("seed {}, run {run}", settings.seed), harm);
            }
            remove(&elsewhere);
            remove(&image.mounted.join("work"));
            if is_short_control && tally.harms() > 0 {
                break;
            }
        }
        Ok(tally)
    })
}

fn cuts(kind: &'static str, tier: Tier) {
    let Some(settings) = settings("tracing") else {
        return;
    };
    for before in [Before::Killed, Before::SyncFailed] {
        match many(kind, tier, settings, before) {
            Ok(tally) => {
                tally.report();
                tally.assert_no_harm();
            }
            Err(why) => return not_run(&format!("a disk of {kind} that loses power"), &why),
        }
    }
    let mut control = many(kind, tier, settings, Before::NeverSynced).unwrap();
    let caught = control.harms();
    let needed = if settings.full { control.runs.div_ceil(2) } else { 1 };
    control.note = format!("{caught} of {} caught, at least {needed} must be", control.runs);
    control.report();
    assert!(caught >= needed, "syncs that do nothing were caught in {caught} of {} runs", control.runs);
}

#[test]
fn what_is_sealed_on_ext4_survives_a_power_cut() {
    cuts("ext4", Tier::Local);
}

#[test]
fn what_is_sealed_on_xfs_survives_a_power_cut() {
    cuts("xfs", Tier::Local);
}

#[test]
fn what_is_durable_on_ext4_survives_a_power_cut() {
    cuts("ext4", Tier::Remote);
}

#[test]
fn what_is_durable_on_xfs_survives_a_power_cut() {
    cuts("xfs", Tier::Remote);
}

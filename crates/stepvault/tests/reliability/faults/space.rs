//! A small disk that fills up while an agent works, and gets space again: the agent survives, retries rarely, and
//! continues in time.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use stepvault_testkit::process::PATIENCE;
use stepvault_testkit::tree::fast_directory;

use crate::faults::agent::Agent;
use crate::faults::check::{Harm, holds};
use crate::faults::image::{run, with_own_mounts};
use crate::faults::settings::{not_run, settings};
use crate::faults::tally::Tally;
use crate::faults::world::{SMALL, Store, World};

/// The time within which the step must be pushed after there is space again.
const PROMISED: Duration = Duration::from_secs(10);
/// The time during which the agent's attempts are counted.
const WATCHED: Duration = Duration::from_secs(6);

/// The maximum number of attempts per second while there is no space.
const MAX_ATTEMPTS: f64 = 1.0;
/// The two messages for a lack of space: detected before anything is written, or while writing.
const NO_ROOM: [&str; 2] = ["more bytes", "no space is left"];

/// The lacking resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    Bytes,
    Inodes,
}

impl Lack {
    fn word(self) -> &'static str {
        match self {
            Self::Bytes => "space",
            Self::Inodes => "inodes",
        }
    }
}

/// The log line of each attempt; users are told of the first only.
const FAILED_AGAIN: &str = "; retrying later";

/// Takes all that is left of the disk.
fn fill(disk: &Path, lack: Lack) {
    let filler = disk.join("filler");
    fs::create_dir(&filler).unwrap();
    for number in 0_u64.. {
        let bytes: &[u8] = if lack == Lack::Bytes { &[7; 4096] } else { &[] };
        if fs::write(filler.join(number.to_string()), bytes).is_err() {
            return;
        }
    }
}

/// Lets the agent meet the full disk and continue; returns its attempts per second, and how long it took in the end.
fn meets(world: &World, disk: &Path, lack: Lack) -> Result<(f64, Duration), Harm> {
    fill(disk, lack);
    world.write(2);
    let mut agent = Agent::start(world);
    match lack {
        Lack::Bytes => agent.wait_for(&NO_ROOM, PATIENCE)?,
        Lack::Inodes => agent.wait_for(&["no inode left"], PATIENCE)?,
    };
    let (before, begun) = (agent.count(&[FAILED_AGAIN]), Instant::now());
    std::thread::sleep(WATCHED);
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    let rate = (agent.count(&[FAILED_AGAIN]) - before) as f64 / begun.elapsed().as_secs_f64();
    fs::remove_dir_all(disk.join("filler")).unwrap();
    let took = agent.wait_for(&["step 2 (attempt 1) is durable"], PATIENCE)?;
    agent.end();
    for tier in ["local", "store"] {
        holds(world, tier, &[1, 2].into())?;
    }
    Ok((rate, took))
}

fn fills_up(options: &str, lack: Lack, on_vault: bool) -> Result<Tally, String> {
    with_own_mounts(|| {
        let place = fast_directory();
        let disk = place.path().join("small");
        fs::create_dir(&disk).unwrap();
        run("mount", &["-t", "tmpfs", "-o", options, "tmpfs", disk.to_str().unwrap()])?;
        let mut world = World::with_directory(&place.path().join("world"), &SMALL);
        if on_vault {
            world.vault = disk.join("vault");
        } else {
            world.store = Store::Directory(disk.join("store"));
        }
        world.have(&[1]);
        let tier = if on_vault { "vault" } else { "file:// remote" };
        let mut tally = Tally::new("Room comes back", &format!("agent, {tier} out of {}", lack.word()), 0);
        (tally.runs, tally.faults, tally.acknowledged) = (1, 1, 2);
        match meets(&world, &disk, lack) {
            Ok((rate, took)) => {
                tally.note = format!(
                    "{rate:.1} attempts a second while there was none; durable {:.1} s after there was room",
                    took.as_secs_f64()
                );
                if rate > MAX_ATTEMPTS || took > PROMISED {
                    tally.harmed("too often, or too late", Harm::Stuck(tally.note.clone()));
                }
            }
            Err(harm) => tally.harmed(options, harm),
        }
        // Unmount before the thread's mounts disappear.
        let _ = run("umount", &["--lazy", disk.to_str().unwrap()]);
        Ok(tally)
    })
}

fn comes_back(options: &str, lack: Lack, on_vault: bool) {
    if settings("tracing").is_none() {
        return;
    }
    match fills_up(options, lack, on_vault) {
        Ok(tally) => {
            tally.report();
            tally.assert_no_harm();
        }
        Err(why) => not_run("a small disk", &why),
    }
}

#[test]
fn an_agent_whose_vault_was_full_goes_on() {
    comes_back("size=2m", Lack::Bytes, true);
}

#[test]
fn an_agent_whose_vault_had_no_inodes_goes_on() {
    comes_back("size=8m,nr_inodes=120", Lack::Inodes, true);
}

#[test]
fn an_agent_whose_remote_was_full_goes_on() {
    comes_back("size=2m", Lack::Bytes, false);
}

#[test]
fn an_agent_whose_remote_had_no_inodes_goes_on() {
    comes_back("size=8m,nr_inodes=120", Lack::Inodes, false);
}

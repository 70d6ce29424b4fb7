//! A disk that meets an error and accepts no more writes while an agent works: an ext4 that is configured to become
//! read-only.

use std::time::Duration;

use stepvault_testkit::process::PATIENCE;
use stepvault_testkit::tree::fast_directory;

use crate::faults::agent::Agent;
use crate::faults::check::{Harm, holds};
use crate::faults::image::{Image, with_own_mounts};
use crate::faults::settings::{not_run, settings};
use crate::faults::tally::Tally;
use crate::faults::world::{RUN, SMALL, Store, World};

/// The time within which the step must be pushed after the disk is repaired.
const PROMISED: Duration = Duration::from_secs(10);
const SAYS: &str = "its filesystem is read-only";
const BEFORE: &str = "step 2 (attempt 1) is durable";
const DURABLE: &str = "step 3 (attempt 1) is durable";

/// Returns the time from the repair until the step was durable.
fn meets(world: &World, disk: &Image, on_vault: bool) -> Result<Duration, Harm> {
    let fault = |why: String| Harm::Stuck(why);
    let mut agent = Agent::start(world);
    world.write(2);
    agent.wait_for(&[BEFORE], PATIENCE)?;
    disk.meet_an_error().map_err(fault)?;
    world.write(3);
    agent.wait_for(&[SAYS], PATIENCE)?;
    if on_vault {
        let explained = world.on_vault(["explain", "--json"]).run();
        if !explained.stdout.contains("\"read-only\"") {
            return Err(Harm::Stuck(format!("explain does not name the cause: {explained:?}")));
        }
        // The agent has its lock file open on the disk, which prevents a check.
        agent.end();
        disk.repair().map_err(fault)?;
        agent = Agent::start(world);
    } else {
        disk.repair().map_err(fault)?;
    }
    let took = agent.wait_for(&[DURABLE], PATIENCE)?;
    agent.end();
    for tier in ["local", "store"] {
        holds(world, tier, &[1, 2, 3].into())?;
    }
    Ok(took)
}

fn becomes_read_only(on_vault: bool) -> Result<Tally, String> {
    with_own_mounts(|| {
        let place = fast_directory();
        let disk = Image::make(place.path(), "ext4")?;
        let mut world = World::with_directory(&place.path().join("world"), &SMALL);
        if on_vault {
            world.vault = disk.mounted.join("vault");
        } else {
            world.store = Store::Directory(disk.mounted.join("store"));
        }
        world.have(&[1]);
        let tier = if on_vault { "vault" } else { "file:// remote" };
        let mut tally = Tally::new("A disk becomes read-only", &format!("agent, {tier}"), 0);
        (tally.runs, tally.faults, tally.acknowledged) = (1, 1, 3);
        match meets(&world, &disk, on_vault) {
            Ok(took) => {
                tally.note = format!("durable {:.1} s after the disk was well again", took.as_secs_f64());
                if took > PROMISED {
                    tally.harmed("too late", Harm::Stuck(tally.note.clone()));
                }
            }
            Err(harm) => tally.harmed(RUN, harm),
        }
        Ok(tally)
    })
}

fn goes_on(on_vault: bool) {
    if settings("tracing").is_none() {
        return;
    }
    match becomes_read_only(on_vault) {
        Ok(tally) => {
            tally.report();
            tally.assert_no_harm();
        }
        Err(why) => not_run("a disk that meets an error", &why),
    }
}

#[test]
fn an_agent_whose_vault_became_read_only_goes_on() {
    goes_on(true);
}

#[test]
fn an_agent_whose_remote_became_read_only_goes_on() {
    goes_on(false);
}

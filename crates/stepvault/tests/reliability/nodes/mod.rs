//! Three agents of the built binary, each in its own network namespace, with one strict S3: links are cut and mended,
//! agents are killed, frozen and stopped, at random and at the requests that matter most.
//!
//! In every state of the store, each commit names a part of each node, and everything that it names exists with the
//! recorded sizes and digests. Once the faults are over, every step becomes durable according to every node's own
//! record; if a node is lost, the others name it, and its steps are completed when it comes back. Every agent ends
//! when it is asked to, and the job's next launch restores one step on all nodes, to the byte.
//!
//! The seed determines a schedule, but not how the processes interleave. `NODES_SCHEDULES` sets how many schedules
//! run (4), `NODES_SEED` the first seed (alone it replays that one), `NODES_AT_ONCE` how many run concurrently (4).
//! With `NODES_KEEP` set the disks of a failed schedule are kept.
//!
//! Namespaces require root and `ip` of iproute2. If they are not available, the test reports on stderr that it was
//! not run, and passes; with `NODES_REQUIRED=1` it fails.

mod agent;
mod cluster;
mod ledger;
mod namespaces;
mod play;
mod schedule;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use namespaces::Network;
use play::{Tally, play};
use schedule::Schedule;

use crate::{is_set, number};

/// The first of the schedules that run by default: those lose a node in each way, and none.
const FIRST_SEED: u64 = 39;
/// The number of schedules that run by default.
const SCHEDULES: u64 = 4;

/// Prints a line of these tests.
fn say(text: &str) {
    crate::say(&format!("nodes: {text}"));
}

#[test]
fn every_commit_is_whole_and_every_step_durable_or_named_whatever_links_and_agents_suffer() {
    if let Err(why) = Network::make(1) {
        let required = is_set("NODES_REQUIRED");
        assert!(!required, "no network namespaces, and NODES_REQUIRED=1: {why}");
        say(&format!("NOT RUN, as network namespaces cannot be had here: {why}"));
        return;
    }
    let seed = number("NODES_SEED");
    let count = number("NODES_SCHEDULES").unwrap_or(if seed.is_some() { 1 } else { SCHEDULES });
    let first = seed.unwrap_or(FIRST_SEED);
    let next = AtomicU64::new(first);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..number("NODES_AT_ONCE").unwrap_or(4).min(count) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let schedule = Schedule::of(seed);
                    let played = catch_unwind(AssertUnwindSafe(|| play(&schedule)))
                        .unwrap_or_else(|_| Err("the test itself broke down".to_owned()));
                    if let Err(fault) = &played {
                        say(&format!("NODES_SEED={seed} failed: {fault}"));
                    }
                    results.lock().unwrap().push((seed, played));
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    let failed: Vec<u64> =
        results.iter().filter(|(_, played)| played.is_err()).map(|(seed, _)| *seed).collect();
    let tallies: Vec<Tally> =
        results.iter().filter_map(|(_, played)| played.as_ref().ok()).copied().collect();
    let sum = |of: fn(&Tally) -> usize| tallies.iter().map(of).sum::<usize>();
    say(&format!(
        "{} schedules, {} failed; {} faults, {} of them at a chosen request; {} steps durable ({} of them completed by a \
         node that came back), {} incomplete and named; everything settled within {:.0?} of the last fault",
        results.len(),
        failed.len(),
        sum(|tally| tally.harms),
        sum(|tally| tally.caught),
        sum(|tally| tally.steps_durable),
        sum(|tally| tally.steps_completed_late),
        sum(|tally| tally.steps_named),
        tallies.iter().map(|tally| tally.settled_after).max().unwrap_or_default(),
    ));
    assert!(failed.is_empty(), "schedules failed; replay with NODES_SEED= {failed:?}");
}

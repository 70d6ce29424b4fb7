//! Runs seeds and reports the results.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use stepvault_engine::blocking::InPlace;
use stepvault_remote::random::Repeated;

use crate::invariants::Violation;
use crate::planted::{BUGS, Bug};
use crate::world::{Tally, World};

/// The number of seeds in a run of all tests.
const SEEDS: u64 = 2_000;
/// The number of seeds in which a planted bug must be found.
const SEEDS_FOR_A_BUG: u64 = 500;
const EVENTS: usize = 26;
/// More than cores: sealing waits for the clock of the file system to tick, in real time.
const THREADS: usize = 6;
/// After this many seeds that broke a promise, no more are tried.
const MAX_REPORTED: usize = 3;

/// The result of a seed.
#[derive(Debug)]
struct Outcome {
    seed: u64,
    violation: Option<Violation>,
    digest: String,
    lines: Vec<String>,
    tally: Tally,
}

/// Runs `work` on this thread alone, in virtual time, with the random numbers of a seed.
pub fn on_this_thread<T>(seed: u64, work: impl AsyncFnOnce() -> T) -> T {
    let _in_place = InPlace::on_this_thread();
    let _repeated = Repeated::on_this_thread(seed);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, work())
}

/// Runs all events of a seed.
fn simulate(seed: u64, bug: Option<Bug>) -> Outcome {
    on_this_thread(seed, async || {
        let mut world = World::new(seed, bug);
        let violation = world.run(EVENTS).await;
        world.trace.note("world", format_args!("{:?}", world.keys()));
        let tally = *world.tally.lock().unwrap();
        Outcome { seed, violation, digest: world.trace.digest(), lines: world.trace.lines(), tally }
    })
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Formats instructions for a seed that broke a promise.
fn report(outcome: &Outcome) -> String {
    let path = std::env::temp_dir().join(format!("stepvault-simulation-{}.trace", outcome.seed));
    let kept = std::fs::write(&path, outcome.lines.join("\n"));
    let last = outcome.lines.len().saturating_sub(40);
    let violation =
        outcome.violation.as_ref().map_or_else(|| "nothing is broken".to_owned(), ToString::to_string);
    format!(
        "seed {}: {violation}\n{}\nall of its trace: {} ({kept:?})\nonce more: STEPVAULT_SIMULATION_SEED={} cargo test \
         --test simulation every_promise",
        outcome.seed,
        outcome.lines[last..].join("\n"),
        path.display(),
        outcome.seed,
    )
}

#[test]
fn every_promise_holds_under_every_seed() {
    if let Some(seed) = number("STEPVAULT_SIMULATION_SEED") {
        let outcome = simulate(seed, None);
        eprintln!("{}", report(&outcome));
        assert_eq!(outcome.violation, None);
        return;
    }
    let first = number("STEPVAULT_SIMULATION_FIRST").unwrap_or(0);
    let seeds = number("STEPVAULT_SIMULATION_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(first);
    let found = Mutex::new(Vec::new());
    let total = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while found.lock().unwrap().len() < MAX_REPORTED {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    let outcome = simulate(seed, None);
                    total.lock().unwrap().add(&outcome.tally);
                    if outcome.violation.is_some() {
                        found.lock().unwrap().push(report(&outcome));
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{}", found.join("\n\n"));
    // A world in which nothing happens keeps every promise.
    let total = total.into_inner().unwrap();
    eprintln!("{seeds} seeds: {total:?}");
    let counts = [
        total.acknowledged,
        total.retired,
        total.evicted,
        total.restored,
        total.gc_removed,
        total.failed,
        total.together,
        total.agreed,
        total.determined,
        total.newest_looked_for,
        total.overwritten,
        total.touched,
        total.copied,
        total.followed,
    ];
    let least = usize::try_from(seeds).unwrap() / 10;
    assert!(counts.iter().all(|count| *count >= least), "{total:?}");
    let rare = [
        total.foreign_jobs,
        total.epilogs,
        total.gone_back,
        total.cloned,
        total.stores_gone_back,
        total.appeared,
    ];
    assert!(rare.iter().all(|count| *count >= least / 10), "{total:?}");
    assert!(total.unmounted >= least / 20, "{total:?}");
}

#[test]
fn a_seed_is_replayed_exactly() {
    for seed in [1, 2, 3, 5, 8, 13, 21, 34] {
        let (first, second) = (simulate(seed, None), simulate(seed, None));
        let differs = first.lines.iter().zip(&second.lines).position(|(one, other)| one != other);
        if let Some(line) = differs {
            panic!("seed {seed}, line {line}:\n{}\n{}", first.lines[line], second.lines[line]);
        }
        assert_eq!(first.digest, second.digest);
        assert!(first.lines.len() > 100, "{}", first.lines.len());
    }
    assert_ne!(simulate(1, None).digest, simulate(2, None).digest);
}

/// Returns the first seed that breaks a promise, and which. `known` found the bug before, and is tried first.
fn find_bug(bug: Bug, known: u64) -> Option<(u64, Violation)> {
    let others = (0..SEEDS_FOR_A_BUG).filter(|seed| *seed != known);
    std::iter::once(known).chain(others).find_map(|seed| Some((seed, simulate(seed, Some(bug)).violation?)))
}

#[test]
fn each_planted_bug_is_found_by_the_check_of_its_promise() {
    let one = std::env::var("STEPVAULT_SIMULATION_BUG").ok();
    let is_wanted = |bug: Bug| one.as_ref().is_none_or(|one| *one == format!("{bug:?}"));
    let mut wrong = Vec::new();
    for (bug, promise, known) in BUGS.into_iter().filter(|(bug, ..)| is_wanted(*bug)) {
        let Some((seed, violation)) = find_bug(bug, known) else {
            wrong.push(format!("{bug:?} was not found in {SEEDS_FOR_A_BUG} seeds"));
            continue;
        };
        eprintln!("{bug:?}: seed {seed}: {violation}");
        if seed != known {
            eprintln!("{bug:?}: BUGS should name seed {seed} and not {known}, which takes longer");
        }
        if violation.promise != promise {
            wrong.push(format!("{bug:?} was to break {promise}; seed {seed}: {violation}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

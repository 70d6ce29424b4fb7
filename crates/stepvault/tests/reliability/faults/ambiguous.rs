//! Ambiguous responses: a write took effect and its response was lost, another request interfered (409, on S3), or
//! the retry finds the result of the first request (412).
//!
//! Each kind of object that a command writes is tested in turn, the commit most often. The command must succeed as if
//! nothing had happened; a watcher of the store's objects counts how often a commit appeared or changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::process::TestCommand;
use stepvault_testkit::random::Random;
use stepvault_testkit::tree::{fast_directory, read_tree};

use crate::faults::check::{Harm, holds, stored};
use crate::faults::settings::{Settings, of_environment};
use crate::faults::tally::Tally;
use crate::faults::world::{FILES, RUN, Store, World};

/// A kind of write.
struct Write {
    what: &'static str,
    /// Its methods, on S3 and on GCS, and a part of its path, with `/` as on S3.
    methods: [&'static str; 2],
    path: &'static str,
    order: fn(&World) -> TestCommand,
    /// What must hold afterwards, besides the steps that existed.
    after: fn(&World) -> Result<(), Harm>,
    /// Whether it is repeated as often as the commit.
    is_commit: bool,
    /// The number of commits that appear.
    commits: usize,
}

const PUT: [&str; 2] = ["PUT", "POST"];

fn push(world: &World) -> TestCommand {
    world.write(4);
    world.push(4)
}

fn pushed(world: &World) -> Result<(), Harm> {
    stored(world, 4, 1, &world.step(4))?;
    there(world, "/commits/000000000004.a1.json", true)
}

fn prune(world: &World) -> TestCommand {
    world.on_run(["prune", "--tier", "store", "--keep-last", "2"])
}

fn pruned(world: &World) -> Result<(), Harm> {
    there(world, "/commits/000000000001.a1.json", false)?;
    there(world, "/000000000001.a1/step_1/", false)?;
    there(world, "/tombstones/000000000001.a1.json", true)
}

fn restore(world: &World) -> TestCommand {
    world.elsewhere(["restore", "--into", world.scratch.join("got").to_str().unwrap()])
}

fn restored(world: &World) -> Result<(), Harm> {
    if read_tree(&world.scratch.join("got/step_3")) == world.step(3) {
        return Ok(());
    }
    Err(Harm::Torn("the restored step holds other files".to_owned()))
}

/// Checks whether a key of the run contains this text.
fn there(world: &World, text: &str, wanted: bool) -> Result<(), Harm> {
    let keys = world.keys();
    let found = keys.iter().any(|key| key.contains(RUN) && key.contains(text));
    if found == wanted {
        return Ok(());
    }
    let instead = if wanted { "no" } else { "still a" };
    Err(Harm::Stuck(format!("there is {instead} key with {text:?}")))
}

const COMMIT: Write = Write {
    what: "commit",
    methods: PUT,
    path: "/commits/",
    order: push,
    after: pushed,
    is_commit: true,
    commits: 1,
};

fn writes() -> Vec<Write> {
    let of_push = |what, methods, path| Write { what, methods, path, is_commit: false, ..COMMIT };
    let of_prune = |what, methods, path| Write {
        what,
        methods,
        path,
        order: prune,
        after: pruned,
        is_commit: false,
        commits: 0,
    };
    vec![
        COMMIT,
        of_push("part manifest", PUT, "/parts/"),
        of_push("claim", PUT, "/attempts/"),
        of_push("whole object", PUT, "/000000000004.a1/step_4/optimizer/state.bin"),
        of_push("start of an upload", ["POST", "POST"], "?uploads"),
        of_push("completion of an upload", ["POST", "POST"], "?uploadId"),
        of_prune("tombstone", PUT, "/tombstones/"),
        of_prune("lease of a prune", PUT, "/leases/"),
        of_prune("deletion", ["POST", "DELETE"], ""),
        Write {
            what: "lease of a restore",
            methods: PUT,
            path: "/leases/",
            order: restore,
            after: restored,
            is_commit: false,
            commits: 0,
        },
        Write {
            what: "pin",
            methods: PUT,
            path: "/pins/",
            order: |world| world.on_run(["pin", "2"]),
            after: |world| there(world, "/pins/000000000002.a1.json", true),
            is_commit: false,
            commits: 0,
        },
        Write {
            what: "gc record",
            methods: PUT,
            path: "/gc/",
            order: |world| world.on_run(["gc"]),
            after: |world| there(world, "/gc/last.json", true),
            is_commit: false,
            commits: 0,
        },
        Write {
            what: "marker",
            methods: PUT,
            path: "/vault.json",
            order: |world| {
                let objects = world.store.objects();
                objects.with(|objects| objects.retain(|key, _| !key.ends_with("/vault.json")));
                // A marker that was seen before is not written again.
                let forgotten = world.on_run(["remote", "forget", "store"]).run();
                assert_eq!(forgotten.code, 0, "{forgotten:?}");
                push(world)
            },
            is_commit: false,
            ..COMMIT
        },
    ]
}

/// Returns the faults, one for each attempt. Google documents no 409 for objects.
fn actions(random: &mut Random, on_gcs: bool) -> (Vec<FaultAction>, &'static str) {
    let refusal = |status: u16, code: &str| FaultAction::refuse(status, code);
    let lost = || FaultAction::ApplyThenReset;
    let conflict = || {
        if on_gcs { refusal(503, "backendError") } else { refusal(409, "ConditionalRequestConflict") }
    };
    match random.index(5) {
        0 => (vec![conflict()], "409 (GCS: 503)"),
        1 => (vec![conflict(), lost()], "409 (GCS: 503), then applied and lost"),
        2 => (vec![lost(), lost()], "applied and lost twice"),
        3 => (vec![lost(), refusal(500, "InternalError")], "applied and lost, then 500"),
        _ => (vec![lost()], "applied and lost"),
    }
}

/// Counts how often each commit appeared, or was replaced.
fn watch_commits(world: &World) -> Arc<Mutex<usize>> {
    let times = Arc::<Mutex<usize>>::default();
    let counted = Arc::clone(&times);
    let mut known: Option<BTreeMap<String, (String, i64, std::time::SystemTime)>> = None;
    world.store.objects().watch(move |objects| {
        let now: BTreeMap<_, _> = objects
            .iter()
            .filter(|(key, _)| key.contains("/.stepvault/commits/"))
            .map(|(key, object)| {
                let version = (object.etag.clone(), object.generation, object.modified);
                (key.clone(), version)
            })
            .collect();
        if let Some(before) = &known {
            let changed = now.iter().filter(|(key, version)| before.get(*key) != Some(version));
            *counted.lock().unwrap() += changed.count();
        }
        known = Some(now);
    });
    times
}

fn resolve(store: fn() -> Store, settings: &Settings) -> Vec<Tally> {
    let place = fast_directory();
    let world = World::of(place.path(), store(), &FILES);
    let name = world.store.name();
    let on_gcs = name == "GCS";
    world.have(&[1, 2, 3]);
    let kept = world.keep();
    let mut random = Random(settings.seed ^ name.len() as u64);
    let mut tallies = Vec::new();
    for write in writes() {
        let what = format!("{} on {name}", write.what);
        let mut tally = Tally::new("Ambiguous answers", &what, settings.seed);
        let times = if write.is_commit { settings.times(6, 200) } else { settings.times(1, 25) };
        let mut appeared = 0;
        for _ in 0..times {
            // A separate server each time would do as well; a watcher stays with one.
            world.bring_back(&kept);
            let order = (write.order)(&world);
            let (actions, at) = actions(&mut random, on_gcs);
            let commits = watch_commits(&world);
            let path = match (on_gcs, write.path) {
                (true, path) if path.starts_with('/') => path.replace('/', "%2F"),
                // A request of the XML API.
                (true, "?uploadId") => "uploadId".to_owned(),
                (true, "?uploads") => "uploads".to_owned(),
                (_, path) => path.trim_start_matches('?').to_owned(),
            };
            let faults = world.store.faults();
            let before = faults.requests().len();
            for action in &actions {
                faults.inject(write.methods[usize::from(on_gcs)], &path, 1, action.clone());
            }
            let ran = order.run();
            faults.clear();
            let method = write.methods[usize::from(on_gcs)];
            let met = faults
                .requests_after(before)
                .iter()
                .filter(|request| request.method == method && request.path.contains(&path))
                .count();
            tally.runs += 1;
            tally.faults += met.min(actions.len());
            tally.acknowledged += 3;
            let outcome = if ran.code == 0 {
                (write.after)(&world).and_then(|()| {
                    let needed = if write.what == "pin" { [1, 2, 3].into() } else { [2, 3].into() };
                    // Verify every byte of every step only now and then: it costs more than all the rest.
                    if tally.runs % 10 == 1 {
                        holds(&world, "store", &needed)?;
                    }
                    Ok(())
                })
            } else {
                Err(Harm::Stuck(format!("a false failure: {ran:?}")))
            };
            let written = *commits.lock().unwrap();
            appeared += written;
            if let Err(harm) = outcome {
                tally.harmed(at, harm);
            } else if written != write.commits {
                let why = format!("commits were written {written} times, not {}", write.commits);
                tally.harmed(at, Harm::Torn(why));
            } else if met == 0 {
                let why = format!("no request met the fault on {method} {path}");
                tally.harmed(at, Harm::Stuck(why));
            }
        }
        tally.note = format!(
            "{} of {} resolved; commits written {appeared} times",
            tally.runs - tally.harms(),
            tally.runs
        );
        tally.report();
        tallies.push(tally);
    }
    tallies
}

#[test]
fn s3_answers_that_were_lost_or_in_the_way_are_found_out() {
    let tallies = resolve(Store::s3, &of_environment());
    tallies.iter().for_each(Tally::assert_no_harm);
}

#[test]
fn gcs_answers_that_were_lost_or_in_the_way_are_found_out() {
    let tallies = resolve(Store::gcs, &of_environment());
    tallies.iter().for_each(Tally::assert_no_harm);
}

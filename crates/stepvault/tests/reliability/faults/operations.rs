//! The commands that change something, each in a world where it has something to do.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use stepvault_testkit::process::TestCommand;
use stepvault_testkit::tree::{FileTree, files_below, read_tree, write_tree};

use crate::faults::check::Harm;
use crate::faults::world::{FILES, RUN, SMALL, SOUND, Store, World};

/// A command, with its world.
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    pub(crate) world: World,
    pub(crate) order: TestCommand,
    /// How many runs it needs until it has nothing left to do.
    pub(crate) times: usize,
    /// The codes with which a run ends that finishes what another one began.
    pub(crate) ends_with: &'static [i32],
    /// Whether it concerns steps on tiers.
    pub(crate) has_tiers: bool,
    /// Whether it may remove steps.
    pub(crate) removes: bool,
    /// What must hold at any time, and what must hold once it is done.
    pub(crate) always: fn(&World) -> Result<(), Harm>,
    pub(crate) at_the_end: fn(&World) -> Result<(), Harm>,
}

#[allow(clippy::unnecessary_wraps, reason = "it stands where others fail")]
fn nothing(_: &World) -> Result<(), Harm> {
    Ok(())
}

/// Makes an operation in `root`.
pub(crate) fn of(name: &'static str, root: &Path) -> Operation {
    let directory = |files| World::with_directory(root, files);
    let operation = match name {
        "push to file://" => push(directory(&FILES)),
        "push to S3" => push(World::with_s3(root, &FILES)),
        "agent --once to file://" => agent(root),
        "restore from file://" => restore(directory(&SMALL)),
        "restore from S3" => restore(World::with_s3(root, &FILES)),
        "restore --replace" => replace(root),
        "prune on file://" => prune(directory(&SMALL)),
        "prune on S3" => prune(World::with_s3(root, &SMALL)),
        "gc on file://" => gc(root),
        "stage" => stage(root),
        "commit" => commit(root),
        "restore from the vault" => restore_from_vault(root),
        "verify on file://" => verify(root),
        "prune of the vault" => prune_of_vault(root),
        "copy to file://" => copy(directory(&FILES)),
        "copy to S3" => copy(World::with_s3(root, &FILES)),
        "tier to file://" => tier(root),
        "follow from file://" => follow(directory(&SMALL)),
        "follow from S3" => follow(World::with_s3(root, &FILES)),
        "import on file://" => import(root),
        name => panic!("no operation is called {name:?}"),
    };
    Operation { name, ..operation }
}

fn operation(world: World, order: TestCommand) -> Operation {
    Operation {
        name: "",
        world,
        order,
        times: 1,
        ends_with: &[0],
        has_tiers: true,
        removes: false,
        always: nothing,
        at_the_end: nothing,
    }
}

/// Pushes the third step of a run.
fn push(world: World) -> Operation {
    world.have(&[1, 2]);
    world.write(3);
    let order = world.push(3);
    Operation { at_the_end: no_temporaries, ..operation(world, order) }
}

/// Runs an agent with two steps to seal and upload, and old ones to remove from both tiers.
fn agent(root: &Path) -> Operation {
    let world = World::with_directory(root, &SMALL);
    world.have(&[1, 2]);
    world.write(3);
    world.write(4);
    let url = world.remote();
    let url = url.strip_prefix("store=").unwrap();
    let configuration = format!(
        "format = 1\n[local]\ndirectory = {:?}\n[keep.local]\nlast = 2\n[keep.remote]\nlast = 3\n[remote.store]\nurl = \
         {url:?}\n[run.{RUN:?}]\nwatch = \"outputs\"\ncomplete = \"rename\"\npattern = \"step_*\"\n",
        world.vault.to_str().unwrap()
    );
    fs::write(world.root.join("agent.toml"), configuration).unwrap();
    let order = world.order(["agent", "--once", "--json", "--config", "agent.toml"]);
    Operation { removes: true, at_the_end: no_temporaries, ..operation(world, order) }
}

/// Makes a copy of what is on the world's remote so far, and leaves that empty. Returns the copy's URL.
fn moved_away(world: &World) -> String {
    let old = world.root.join("old");
    let moved = format!("old=file://{}", old.display());
    let ran = world.order(["copy", "--run", RUN, "--from", &world.remote(), "--to", &moved]).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    match &world.store {
        Store::Directory(path) => {
            fs::remove_dir_all(path).unwrap();
            fs::create_dir(path).unwrap();
        }
        store => store.objects().with(std::collections::BTreeMap::clear),
    }
    for vault in [&world.vault, &world.root.join(".stepvault")] {
        fs::remove_dir_all(vault).unwrap();
    }
    moved
}

/// Copies the rest of a run whose first step was copied before.
fn copy(world: World) -> Operation {
    world.have(&[1, 2, 3]);
    let from = moved_away(&world);
    let order = world
        .order(["copy", "--run", RUN, "--from", &from, "--to", &world.remote(), "--local"])
        .with([&world.vault]);
    let ran = order.clone().with(["--step", "1"]).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    Operation { at_the_end: no_temporaries, ..operation(world, order) }
}

/// Copies to a selective remote the two steps that its rules select.
fn tier(root: &Path) -> Operation {
    let world = World::with_directory(root, &FILES);
    world.have(&[1, 2, 3, 4]);
    let (from, to, vault) = (moved_away(&world), world.remote(), world.vault.to_str().unwrap().to_owned());
    let url = |remote: &str| remote.split_once('=').unwrap().1.to_owned();
    let configuration = format!(
        "format = 1\n[local]\ndirectory = {vault:?}\n[remote.old]\nurl = {:?}\n[remote.store]\nurl = {:?}\nfrom = \
         \"old\"\nselect.every-steps = 2\n[run.{RUN:?}]\n",
        url(&from),
        url(&to)
    );
    fs::write(world.root.join("tier.toml"), configuration).unwrap();
    let order = world.order(["tier", "--run", RUN, "--config", "tier.toml"]);
    Operation { at_the_end: no_temporaries, ..operation(world, order) }
}

/// Follows three steps, of which the last two stay.
fn follow(world: World) -> Operation {
    world.have(&[1, 2, 3]);
    let words = ["follow", "--run", RUN, "--into", "followed", "--all", "--keep", "2", "--timeout", "0s"];
    let order = world.order(words).with(["--remote", &world.remote()]);
    Operation {
        // Also if it has followed all of them before it was killed.
        ends_with: &[0, 10],
        always: |world| followed(world, &[]),
        at_the_end: |world| followed(world, &[2, 3]),
        ..operation(world, order)
    }
}

/// Checks that the followed steps are whole, or absent unless they are `needed`, and that the link leads to a whole one.
fn followed(world: &World, needed: &[u64]) -> Result<(), Harm> {
    let directory = world.root.join("followed");
    let path = |step: u64| directory.join(format!("{step:012}.a1/step_{step}"));
    // The first one is removed file by file once the third is there.
    let is_going = path(3).exists();
    for step in [1, 2, 3].into_iter().filter(|step| *step > 1 || !is_going) {
        let is_needed = needed.contains(&step);
        if (path(step).exists() || is_needed) && read_tree(&path(step)) != world.step(step) {
            let harm = if is_needed { Harm::Stuck } else { Harm::Torn };
            return Err(harm(format!("{} is not whole", path(step).display())));
        }
    }
    if !needed.is_empty() && directory.join("000000000001.a1").exists() {
        return Err(Harm::Stuck("the first step is not removed".to_owned()));
    }
    match fs::read_link(directory.join("latest")) {
        Ok(target) if (1..=3).all(|step| read_tree(&directory.join(&target)) != world.step(step)) => {
            Err(Harm::Torn(format!("latest leads to {}, which is not whole", target.display())))
        }
        Err(_) if !needed.is_empty() => Err(Harm::Stuck("there is no link to the newest step".to_owned())),
        _ => Ok(()),
    }
}

/// Imports two steps that another program has written beside the run's own.
fn import(root: &Path) -> Operation {
    let world = World::with_directory(root, &SOUND);
    world.have(&[3]);
    let old = root.join("live/disk/old");
    for step in [1, 2] {
        write_tree(&old.join(format!("step_{step}")), &world.step(step));
    }
    let url = format!("file://{}", old.display());
    let order = world.on_run(["import", &url, "--quiet-time", "0s"]);
    Operation {
        always: |world| {
            let objects = world.keys().into_iter().filter(|key| key.contains("old/step_")).count();
            let is_whole = objects == world.step(1).len() + world.step(2).len();
            if is_whole { Ok(()) } else { Err(Harm::Lost(format!("{objects} objects of others are left"))) }
        },
        ..operation(world, order)
    }
}

fn restore(world: World) -> Operation {
    world.have(&[1, 2, 3]);
    let into = world.root.join("got");
    let vault = world.root.join("new-vault");
    let order = world
        .order(["restore", "--run", RUN, "--into"])
        .with([into, "--local".into(), vault])
        .with(["--remote", &world.remote()]);
    Operation {
        always: |world| whole(world, &[]),
        at_the_end: |world| whole(world, &[world.step(3)]),
        ..operation(world, order)
    }
}

/// Restores from the node's own copy, which must stay intact.
fn restore_from_vault(root: &Path) -> Operation {
    let new = restore(World::with_directory(root, &SMALL));
    let order = new.world.on_vault(["restore", "--into", "got"]);
    Operation { order, ..new }
}

/// Restores to a target whose name is already used by something else.
fn replace(root: &Path) -> Operation {
    let mut new = restore(World::with_directory(root, &SMALL));
    write_tree(&new.world.root.join("got/step_3"), &new.world.step(99));
    new.order = new.order.with(["--replace"]);
    new.always = |world| match whole(world, &[world.step(99), world.step(3)]) {
        Ok(()) if !world.root.join("got/step_3").exists() => {
            Err(Harm::Lost("neither the old nor the new is there".to_owned()))
        }
        outcome => outcome,
    };
    new
}

/// Checks that the target of a restore is one of `others`, or the step; without `others` it may be absent as well.
fn whole(world: &World, others: &[FileTree]) -> Result<(), Harm> {
    let target = world.root.join("got/step_3");
    if !target.exists() && others.is_empty() {
        return Ok(());
    }
    let there = read_tree(&target);
    if there == world.step(3) || others.contains(&there) {
        return Ok(());
    }
    Err(Harm::Torn(format!("the target holds {:?}", there.keys())))
}

fn prune(world: World) -> Operation {
    world.have(&[1, 2, 3, 4, 5]);
    let order = world.on_run(["prune", "--keep-last", "2"]);
    Operation { removes: true, ..operation(world, order) }
}

/// Verifies both tiers, to the last byte.
fn verify(root: &Path) -> Operation {
    let world = World::with_directory(root, &SMALL);
    world.have(&[1, 2, 3]);
    let order = world.on_run(["verify", "--deep", "--json"]);
    operation(world, order)
}

fn prune_of_vault(root: &Path) -> Operation {
    let world = World::with_directory(root, &SMALL);
    world.have(&[1, 2, 3, 4, 5]);
    let order = world.on_run(["prune", "--tier", "local", "--keep-last", "2"]);
    Operation { removes: true, ..operation(world, order) }
}

/// Runs gc on the data of a step without its commit, which one run has seen already, and on a file that is not
/// stepvault's.
fn gc(root: &Path) -> Operation {
    let world = World::with_directory(root, &SMALL);
    world.have(&[1, 2, 3]);
    let run = root.join("live/disk").join(RUN);
    let commits = files_below(&run.join(".stepvault/commits"));
    fs::remove_file(commits.iter().find(|path| path.to_str().unwrap().contains("0003.")).unwrap()).unwrap();
    fs::write(run.join("notes.txt"), "of somebody else").unwrap();
    fs::remove_dir_all(&world.vault).unwrap();
    let order = world.on_run(["gc", "--grace", "0s"]);
    let ran = order.run();
    assert_eq!(ran.code, 0, "{ran:?}");
    Operation {
        times: 3,
        always: |world| {
            let foreign = world.keys().iter().any(|key| key.ends_with("notes.txt"));
            foreign.then_some(()).ok_or_else(|| Harm::Lost("a file of somebody else's is gone".to_owned()))
        },
        at_the_end: |world| {
            let orphans: Vec<_> = world.keys().into_iter().filter(|key| key.contains("/step_3/")).collect();
            if orphans.is_empty() { Ok(()) } else { Err(Harm::Stuck(format!("orphans stay: {orphans:?}"))) }
        },
        ..operation(world, order)
    }
}

fn stage(root: &Path) -> Operation {
    let world = World::with_directory(root, &SMALL);
    let order = world.order(["stage", "--in", "outputs", "--step", "7"]);
    Operation {
        has_tiers: false,
        at_the_end: |world| {
            let staged = staged(world);
            write_tree(Path::new(&staged), &world.step(7));
            let ran = world.order(["commit", &staged]).run();
            if ran.code != 0 {
                return Err(Harm::Stuck(format!("what was staged cannot be committed: {ran:?}")));
            }
            committed(world, true)
        },
        ..operation(world, order)
    }
}

fn commit(root: &Path) -> Operation {
    let world = World::with_directory(root, &SMALL);
    let staged = staged(&world);
    write_tree(Path::new(&staged), &world.step(7));
    let order = world.order(["commit", &staged]);
    Operation {
        has_tiers: false,
        always: |world| committed(world, false),
        at_the_end: |world| committed(world, true),
        ..operation(world, order)
    }
}

/// Returns the directory that processes get for step 7.
fn staged(world: &World) -> String {
    let ran = world.order(["stage", "--in", "outputs", "--step", "7"]).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.stdout.trim_end().to_owned()
}

/// Checks that the step exists whole, or not at all, and that the link names it only if it exists.
fn committed(world: &World, must_be: bool) -> Result<(), Harm> {
    let outputs = world.root.join("outputs");
    let there = read_tree(&outputs.join("step_7"));
    if there.is_empty() && !must_be {
        let dangles = outputs.join("latest").symlink_metadata().is_ok();
        return if dangles { Err(Harm::Torn("latest leads nowhere".to_owned())) } else { Ok(()) };
    }
    if there != world.step(7) {
        return Err(Harm::Torn(format!("the step holds {:?}", there.keys())));
    }
    let latest = read_tree(&outputs.join("latest"));
    if must_be && latest != there {
        return Err(Harm::Stuck("latest does not lead to the step".to_owned()));
    }
    Ok(())
}

/// Checks that the next process has deleted the leftovers of a killed process.
fn no_temporaries(world: &World) -> Result<(), Harm> {
    let in_vault = files_below(&world.vault).into_iter();
    let left: BTreeSet<_> = in_vault
        .filter(|path| {
            let path = path.strip_prefix(&world.vault).unwrap().to_str().unwrap().to_owned();
            path.starts_with("staging/") || path.starts_with("trash/") || path.contains("/.stepvault-tmp-")
        })
        .collect();
    if left.is_empty() { Ok(()) } else { Err(Harm::Stuck(format!("the vault keeps {left:?}"))) }
}

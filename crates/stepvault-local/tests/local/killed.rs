//! Processes that are killed at any moment, and what the next one finds.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stepvault_core::config::LinkPolicy;
use stepvault_local::seal::seal;
use stepvault_local::source::SourceFile;
use stepvault_local::staging::Existing;
use stepvault_local::tree::scan;
use stepvault_local::vault::Vault;

use crate::restore::restore;
use crate::support::{Place, id, path, run};

const PLACE: &str = "STEPVAULT_TEST_PLACE";

/// Runs one of the ignored tests below in a process of its own.
fn child(test: &str, place: &Place) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env(PLACE, place.directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Lets the child say that it has begun, and work for a while, then kills it; gives back the lines it wrote.
fn kill_after(mut child: Child, microseconds: u64) -> Vec<String> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line.ends_with("begun")).expect("the child has begun");
    std::thread::sleep(Duration::from_micros(microseconds));
    child.kill().unwrap();
    let lines = lines.collect();
    child.wait().unwrap();
    lines
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// A child outlives no test for long, should that fail to kill it.
const LIFETIME: Duration = Duration::from_secs(20);

fn place_of_child() -> Option<PathBuf> {
    std::env::var_os(PLACE).map(PathBuf::from)
}

#[test]
#[ignore = "the body of a process that another test starts and kills"]
fn seals_and_evicts_for_ever() {
    let Some(place) = place_of_child() else { return };
    let vault = Vault::open(&place.join("vault")).unwrap().unwrap();
    let lock = vault.lock().unwrap();
    vault.clean_leftovers(&lock).unwrap();
    let begin = vault.steps(&run()).unwrap().steps.last().map_or(1, |step| step.id().step.number() + 1);
    say("begun");
    let start = Instant::now();
    for step in (begin..).take_while(|_| start.elapsed() < LIFETIME) {
        let name = format!("step_{step}");
        let source = place.join("run").join(&name);
        fs::create_dir_all(&source).unwrap();
        fs::write(source.join("weights"), name.repeat(1000)).unwrap();
        let request = stepvault_local::seal::SealRequest {
            digest: stepvault_core::digest::DigestAlgorithm::Sha256,
            run: run(),
            attempt: stepvault_local::seal_record::AttemptOrigin::default(),
            id: id(step),
            writer: stepvault_core::nodes::Writer::single_node(
                stepvault_core::ids::NodeName::new("node-0").unwrap(),
            ),
            checkpoint: stepvault_local::tree::Checkpoint {
                links: if step % 2 == 0 { LinkPolicy::Auto } else { LinkPolicy::Copy },
                ..stepvault_local::tree::Checkpoint::of_path(&source, name)
            },
            expected: None,
            completes: None,
        };
        seal(&vault, &request).unwrap();
        say(&format!("sealed {step}"));
        fs::remove_dir_all(source).unwrap();
        if step % 5 == 0 {
            say(&format!("evicting {}", step - 3));
            vault.evict(&run(), id(step - 3)).unwrap();
        }
    }
}

#[test]
fn every_acknowledged_step_survives_a_kill() {
    let place = Place::new();
    let (mut acknowledged, mut evicted) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..25_u64 {
        let child = child("killed::seals_and_evicts_for_ever", &place);
        for line in kill_after(child, 3_000 + round * 7_919 % 120_000) {
            let number = || line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
            if line.starts_with("sealed ") {
                acknowledged.insert(number());
            } else if line.starts_with("evicting ") {
                evicted.insert(number());
            }
        }
        // A trainer would clean up its own.
        let _ = fs::remove_dir_all(place.at("run"));
        let scan = place.vault.steps(&run()).unwrap();
        assert!(scan.faults.is_empty(), "{:?}", scan.faults);
        for step in &scan.steps {
            let file = step.record().file(&path("weights")).unwrap();
            let place = step.file_path(&file.path);
            SourceFile::open(&place, file).unwrap().check_unchanged().unwrap();
            assert_eq!(fs::read_to_string(place).unwrap(), step.name().repeat(1000));
        }
        let there: BTreeSet<_> = scan.steps.iter().map(|step| step.id().step.number()).collect();
        let lost: Vec<_> =
            acknowledged.iter().filter(|step| !evicted.contains(step) && !there.contains(step)).collect();
        assert!(lost.is_empty(), "lost {lost:?}");
    }
    assert!(acknowledged.len() > 3, "{} steps", acknowledged.len());
    let lock = place.vault.lock().unwrap();
    place.vault.clean_leftovers(&lock).unwrap();
    place.assert_no_leftovers();
}

fn version(root: &Path, text: &str) {
    for name in ["a", "b/c"] {
        fs::create_dir_all(root.join("b")).unwrap();
        fs::write(root.join(name), text.repeat(5000)).unwrap();
    }
}

#[test]
#[ignore = "the body of a process that another test starts and kills"]
fn restores_for_ever() {
    let Some(place) = place_of_child() else { return };
    let trees: Vec<_> = ["one", "two"]
        .iter()
        .map(|name| {
            let root = place.join("from").join(name);
            let tree = scan(&root).unwrap();
            (root, tree)
        })
        .collect();
    say("begun");
    let start = Instant::now();
    while start.elapsed() < LIFETIME {
        for (root, tree) in &trees {
            restore(root, tree, &place.join("into/step_1"), None, Existing::Replace).unwrap();
        }
    }
}

/// What stands at the target is one whole step, whenever one looks and however the restore ends.
#[test]
fn the_target_is_always_one_whole_step() {
    let place = Place::new();
    for name in ["one", "two"] {
        version(&place.at("from").join(name), name);
    }
    let target = place.at("into/step_1");
    for round in 0..25_u64 {
        kill_after(child("killed::restores_for_ever", &place), 1_000 + round * 7_919 % 100_000);
        if !target.exists() {
            continue;
        }
        let text = fs::read_to_string(target.join("a")).unwrap();
        assert!(["one", "two"].iter().any(|name| name.repeat(5000) == text));
        assert_eq!(fs::read_to_string(target.join("b/c")).unwrap(), text);
        assert_eq!(scan(&target).unwrap().files.len(), 2);
    }
    assert!(target.exists());
    // Both finish, and then nothing of all the interrupted ones is left.
    for name in ["one", "two"] {
        let root = place.at("from").join(name);
        restore(&root, &scan(&root).unwrap(), &target, None, Existing::Replace).unwrap();
    }
    assert!(!place.at(".stepvault").exists());
}

//! Field reports, replayed at a small scale by the scripts in `tests/scenario`.

use std::path::{Path, PathBuf};

use crate::support::Place;

/// A script ends so where this machine does not let its story happen.
const SKIPPED: i32 = 77;

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenario")
}

fn replay(name: &str) {
    let script = format!("bash '{}'", scenarios().join(name).display());
    let outcome = Place::new().shell(&script).run();
    match outcome.code {
        0 => {}
        SKIPPED => eprintln!("{name}: {}", outcome.stderr),
        _ => panic!("{name}: {outcome:#?}"),
    }
}

#[test]
fn a_save_that_fails_on_a_full_disk() {
    replay("save-fails-on-a-full-disk.sh");
}

#[test]
fn a_container_that_restarts_in_a_loop() {
    replay("container-restarts-in-a-loop.sh");
}

#[test]
fn a_temporary_directory_that_is_full() {
    replay("temporary-directory-is-full.sh");
}

#[test]
fn a_directory_that_cannot_be_written() {
    replay("directory-cannot-be-written.sh");
}

#[test]
fn ranks_that_wait_for_a_save_for_ever() {
    replay("ranks-wait-for-a-save-for-ever.sh");
}

#[test]
fn every_script_is_replayed() {
    let own = include_str!("scenario.rs");
    for entry in std::fs::read_dir(scenarios()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name == "common.sh" || own.contains(&format!("replay(\"{name}\")")), "{name}");
    }
}

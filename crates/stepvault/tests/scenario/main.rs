//! Field reports, replayed at a small scale by the scripts in `tests/scenario`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests say what they expect by unwrapping it, and what they could not do"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A script ends so where this machine does not let its story happen.
const SKIPPED: i32 = 77;

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenario")
}

fn replay(name: &str) {
    let place = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_stepvault"));
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("bash")
        .arg(scenarios().join(name))
        .current_dir(place.path())
        .env_clear()
        .env("PATH", format!("{}:{path}", binary.parent().unwrap().display()))
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("GCE_METADATA_HOST", "127.0.0.1:1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => {}
        Some(SKIPPED) => eprintln!("{name}: {complained}"),
        code => panic!("{name} ended with {code:?}\n{said}\n{complained}"),
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
    let own = include_str!("main.rs");
    for entry in std::fs::read_dir(scenarios()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "common.sh" || own.contains(&format!("replay(\"{name}\")")),
            "{name}"
        );
    }
}

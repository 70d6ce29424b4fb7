//! Links between documents lead somewhere, and pictures are what their script draws.

use std::process::Command;

use crate::place::repository;

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    run_script(&["scripts/check-links"]);
}

#[test]
fn the_pictures_are_what_their_script_draws() {
    run_script(&["scripts/pictures", "--check"]);
}

/// Runs a script of the repository, which must succeed.
fn run_script(arguments: &[&str]) {
    let output = Command::new("python3")
        .args(arguments)
        .current_dir(repository())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

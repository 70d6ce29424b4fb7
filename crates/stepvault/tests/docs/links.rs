//! Links between documents lead somewhere: `scripts/check-links` checks their files and anchors.

use std::process::Command;

use crate::place::repository;

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let output = Command::new("python3")
        .arg(repository().join("scripts/check-links"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

//! Variables that must name directories.

use std::process::Command;

use crate::place::{Place, doctor_line};

#[test]
fn each_variable_is_looked_at_by_name() {
    let place = Place::new();
    std::fs::write(
        place.path("stepvault.toml"),
        "[doctor]\nrequired-environment = [\"OUTPUT_PATH\", \"CHECKPOINT_ARTIFACT_PATH\", \"LOSSY_ARTIFACT_PATH\", \"STORE_PATH\", \"MISSING_PATH\"]\n",
    )
    .unwrap();
    std::fs::write(place.path("file"), "").unwrap();
    let line = doctor_line(&["--json"]);
    let mut command = Command::new("env");
    command
        .arg(format!("OUTPUT_PATH={}", place.path("run").display()))
        .arg(format!("LOSSY_ARTIFACT_PATH={}", place.path("file").display()))
        .arg("STORE_PATH=s3://bucket/x")
        .arg(format!("MISSING_PATH={}", place.path("missing").display()))
        .args(line);
    let ran = place.run(&mut command).expect_code(14);
    ran.finding("variable", "OUTPUT_PATH")
        .expect("pass", "written, synced, renamed, linked and deleted", "");
    ran.finding("variable", "CHECKPOINT_ARTIFACT_PATH").expect(
        "fail",
        "it is not set",
        "export CHECKPOINT_ARTIFACT_PATH=",
    );
    ran.finding("variable", "LOSSY_ARTIFACT_PATH").expect(
        "fail",
        "it is not a directory",
        "name another directory",
    );
    ran.finding("variable", "STORE_PATH")
        .expect("fail", "it is the URL", "export STORE_PATH=");
    ran.finding("variable", "MISSING_PATH")
        .expect("fail", "it does not exist", "mkdir -p '");
}

#[test]
fn what_is_no_name_of_a_variable_is_a_mistake() {
    let place = Place::new();
    std::fs::write(
        place.path("stepvault.toml"),
        "[doctor]\nrequired-environment = [\"$OUTPUT_PATH\"]\n",
    )
    .unwrap();
    let ran = place.run_line(&doctor_line(&["run"])).expect_code(2);
    assert!(ran.stderr.contains("is not the name of a variable"), "{ran:?}");
}

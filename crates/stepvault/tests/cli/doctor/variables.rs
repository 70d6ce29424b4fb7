//! Variables that must name directories.

use crate::doctor::{Findings as _, place};

#[test]
fn each_variable_is_looked_at_by_name() {
    let place = place();
    place.write("stepvault.toml",
        "[doctor]\nrequired-environment = [\"OUTPUT_PATH\", \"CHECKPOINT_ARTIFACT_PATH\", \"LOSSY_ARTIFACT_PATH\", \"STORE_PATH\", \"MISSING_PATH\"]\n",
    );
    place.write("file", "");
    let ran = place
        .doctor_command(&["--json"])
        .env("OUTPUT_PATH", place.path("run"))
        .env("LOSSY_ARTIFACT_PATH", place.path("file"))
        .env("STORE_PATH", "s3://bucket/x")
        .env("MISSING_PATH", place.path("missing"))
        .run()
        .expect_code(14);
    ran.finding("variable", "OUTPUT_PATH").expect("pass", "written, synced, renamed, linked and deleted", "");
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
    ran.finding("variable", "STORE_PATH").expect("fail", "it is the URL", "export STORE_PATH=");
    ran.finding("variable", "MISSING_PATH").expect("fail", "it does not exist", "mkdir -p '");
}

#[test]
fn what_is_no_name_of_a_variable_is_a_mistake() {
    let place = place();
    place.write("stepvault.toml", "[doctor]\nrequired-environment = [\"$OUTPUT_PATH\"]\n");
    place.doctor_command(&["run"]).run().expect_code(2).expect_stderr(&["is not the name of a variable"]);
}

//! `run` while another node still uploads what the job before has saved.

use crate::agent_truth::{configure, main_remote};
use crate::support::{Outcome, Place, TestProcess, wait_until};

const STEP_BYTES: usize = 24 << 20;

/// A remote with step 10, and an agent of the node before that uploads step 40 slowly and has recorded that.
fn uploading(place: &Place, limit: &str) -> TestProcess {
    place.push_steps(&[10]);
    let remote = format!("{}?bandwidth-limit={limit}", main_remote(place));
    configure(place, "before", &remote, "");
    let step = place.path("made");
    std::fs::create_dir(&step).unwrap();
    std::fs::write(step.join("model.bin"), vec![7; STEP_BYTES]).unwrap();
    let agent = place.start_agent(&["--config", "before.toml"], &[]);
    std::fs::rename(&step, place.path("out-before/step_40")).unwrap();
    let record = place.path("remote/demo/a/.stepvault/drains/before.json");
    wait_until("the record of the upload", || record.exists());
    agent
}

/// The job after it, on a new node: prints the step that it resumes from.
fn resumes(place: &Place, wait: &str) -> Outcome {
    configure(place, "after", &main_remote(place), "");
    let text = place.read("after.toml");
    place.write("after.toml", format!("{text}[restart]\nwait-for-uploads = \"{wait}\"\n"));
    let script = "echo resumes from $STEPVAULT_RESTORED_STEP";
    place.run(&["run", "--config", "after.toml", "--", "sh", "-c", script]).expect_code(0)
}

#[test]
fn a_start_waits_for_the_step_that_the_job_before_is_uploading() {
    let place = Place::new();
    let agent = uploading(&place, "4 MiB");
    let outcome = resumes(&place, "1m");
    assert_eq!(outcome.stdout, "resumes from 40\n", "{outcome:?}");
    outcome.expect_stderr(&[
        "before is still uploading step 40 (attempt 1) to main",
        "newer than step 10 (attempt 1): waiting for it, 1m at most",
    ]);
    agent.kill();
}

#[test]
fn a_start_waits_neither_when_told_so_nor_for_what_takes_too_long() {
    let place = Place::new();
    let agent = uploading(&place, "1 MiB");
    let outcome = resumes(&place, "0s");
    assert_eq!(outcome.stdout, "resumes from 10\n", "{outcome:?}");
    assert!(!outcome.stderr.contains("still uploading"), "{outcome:?}");
    place.remove("vault-after");
    place.remove("out-after");
    let outcome = resumes(&place, "3s");
    assert_eq!(outcome.stdout, "resumes from 10\n", "{outcome:?}");
    outcome.expect_stderr(&["is still uploading step 40", "not waiting longer than 3s"]);
    agent.kill();
}

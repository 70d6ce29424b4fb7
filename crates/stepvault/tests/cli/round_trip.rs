//! `push`, loss of the local tier, `restore`: bytes, modes and times.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::json;
use stepvault_testkit::random::bytes;
use stepvault_testkit::tree::{names_in, set_mode, snapshot};

use crate::support::{Place, assert_members};

fn dress(path: &Path, mode: u32, seconds: u64, nanoseconds: u32) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    File::open(path).unwrap().set_modified(time).unwrap();
    set_mode(path, mode);
}

#[test]
fn a_directory_comes_back_with_bytes_modes_and_times() {
    let place = Place::new();
    let source = place.checkpoint("step_100", "weights");
    std::fs::create_dir_all(source.join("sub/empty")).unwrap();
    std::fs::write(source.join("sub/run.sh"), "#!/bin/sh\n").unwrap();
    std::fs::write(source.join("nothing"), "").unwrap();
    symlink("model.bin", source.join("latest")).unwrap();
    // Several parts, and no two alike.
    std::fs::write(source.join("large.bin"), bytes(1, 20_000_000)).unwrap();
    dress(&source.join("sub/run.sh"), 0o755, 1_700_000_000, 123_456_789);
    dress(&source.join("nothing"), 0o600, 1_600_000_000, 1);
    dress(&source.join("sub/empty"), 0o700, 1_500_000_000, 0);
    dress(&source, 0o750, 1_700_000_001, 0);
    let before = snapshot(&source);

    let pushed = place.document_here(0, &["push", "checkpoints/step_100"]);
    assert_members(&pushed, &json!({ "step": 100, "attempt": 1, "newly_sealed": true }));
    assert_eq!(pushed["remotes"][0]["durable"], true);
    assert_eq!(snapshot(&source), before, "the push changed its source");
    place.remove("checkpoints");
    place.remove(".stepvault");

    let plan = place.document_here(0, &["restore", "--into", "back", "--plan"]);
    assert_eq!((&plan["planned"], &plan["sources"][0]["tier"]), (&true.into(), &"file-remote".into()));
    assert!(!place.path("back").exists(), "a plan did something");

    let restored = place.document_here(0, &["restore", "--into", "back"]);
    assert_eq!(restored["path"], place.path("back/step_100").to_str().unwrap());
    assert_eq!(restored["bytes"], pushed["bytes"]);
    assert_eq!(restored["sources"], json!([{ "tier": "file-remote", "bytes": pushed["bytes"] }]));
    assert_eq!(restored["skipped"], json!([]));
    assert_eq!(snapshot(&place.path("back/step_100")), before);

    let again = place.document_here(0, &["restore", "--into", "back"]);
    assert_eq!(again["already_there"], true);
    std::fs::write(place.path("back/step_100/model.bin"), "other").unwrap();
    place.run_here(&["restore", "--into", "back"]).expect_code(1).expect_error("--replace");
    place.succeed_here(&["restore", "--into", "back", "--replace"]);
    assert_eq!(snapshot(&place.path("back/step_100")), before);
}

#[test]
fn a_single_file_is_a_checkpoint_too() {
    let place = Place::new();
    place.write("checkpoints/checkpoint-7.pt", "weights");
    place.succeed_here(&["push", "checkpoints/checkpoint-7.pt"]);
    place.succeed_here(&["restore", "--as", "other/name.pt", "--step", "7"]);
    assert_eq!(place.read("other/name.pt"), "weights");
}

#[test]
fn some_files_can_be_taken() {
    let place = Place::new();
    place.push_steps(&[1]);
    place.succeed_here(&["restore", "--into", "back", "--include", "*.json"]);
    assert_eq!(names_in(&place.path("back/step_1")), ["state.json"]);
    place
        .run_here(&["restore", "--into", "none", "--include", "*.pt"])
        .expect_code(2)
        .expect_error("--include");
}

#[test]
fn the_local_copy_comes_first_and_a_second_push_moves_nothing() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    place.succeed_here(&["push", "checkpoints/step_1"]);
    let again = place.document_here(0, &["push", "checkpoints/step_1"]);
    assert_eq!(again["newly_sealed"], false);
    assert_eq!(again["remotes"][0]["already_durable"], true);
    let restored = place.document_here(0, &["restore", "--into", "back"]);
    assert_eq!(restored["sources"][0]["tier"], "local");
}

#[test]
fn what_is_unchanged_since_the_step_before_is_copied_and_said_to_be() {
    let place = Place::new();
    place.checkpoint("step_1", "the same");
    place.checkpoint("step_2", "the same");
    let first = place.document_here(0, &["push", "checkpoints/step_1"]);
    assert_eq!(first["remotes"][0]["copied_bytes"], 0);
    let second = place.document_here(0, &["push", "checkpoints/step_2"]);
    let copied = second["remotes"][0]["copied_bytes"].as_u64().unwrap();
    assert!(copied > 0 && copied <= second["bytes"].as_u64().unwrap(), "{second}");
    place.checkpoint("step_3", "the same");
    let third = place.run_here(&["push", "checkpoints/step_3"]).expect_code(0);
    assert!(third.stdout.contains("copied in the store)"), "{third:#?}");
    let line = " of it copied in the store, to file://";
    third.expect_stderr(&[line]);
}

#[test]
fn what_is_added_to_an_old_step_is_a_revision_that_every_command_names() {
    let place = Place::new();
    let source = place.checkpoint("step_100", "weights");
    place.succeed_here(&["push", "checkpoints/step_100"]);
    place.checkpoint("step_300", "more weights");
    place.succeed_here(&["push", "checkpoints/step_300"]);
    std::fs::write(source.join("README.md"), "# A model card").unwrap();
    let pushed = place.document_here(0, &["push", "checkpoints/step_100"]);
    assert_members(&pushed, &json!({ "step": 100, "attempt": 1, "revision": 2, "newly_sealed": true }));
    let listed = place.document_here(0, &["list"]);
    let steps = listed["steps"].as_array().unwrap().iter();
    let steps: Vec<_> = steps.map(|step| (step["step"].as_u64(), step["revision"].as_u64())).collect();
    assert_eq!(steps, [(Some(300), None), (Some(100), Some(2)), (Some(100), None)]);
    assert!(listed.get("warnings").is_none(), "{listed}");
    let shown = place.document_here(0, &["show", "100"]);
    assert_eq!((&shown["revision"], &shown["files"]), (&2.into(), &3.into()));
    let first = place.document_here(0, &["show", "100", "--revision", "1"]);
    assert_eq!((first.get("revision"), &first["files"]), (None, &2.into()));
    let missing = place.document_here(10, &["show", "100", "--revision", "3"]);
    let message = missing["error"]["message"].as_str().unwrap();
    assert!(message.contains("step 100 (revision 3) of run"), "{message}");
    let pinned = place.document_here(0, &["pin", "100"]);
    assert_eq!(pinned["revision"], 2);
    let verified = place.document_here(0, &["verify", "100", "--revision", "2", "--deep"]);
    assert_eq!(verified["sound_steps"], 1);
    let status = place.document_here(0, &["status", "--local", ".stepvault"]);
    assert_eq!(status["newest_steps"][1]["revision"], 2);
    let restored = place.document_here(0, &["restore", "--into", "back"]);
    assert_eq!(restored["step"], 300);
    let older = place.document_here(0, &["restore", "--into", "older", "--step", "100"]);
    assert_eq!((&older["revision"], &older["files"]), (&2.into(), &3.into()));
}

#[test]
fn a_time_that_contradicts_the_numbers_and_the_evidence_of_an_attempt_are_named() {
    let place = Place::new();
    place.checkpoint("step_300", "newest");
    place.succeed_here(&["push", "checkpoints/step_300"]);
    place.checkpoint("step_100", "downloaded later");
    place.succeed_here(&["push", "checkpoints/step_100"]);
    for command in ["list", "status"] {
        let warnings = &place.document_here(0, &[command, "--local", ".stepvault"])["warnings"];
        let warning = warnings[0].as_str().unwrap();
        assert!(
            warning.starts_with("step 100 was written after step 300")
                && warning.ends_with("use 'stepvault restore --step 100'"),
            "{warning}"
        );
    }
    place.succeed_here(&["push", "checkpoints/step_100", "--attempt", "2"]);
    let listed = place.document_here(0, &["list"]);
    assert_members(
        &listed["steps"][0],
        &json!({ "step": 100, "attempt": 2, "began": "the attempt was given" }),
    );
    assert!(listed.get("warnings").is_none(), "{listed}");
    assert_eq!(place.document_here(0, &["show", "100"])["began"], "the attempt was given");
}

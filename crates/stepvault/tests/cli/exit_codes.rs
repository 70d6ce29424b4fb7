//! The exit codes that scripts depend on.

use std::fs::File;

use serde_json::json;

use crate::support::{ANY_KEYS, Place, assert_members, damage, list};

#[test]
fn ten_is_no_such_checkpoint() {
    let place = Place::new();
    place.run_here(&["restore", "--into", "back"]).expect_code(10).expect_error("no such checkpoint");
    place.run_here(&["verify"]).expect_code(10);
    place.push_steps(&[1]);
    place.run_here(&["restore", "--into", "back", "--step", "2"]).expect_code(10);
    place
        .run_here(&["show", "2"])
        .expect_code(10)
        .expect_error("no such checkpoint: step 2 of run 'demo/a': no tier has it");
    place.run_here(&["pin", "2"]).expect_code(10);
    let document = place.document_here(10, &["verify", "2"]);
    assert_eq!(document["error"]["kind"], "not-found");
}

#[test]
fn eleven_is_none_valid_and_a_damaged_step_is_skipped() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    damage(&place.remote_file("step_2", "model.bin"));
    let restored = place.document_here(0, &["restore", "--into", "back"]);
    assert_eq!(restored["step"], 1);
    assert_eq!(restored["skipped"][0]["step"], 2);
    let reason = restored["skipped"][0]["reasons"][0].as_str().unwrap();
    assert!(reason.contains("model.bin"), "{reason}");
    let verified = place.document_here(1, &["verify", "--deep"]);
    assert_members(&verified, &json!({ "sound_steps": 1, "damaged_steps": 1 }));

    damage(&place.remote_file("step_1", "model.bin"));
    let outcome = place.run_here(&["restore", "--into", "other", "--json"]).expect_code(11);
    assert_eq!(outcome.json()["error"]["kind"], "none-valid");
    assert!(!place.path("other/step_1").exists());
    place.run_here(&["verify", "--deep"]).expect_code(11);
    place.run_here(&["restore", "--into", "other", "--step", "2"]).expect_code(11);
}

#[test]
fn twelve_is_a_tier_that_cannot_be_reached_in_time() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    // Nobody listens on port 1.
    let remote =
        "s3://bucket/prefix?endpoint=http://127.0.0.1:1&region=us-east-1&retry-deadline=1s&stall-timeout=1s";
    let call = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.args(["--remote", remote, "--run", "a"]).envs(ANY_KEYS);
        command.run().expect_code(12)
    };
    call(&["restore", "--into", "back"]);
    call(&["list"]);
    call(&["verify"]);
    let pushed = call(&["push", "checkpoints/step_1", "--json"]).json();
    assert_eq!(pushed["newly_sealed"], true);
    assert_eq!(pushed["remotes"][0]["error"]["kind"], "unreachable");
}

#[test]
fn thirteen_is_a_lock_that_somebody_holds() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    place.succeed_here(&["push", "checkpoints/step_1"]);
    let lock = File::open(place.path(".stepvault/lock")).unwrap();
    lock.lock().unwrap();
    place.run_here(&["push", "checkpoints/step_1"]).expect_code(13).expect_error("cannot lock the vault");
    place.run_here(&["prune", "--tier", "local", "--local", ".stepvault"]).expect_code(13);
    let status = place.document_here(0, &["status", "--local", ".stepvault"]);
    assert_eq!(status["locked"], true);
    drop(lock);
    let status = place.document_here(0, &["status", "--local", ".stepvault"]);
    assert_members(&status, &json!({ "locked": false, "steps": 1 }));
}

#[test]
fn three_is_partly_done() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    // A file stands where this remote's directory would have to be.
    place.write("file", "");
    let broken = format!("broken=file://{}", place.path("file/remote").display());
    let outcome =
        place.run_here(&["push", "checkpoints/step_1", "--json", "--remote", &broken]).expect_code(3);
    let durable: Vec<bool> =
        list(&outcome.json(), "remotes").iter().map(|remote| remote["durable"].as_bool().unwrap()).collect();
    assert_eq!(durable, [false, true]);
    let optional = format!("{broken}?required=false");
    place.succeed_here(&["push", "checkpoints/step_1", "--remote", &optional]);
    let outcome = place.run(&["push", "checkpoints/step_1", "--run", "demo/a", "--remote", &broken]);
    outcome.expect_code(2).expect_error("file/remote");
}

//! `copy`: a run on another remote, by the command line.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use stepvault_testkit::faults::{FaultAction, FaultRule};
use stepvault_testkit::s3::StrictS3;

use crate::support::{Outcome, Place, TestCommand, assert_members, damage, list, wait_until};

/// A copy of `demo/a` from this place's remote into a directory.
fn copy(place: &Place, options: &[&str]) -> TestCommand {
    let (from, to) = (format!("old={}", place.remote()), target(place));
    place.command(["copy", "--from", &from, "--to", &to, "--run", "demo/a"]).with(options)
}

fn target(place: &Place) -> String {
    format!("new=file://{}", place.path("target").display())
}

fn document(place: &Place, code: i32, options: &[&str]) -> Value {
    copy(place, options).document(code)
}

/// What became of each step, the newest first.
fn states(document: &Value) -> Vec<(u64, &str)> {
    let steps = list(&document["runs"][0], "steps").iter();
    steps.map(|step| (step["step"].as_u64().unwrap(), step["state"].as_str().unwrap())).collect()
}

fn exists(place: &Place, name: &str) -> bool {
    place.path(name).symlink_metadata().is_ok()
}

#[test]
fn a_run_goes_on_where_it_was_copied_to() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    place.succeed_here(&["pin", "1", "--note", "the paper's"]);
    copy(&place, &[]).run().expect_code(0).expect_stdout(&["demo/a: copied 2 steps", "from old to new"]);
    let on = |words: &[&str]| place.run(&[words, &["--run", "demo/a", "--remote", &target(&place)]].concat());
    on(&["verify", "--deep"]).expect_code(0);
    on(&["restore", "--into", "restored"]).expect_code(0);
    assert_eq!(place.read("restored/step_2/model.bin"), place.read("checkpoints/step_2/model.bin"));
    on(&["list"]).expect_code(0).expect_stdout(&["pinned"]);
    // The step is known there, and a later one follows it.
    on(&["push", "checkpoints/step_2"]).expect_code(0).expect_stdout(&["was already durable on new"]);
    place.checkpoint("step_3", "three");
    on(&["push", "checkpoints/step_3"]).expect_code(0);
    let again = document(&place, 0, &[]);
    assert_eq!(states(&again), [(2, "present"), (1, "present")]);
    assert_members(&again["runs"][0], &json!({ "bytes": 0, "copied_bytes": 0, "error": null }));
}

#[test]
fn a_dry_run_says_what_would_be_copied_and_writes_nothing() {
    let place = Place::new();
    place.push_steps(&[1, 2, 3]);
    std::fs::create_dir(place.path("target")).unwrap();
    let planned = document(&place, 0, &["--dry-run", "--step", "1", "--step", "3"]);
    assert_eq!(states(&planned), [(3, "copy"), (1, "copy")]);
    assert_members(&planned, &json!({ "from": "old", "to": "new", "dry_run": true }));
    let run = &planned["runs"][0];
    assert!(run["bytes"].as_u64() > Some(10_000) && run["source_requests"].as_u64() > Some(4), "{run:#}");
    copy(&place, &["--dry-run"]).run().expect_code(0).expect_stdout(&[
        "demo/a: would copy 3 steps",
        "requests to old and",
        "requests to new",
    ]);
    assert_eq!(std::fs::read_dir(place.path("target")).unwrap().count(), 0);
    assert!(!exists(&place, ".stepvault"));
    assert_eq!(states(&document(&place, 0, &["--step", "1"])), [(1, "copied")]);
}

#[test]
fn every_run_is_copied_and_one_that_fails_stops_no_other() {
    let place = Place::new();
    place.push_steps(&[1]);
    let remote = place.remote();
    place.checkpoint("step_5", "five");
    let push = |run: &str, remote: &str, step: &str| {
        let vault = format!("vault-of-{}", run.len() + remote.len());
        place.succeed(&["push", step, "--run", run, "--remote", remote, "--local", &vault]);
    };
    push("demo/b", &remote, "checkpoints/step_5");
    push("demo/c", &remote, "checkpoints/step_5");
    // Another run of the name.
    place.checkpoint("step_9", "nine");
    std::fs::create_dir(place.path("target")).unwrap();
    push("demo/b", &target(&place), "checkpoints/step_9");
    let (from, to) = (format!("old={remote}"), target(&place));
    let copied = place.document(3, &["copy", "--from", &from, "--to", &to, "--all-runs"]);
    let errors = list(&copied, "runs")
        .iter()
        .map(|run| (run["run"].as_str().unwrap(), run["error"]["kind"].as_str(), list(run, "steps").len()));
    assert_eq!(
        errors.collect::<Vec<_>>(),
        [("demo/a", None, 1), ("demo/b", Some("conflict"), 0), ("demo/c", None, 1)]
    );
    let both = ["copy", "--from", &from, "--to", &to, "--all-runs", "--run", "demo/a"];
    place.run(&both).expect_code(2).expect_error("--run and --all-runs are given");
}

#[test]
fn the_rules_of_the_run_choose_what_is_copied() {
    let place = Place::new();
    place.push_steps(&[1, 2, 3]);
    place.write("stepvault.toml", "[run.\"demo/a\"]\n");
    copy(&place, &["--keep-rules"])
        .run()
        .expect_code(2)
        .expect_error("no keep rule for remotes is configured");
    place.write("stepvault.toml", "[run.\"demo/a\"]\n[keep.remote]\nlast = 2\n");
    let copied = document(&place, 0, &["--keep-rules"]);
    assert_eq!(states(&copied), [(3, "copied"), (2, "copied"), (1, "skipped")]);
    assert_eq!(copied["runs"][0]["steps"][2]["reason"], "no rule keeps it");
}

#[test]
fn what_cannot_be_copied_says_why_with_the_codes_of_a_push() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    damage(&place.remote_file("step_2", "model.bin"));
    let copied = document(&place, 3, &[]);
    assert_eq!(states(&copied), [(2, "failed"), (1, "copied")]);
    assert_eq!(copied["runs"][0]["steps"][0]["error"]["kind"], "damaged");
    assert!(!exists(&place, "target/demo/a/.stepvault/commits/000000000002.a1.json"));
    copy(&place, &["--step", "2"]).run().expect_code(1).expect_error("cannot read the source: old");
    copy(&place, &["--step", "7"]).run().expect_code(10).expect_error("cannot copy step 7");
    let same = format!("again={}", place.remote());
    let itself = place.run(&["copy", "--from", &place.remote(), "--to", &same, "--run", "demo/a"]);
    itself.expect_code(2);
    place.remove("remote/demo/a/.stepvault/vault.json");
    place.remove(".stepvault");
    copy(&place, &[]).run().expect_code(1).expect_error("the run has no marker");
}

fn on_server(server: &StrictS3, name: &str, prefix: &str) -> String {
    format!("{name}=s3://bucket/{prefix}?endpoint={}", server.endpoint())
}

fn with_keys(server: &StrictS3, mut command: TestCommand) -> TestCommand {
    command
        .env("AWS_ACCESS_KEY_ID", server.access_key())
        .env("AWS_SECRET_ACCESS_KEY", server.secret_key())
        .env("AWS_REGION", "us-east-1")
        .clone()
}

#[test]
fn a_copy_that_is_interrupted_in_a_file_continues_there() {
    let place = Place::new();
    let server = StrictS3::start();
    server.create_bucket("bucket");
    std::fs::create_dir_all(place.path("checkpoints/step_1")).unwrap();
    std::fs::write(place.path("checkpoints/step_1/model.bin"), vec![7_u8; 40 << 20]).unwrap();
    place.succeed_here(&["push", "checkpoints/step_1"]);
    let (from, to) = (format!("old={}", place.remote()), on_server(&server, "new", "p"));
    let command = || {
        let words = ["copy", "--from", &from, "--to", &to, "--run", "demo/a", "--local", "mover"];
        with_keys(&server, place.command(words))
    };
    server.faults().add(FaultRule {
        method: Some("PUT".to_owned()),
        path_contains: "model.bin".to_owned(),
        skip: 3,
        times: u64::MAX,
        action: FaultAction::Hang,
    });
    let parts = || server.pending_uploads().iter().map(|one| one.part_numbers.len()).sum::<usize>();
    let process = command().start();
    wait_until("three parts are there", || parts() >= 3);
    // Until their answers have arrived.
    std::thread::sleep(Duration::from_millis(500));
    process.signal(Signal::INT);
    let stopped: Outcome = process.wait();
    stopped.expect_code(130).expect_stderr(&["copied parts are kept"]);
    server.faults().clear();
    server.faults().clear_requests();
    command().run().expect_code(0);
    let sent = server.faults().requests().into_iter();
    let sent: u64 = sent.filter(|one| one.path.contains("partNumber")).map(|one| one.body_bytes).sum();
    // Of five, the last one a whole part too; one answer may have come too late.
    assert!(sent <= 3 * (8 << 20), "{sent} bytes");
}

#[test]
fn within_one_bucket_the_store_copies() {
    let place = Place::new();
    let server = StrictS3::start();
    server.create_bucket("bucket");
    place.checkpoint("step_1", "one");
    let (from, to) = (on_server(&server, "old", "a"), on_server(&server, "new", "b/c"));
    let run = |words: &[&str]| with_keys(&server, place.command(words)).run();
    run(&["push", "checkpoints/step_1", "--run", "demo/a", "--remote", &from]).expect_code(0);
    server.faults().clear_requests();
    run(&["copy", "--from", &from, "--to", &to, "--run", "demo/a"])
        .expect_code(0)
        .expect_stdout(&["copied in the store"]);
    let read = server.faults().requests().into_iter();
    let read = read.filter(|one| one.method == "GET" && one.path.contains("model.bin"));
    assert_eq!(read.count(), 0);
    run(&["verify", "--deep", "--run", "demo/a", "--remote", &to]).expect_code(0);
}

#[test]
fn credentials_for_one_side_only_say_which_side_refuses() {
    let place = Place::new();
    let server = StrictS3::start();
    server.create_bucket("bucket");
    place.push_steps(&[1]);
    let (here, there) = (format!("here={}", place.remote()), on_server(&server, "there", "p"));
    let copy = |from: &str, to: &str, secret: &str| {
        let words = ["copy", "--from", from, "--to", to, "--run", "demo/a"];
        with_keys(&server, place.command(words)).env("AWS_SECRET_ACCESS_KEY", secret).run()
    };
    copy(&here, &there, "another").expect_code(1).expect_error("cannot use the target: there");
    assert!(server.objects().keys().is_empty(), "{:?}", server.objects().keys());
    copy(&here, &there, server.secret_key()).expect_code(0);
    let back = format!("back=file://{}", place.path("back").display());
    copy(&there, &back, "another").expect_code(1).expect_error("cannot read the source: there");
    assert!(!exists(&place, "back/demo"));
}

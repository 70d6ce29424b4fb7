//! `follow`: each new durable step on another machine, with commands of a few lines of shell.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Outcome, Place, TestCommand, assert_members, damage, wait_until};

/// The arguments of `follow` into `followed`, for steps that are there already.
fn follow(place: &Place, options: &[&str], command: &[&str]) -> TestCommand {
    let remote = place.remote();
    let mut words = vec!["follow", "--into", "followed", "--run", "demo/a", "--remote", &remote];
    words.extend(options);
    if !command.is_empty() {
        words.push("--");
        words.extend(command);
    }
    place.command(words)
}

/// What the call prints with `--json`: a document on each line.
fn events(outcome: &Outcome) -> Vec<Value> {
    outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn kinds(events: &[Value]) -> Vec<(&str, Option<u64>)> {
    events.iter().map(|event| (event["event"].as_str().unwrap(), event["step"].as_u64())).collect()
}

fn exists(place: &Place, name: &str) -> bool {
    place.path(name).symlink_metadata().is_ok()
}

#[test]
fn the_newest_step_is_restored_and_its_command_runs_once() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    let script =
        "cmp $1/model.bin checkpoints/step_2/model.bin && echo {step} $2 $STEPVAULT_RESTORED_STEP >> log";
    let call = |options: &[&str]| {
        follow(&place, options, &["sh", "-c", script, "name", "{path}", "{step}.{attempt}"]).run()
    };
    call(&["--once"]).expect_code(0).expect_stderr(&[
        "stepvault: restored step 2 (attempt 1) of 'demo/a': 2 files",
        "stepvault: the command succeeded for step 2 (attempt 1)",
    ]);
    assert_eq!(place.read("log"), "2 2.1 2\n");
    assert!(exists(&place, "followed/000000000002.a1/step_2/state.json"));
    assert_eq!(place.read("followed/latest/model.bin"), place.read("checkpoints/step_2/model.bin"));
    call(&["--timeout", "0s"]).expect_code(10).expect_stderr(&["no new durable step: run 'demo/a'"]);
    assert_eq!(place.read("log"), "2 2.1 2\n");
}

#[test]
fn those_between_are_passed_over_and_only_the_last_ones_stay() {
    let place = Place::new();
    place.push_steps(&[1]);
    let once = |code| {
        let outcome = follow(&place, &["--once", "--json", "--include", "*.bin"], &[]).run();
        events(&outcome.expect_code(code))
    };
    assert_eq!(kinds(&once(0)), [("restored", Some(1))]);
    place.push_steps(&[2, 3]);
    let found = once(0);
    assert_eq!(kinds(&found), [("restored", Some(3))]);
    let path = place.path("followed").canonicalize().unwrap().join("000000000003.a1/step_3");
    let passed_over = json!([{ "attempt": 1, "step": 2 }]);
    assert_members(
        &found[0],
        &json!({ "format": 1, "run": "demo/a", "attempt": 1, "path": path, "files": 1, "passed_over": passed_over }),
    );
    assert!(!exists(&place, "followed/000000000003.a1/step_3/state.json"));
    // What the user put there stays, also in a step that is removed.
    place.write("followed/notes.txt", "mine");
    place.write("followed/000000000003.a1/step_3/results.json", "mine");
    place.push_steps(&[4]);
    assert_eq!(kinds(&once(0)), [("restored", Some(4)), ("removed", Some(1))]);
    place.push_steps(&[5]);
    let found = once(0);
    assert_eq!(kinds(&found), [("restored", Some(5)), ("removed", Some(3))]);
    assert!(found[1]["reason"].as_str().unwrap().contains("did not put there"), "{found:#?}");
    assert!(!exists(&place, "followed/000000000001.a1"));
    assert!(!exists(&place, "followed/000000000003.a1/step_3/model.bin"));
    assert_eq!(place.read("followed/000000000003.a1/step_3/results.json"), "mine");
    assert_eq!(place.read("followed/notes.txt"), "mine");
}

#[test]
fn with_all_a_step_that_becomes_durable_after_a_newer_one_is_followed_once() {
    let place = Place::new();
    place.push_steps(&[1, 2, 3]);
    // Those whose commit is not there are not durable yet.
    let away = |step| place.path(&format!("{step}.json"));
    for step in [1, 2] {
        std::fs::rename(place.commit(step, 1), away(step)).unwrap();
    }
    let call = |options: &[&str]| {
        follow(&place, &[options, &["--timeout", "0s", "--keep", "1", "--json"]].concat(), &[]).run()
    };
    assert_eq!(kinds(&events(&call(&["--all"]))), [("restored", Some(3)), ("ended", None)]);
    std::fs::rename(away(1), place.commit(1, 1)).unwrap();
    call(&[]).expect_code(10);
    let late = [("restored", Some(1)), ("removed", Some(1)), ("ended", None)];
    assert_eq!(kinds(&events(&call(&["--all"]))), late);
    let latest = std::fs::read_link(place.path("followed/latest")).unwrap();
    assert_eq!(latest.to_str().unwrap(), "000000000003.a1/step_3");
    call(&["--all"]).expect_code(10);
    // One whose command was interrupted is finished from what was restored, also if it is removed by then.
    std::fs::rename(away(2), place.commit(2, 1)).unwrap();
    let options = ["--all", "--keep", "1", "--interval", "1s"];
    let mut running = follow(&place, &options, &["sh", "-c", "echo run >> log; sleep 100 & wait"]).start();
    running.wait_until("the command runs", || place.path("log").exists());
    running.signal(Signal::TERM);
    running.wait().expect_code(130);
    std::fs::rename(place.commit(2, 1), away(2)).unwrap();
    let late = [("restored", Some(2)), ("removed", Some(2)), ("ended", None)];
    assert_eq!(kinds(&events(&call(&["--all"]))), late);
}

#[test]
fn a_failing_command_is_tried_again_and_does_not_stop_the_next_step() {
    let place = Place::new();
    place.push_steps(&[1, 2, 3, 4]);
    let script = "echo out {step}; echo err >&2; test {step} != 2 || exit 7";
    let options = ["--all", "--every", "2", "--retries", "1", "--timeout", "0s", "--json"];
    let outcome = follow(&place, &options, &["sh", "-c", script]).run().expect_code(3);
    let found = events(&outcome);
    let expected = [
        ("restored", Some(2)),
        ("retrying", Some(2)),
        ("failed", Some(2)),
        ("restored", Some(4)),
        ("finished", Some(4)),
        ("ended", None),
    ];
    assert_eq!(kinds(&found), expected);
    let failed = json!({ "exit_code": 7, "tries": 2, "output": "out 2\nerr\n", "reason": "exit code 7" });
    assert_members(&found[2], &failed);
    assert_members(&found[4], &json!({ "exit_code": 0, "tries": 1, "reason": null }));
    outcome.expect_stderr(&["out 2\nerr\n"]);
    let again = events(&follow(&place, &options, &["sh", "-c", script]).run().expect_code(10));
    assert_eq!(kinds(&again), [("error", None)]);
    assert_eq!(again[0]["error"]["kind"], "not-found", "{again:?}");
}

#[test]
fn a_command_that_takes_too_long_is_ended_and_counts_as_failed() {
    let place = Place::new();
    place.push_steps(&[1]);
    let options = ["--once", "--retries", "0", "--command-timeout", "300ms", "--grace", "300ms", "--json"];
    let script = "trap '' TERM; sleep 100 & wait; sleep 100";
    let outcome = follow(&place, &options, &["sh", "-c", script]).run().expect_code(1);
    let found = events(&outcome);
    assert_eq!(kinds(&found), [("restored", Some(1)), ("failed", Some(1))]);
    let reason = "it ran for too long, and was killed because it did not exit";
    assert_members(&found[1], &json!({ "exit_code": 137, "reason": reason }));
}

#[test]
fn a_signal_between_steps_ends_it_and_one_while_the_command_runs_reaches_the_command() {
    let place = Place::new();
    place.push_steps(&[1]);
    let script = "trap 'echo asked >> log; exit 1' TERM; echo run >> log; sleep 100 & wait";
    let mut running = follow(&place, &["--interval", "1s"], &["sh", "-c", script]).start();
    running.wait_until("the command runs", || place.path("log").exists());
    running.signal(Signal::TERM);
    running.wait().expect_code(130).expect_stderr(&["step 1 (attempt 1) is not finished: SIGTERM"]);
    assert_eq!(place.read("log"), "run\nasked\n");
    // It was not finished: the next start runs it again, from what is there.
    let script = "echo again >> log";
    let mut waiting = follow(&place, &["--interval", "1s"], &["sh", "-c", script]).start();
    waiting.wait_for_log("the command succeeded for step 1");
    waiting.signal(Signal::TERM);
    let ended = waiting.wait().expect_code(0);
    ended.expect_stderr(&["step 1 (attempt 1) of 'demo/a' is in ", "following 'demo/a' ends: SIGTERM"]);
    assert_eq!(place.read("log"), "run\nasked\nagain\n");
}

#[test]
fn one_that_was_killed_continues_where_it_was() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    let script = "echo {step} >> log; test {step} = 1 || sleep 100";
    let mut running = follow(&place, &["--all"], &["sh", "-c", script]).start();
    running.wait_until("the second step", || place.path("log").exists() && place.read("log") == "1\n2\n");
    running.kill();
    follow(&place, &["--all", "--timeout", "0s"], &["sh", "-c", "echo {step} >> log"]).run().expect_code(0);
    assert_eq!(place.read("log"), "1\n2\n2\n");
}

#[test]
fn a_remote_that_is_away_is_named_once_and_waited_for() {
    let place = Place::new();
    place.push_steps(&[1]);
    let remote = place.path("remote");
    let away = place.path("away");
    std::fs::rename(&remote, &away).unwrap();
    let unreachable = follow(&place, &["--timeout", "0s"], &[]).run().expect_code(12);
    unreachable.expect_stderr(&["is waited for: "]);
    let mut waiting = follow(&place, &["--once", "--interval", "1s"], &[]).start();
    waiting.wait_for_log("is waited for");
    std::thread::sleep(std::time::Duration::from_secs(4));
    std::fs::rename(&away, &remote).unwrap();
    let ended = waiting.wait().expect_code(0);
    assert_eq!(ended.stderr.matches("is waited for").count(), 1, "{}", ended.stderr);
    ended.expect_stderr(&["file-remote answers again"]).expect_stdout(&["restored step 1 (attempt 1)"]);
}

#[test]
fn a_step_that_cannot_be_restored_is_skipped_and_an_older_one_is_followed() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    damage(&place.remote_file("step_2", "model.bin"));
    let outcome = follow(&place, &["--once", "--json"], &[]).run().expect_code(0);
    let found = events(&outcome);
    assert_eq!(kinds(&found), [("skipped", Some(2)), ("restored", Some(1))]);
    assert!(found[0]["reason"].as_str().unwrap().contains("no valid checkpoint"), "{found:#?}");
    follow(&place, &["--timeout", "0s"], &[]).run().expect_code(10);
}

#[test]
fn what_has_the_name_of_a_step_is_left_and_the_step_is_skipped() {
    let place = Place::new();
    place.push_steps(&[1]);
    place.write("followed/000000000001.a1/mine.txt", "mine");
    let outcome = follow(&place, &["--timeout", "0s"], &[]).run().expect_code(10);
    outcome.expect_stderr(&["step 1 (attempt 1) is skipped", "that this command did not put there"]);
    assert_eq!(place.read("followed/000000000001.a1/mine.txt"), "mine");
}

#[test]
fn a_reader_confirms_each_step() {
    let place = Place::new();
    place.push_steps(&[1]);
    let confirm = |reader: &str| {
        let call = "stepvault follow --into followed --run demo/a --confirm --json --interval 1s";
        let line = format!("{{ {reader}; }} | {call} --remote {}", place.remote());
        let outcome = place.shell(&line).run().expect_code(0);
        events(&outcome)
    };
    let restored = "until [ -e followed/latest ]; do sleep 0.1; done; sleep 1";
    assert_eq!(kinds(&confirm(restored)), [("restored", Some(1)), ("ended", None)]);
    let confirmed = "until [ -e followed/latest ]; do sleep 0.1; done; sleep 1; echo; sleep 1";
    assert_eq!(kinds(&confirm(confirmed)), [("restored", Some(1)), ("ended", None)]);
    assert_eq!(kinds(&confirm("sleep 2")), [("ended", None)]);
    // One that goes away at once does not keep it running. Whether a new step is restored before that is seen, depends on
    // the machine: here there is none.
    assert_eq!(kinds(&confirm("true")), [("ended", None)]);
}

#[test]
fn bad_input_is_2_and_a_second_follower_is_13() {
    let place = Place::new();
    place.push_steps(&[1]);
    follow(&place, &["--interval", "2h"], &[]).run().expect_code(2).expect_stderr(&["from 1s to 1h"]);
    follow(&place, &["--keep", "0"], &[]).run().expect_code(2);
    let none = follow(&place, &["--once"], &["./no-such-program"]).run().expect_code(2);
    none.expect_stderr(&["cannot start the command: ./no-such-program"]);
    place.run(&["follow", "--into", "x", "--run", "demo/a", "--local", "none"]).expect_code(2);
    let mut waiting = follow(&place, &["--interval", "1s"], &["sleep", "100"]).start();
    waiting.wait_for_log("step 1 (attempt 1) of 'demo/a' is in ");
    follow(&place, &["--once"], &[]).run().expect_code(13).expect_stderr(&["let each follower have"]);
    waiting.kill();
    let other = ["follow", "--into", "followed", "--run", "other", "--remote", &place.remote(), "--once"];
    wait_until("the lock is free", || place.run(&other).code == 2);
    place.run(&other).expect_code(2).expect_stderr(&["it follows run 'demo/a'"]);
}

#[test]
fn a_run_that_is_mistyped_is_named_once() {
    let place = Place::new();
    place.push_steps(&[1]);
    let remote = place.remote();
    let words = ["follow", "--into", "x", "--run", "demo/b", "--remote", &remote, "--timeout", "0s"];
    place.run(&words).expect_code(10).expect_stderr(&["did you mean --run demo/a?"]);
}

//! `announce`, `wait`, `drain` and `status` with a running agent, a frozen one, one that never answers, and none.

use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use stepvault_testkit::tree::set_mode;
use stepvault_testkit::users::NOBODY;

use crate::support::{Place, TestProcess, assert_members};

/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_mins(2);

/// Starts an agent over `checkpoints`.
fn start_agent(place: &Place) -> TestProcess {
    std::fs::create_dir_all(place.path("checkpoints")).unwrap();
    let remote = place.remote();
    let configuration = format!(
        "node = \"node-0\"\n[local]\ndirectory = \"vault\"\n[remote.main]\nurl = \"{remote}\"\n\
         [run.\"demo/a\"]\nwatch = \"checkpoints\"\ncomplete = \"quiet\"\nquiet-time = \"1h\"\n"
    );
    place.write("stepvault.toml", configuration);
    let agent = place.start_agent(&["--json"], &[]);
    place.agent_status(&[]);
    agent
}

#[test]
fn a_step_is_announced_sealed_and_durable_and_the_agent_drains() {
    let place = Place::new();
    let agent = start_agent(&place);
    place.checkpoint("step_7", "x");
    let announced = place.document(0, &["announce", "checkpoints/step_7", "--wait-for", "durable"]);
    assert_eq!(announced["state"], "sealed");
    assert_members(&announced, &json!({ "step": 7, "attempt": 1, "newly_sealed": true }));
    assert_eq!(announced["wait"]["outcome"], "reached");
    assert!(place.remote_file("step_7", "model.bin").exists());
    let outcome = place.run(&["wait", "7", "--for", "durable"]).expect_code(0);
    assert_eq!(outcome.stdout, "step 7 (attempt 1) of 'demo/a' is durable\n");
    let again = place.run(&["announce", "checkpoints/step_7"]).expect_code(0);
    assert!(again.stdout.starts_with("step 7 (attempt 1) of 'demo/a' was already sealed: "), "{again:?}");
    place
        .run(&["announce", "checkpoints/step_8"])
        .expect_code(2)
        .expect_error("announce the step after it is written");

    let status = place.document(0, &["status"]);
    assert_eq!(status["agent"]["serves_run"], true);
    assert_eq!(status["agent"]["process_id"], agent.id());
    place.run(&["status", "--quiet"]).expect_code(0);
    let shown = place.run(&["status"]).expect_code(0);
    let line = format!("\nagent  process {}, since ", agent.id());
    shown.expect_stdout(&[&line]);

    let drained = place.document(0, &["drain", "--wait"]);
    assert_members(&drained, &json!({ "ended": true, "durable": true }));
    agent.wait().expect_code(0);
    place.run(&["drain"]).expect_code(12).expect_error("cannot reach the agent");
    assert!(place.run(&["status", "--json"]).json()["agent"].is_null());
    place.run(&["status", "--quiet"]).expect_code(12);
    place.succeed(&["wait", "7", "--for", "durable"]);
}

#[test]
fn without_an_agent_the_records_answer() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    place.write("file", "");
    let broken = format!("broken=file://{}", place.path("file/remote").display());
    place.run_here(&["push", "checkpoints/step_1", "--remote", &broken]).expect_code(3);
    let wait = |arguments: &[&str]| {
        let more = ["--local", ".stepvault", "--remote", broken.as_str()];
        place.run_here(&[&["wait"], arguments, &more].concat())
    };
    wait(&["1", "--for", "staged"]).expect_code(0);
    let late = wait(&["1", "--for", "durable", "--timeout", "1s"]).expect_code(12);
    assert_eq!(late.stdout, "step 1 (attempt 1) of 'demo/a' is staged, not durable yet\n  broken: missing\n");
    let late = wait(&["1", "--for", "durable", "--timeout", "0s", "--json"]).expect_code(12);
    let document = late.json();
    assert_members(&document, &json!({ "outcome": "late", "reached": "staged" }));
    assert_eq!(document["remotes"][1]["reached"], "durable");
    // No step has this number; one of the two remotes could say so.
    wait(&["2", "--for", "staged", "--timeout", "0s"]).expect_code(10);
    wait(&["1", "--attempt", "2", "--for", "staged", "--timeout", "1s"]).expect_code(10);
    wait(&["1", "--for", "safe"]).expect_code(2);
    wait(&["1", "--timeout", "0s"]).expect_code(12);

    // On another machine there is no vault: what is committed counts.
    place.push_steps(&[3]);
    let there = place.run_here(&["wait", "3", "--for", "durable"]).expect_code(0);
    assert_eq!(there.stdout, "step 3 (attempt 1) of 'demo/a' is durable\n");
    let none = place.run_here(&["wait", "4", "--for", "durable", "--timeout", "1s"]).expect_code(10);
    assert_eq!(none.stdout, "no step 4 of 'demo/a' was found\n");
    place
        .run(&["wait", "3", "--for", "durable", "--run", "demo/a"])
        .expect_code(2)
        .expect_error("no tier selected");
}

#[test]
fn a_remote_that_cannot_be_reached_does_not_hold_the_wait() {
    let place = Place::new();
    // Nobody listens on port 1, and the remote would be tried for an hour.
    let remote = "s3://bucket/prefix?endpoint=http://127.0.0.1:1&region=us-east-1&retry-deadline=1h";
    let begun = Instant::now();
    let wait = ["wait", "1", "--for", "durable", "--timeout", "3s", "--json"];
    let waited = place
        .command(wait)
        .args(["--remote", remote, "--run", "a"])
        .env("AWS_ACCESS_KEY_ID", "AKIACANARY")
        .env("AWS_SECRET_ACCESS_KEY", "canary-secret")
        .run()
        .expect_code(12);
    assert!(begun.elapsed() < PATIENCE);
    let printed = waited.stdout + &waited.stderr;
    assert!(!printed.contains("canary-secret"), "{printed}");
}

#[test]
fn a_socket_that_takes_connections_and_never_answers_holds_nobody() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    place.succeed_here(&["push", "checkpoints/step_1"]);
    let listener = UnixListener::bind(place.path(".stepvault/agent.sock")).unwrap();
    let silent = std::thread::spawn(move || {
        // Kept open until the last has come, and never read.
        let taken: Vec<_> = listener.incoming().take(5).collect();
        taken.len()
    });
    let here = |arguments: &[&str]| place.run_here(&[arguments, &["--local", ".stepvault"]].concat());
    let begun = Instant::now();
    here(&["wait", "1", "--for", "durable", "--timeout", "30s"]).expect_code(0);
    here(&["wait", "2", "--for", "durable", "--timeout", "2s"]).expect_code(10);
    assert!(here(&["status", "--json"]).expect_code(0).json()["agent"].is_null());
    here(&["drain"]).expect_code(12).expect_error("it did not answer within 10 s");
    assert!(begun.elapsed() < PATIENCE);
    // The four before were those of the commands.
    UnixStream::connect(place.path(".stepvault/agent.sock")).unwrap();
    assert_eq!(silent.join().unwrap(), 5);
}

#[test]
fn a_frozen_agent_does_not_hold_the_wait() {
    let place = Place::new();
    let agent = start_agent(&place);
    place.checkpoint("step_7", "x");
    place.succeed(&["announce", "checkpoints/step_7", "--wait-for", "durable"]);
    agent.signal(Signal::STOP);
    let begun = Instant::now();
    place.succeed(&["wait", "7", "--for", "durable", "--timeout", "20s"]);
    place.run(&["wait", "8", "--for", "durable", "--timeout", "2s"]).expect_code(10);
    assert!(begun.elapsed() < PATIENCE);
    agent.signal(Signal::CONT);
    place.succeed(&["drain", "--wait"]);
    agent.wait().expect_code(0);
}

#[test]
fn another_user_is_refused() {
    let place = Place::on_disk();
    let agent = start_agent(&place);
    let socket = place.path("vault/agent.sock");
    let configuration = place.path("stepvault.toml");
    let arguments = ["drain", "--config", configuration.to_str().unwrap()];
    let Some(drain) = place.command_of(NOBODY, &arguments) else {
        return;
    };
    // Everything but the socket is open to them.
    set_mode(&place.path("vault"), 0o755);
    drain.run().expect_code(12).expect_stderr(&["Permission denied"]);
    // And if its mode is lost, the agent asks who asks.
    set_mode(&socket, 0o666);
    drain.run().expect_code(1).expect_stderr(&[
        "this user may not control the agent: the request came from user 65534, and the agent runs as user 0",
    ]);
    let status = place.document(0, &["status"]);
    assert!(status["agent"]["stopping"].is_null(), "{status:#}");
    place.succeed(&["drain", "--wait"]);
    agent.wait().expect_code(0);
}

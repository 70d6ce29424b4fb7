//! `announce`, `wait`, `drain` and `status` with a running agent, a frozen one, one that never answers, and none.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Outcome, Place};

/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_mins(2);

/// An agent of the built binary over `checkpoints`, ended with the test.
struct Agent {
    process: Child,
}

impl Agent {
    fn start(place: &Place) -> Self {
        std::fs::create_dir_all(place.path("checkpoints")).unwrap();
        let remote = place.remote();
        std::fs::write(
            place.path("stepvault.toml"),
            format!(
                "node = \"node-0\"\n[local]\ndirectory = \"vault\"\n[remote.main]\nurl = \"{remote}\"\n\
                 [run.\"demo/a\"]\nwatch = \"checkpoints\"\ncomplete = \"quiet\"\nquiet-time = \"1h\"\n"
            ),
        )
        .unwrap();
        let mut command = place.command(&["agent", "--json"]);
        let process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let agent = Self { process };
        let begun = Instant::now();
        while place.run(&["status", "--json"]).json_or_null()["agent"].is_null() {
            assert!(begun.elapsed() < PATIENCE, "the agent does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        agent
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.process.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    /// Its exit code, once it has ended by itself.
    fn ended(mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_step_is_announced_sealed_and_durable_and_the_agent_drains() {
    let place = Place::new();
    let agent = Agent::start(&place);
    place.checkpoint("step_7", "x");
    let announced = place
        .run(&[
            "announce",
            "checkpoints/step_7",
            "--wait-for",
            "durable",
            "--json",
        ])
        .expect_code(0)
        .json();
    assert_eq!(announced["state"], "sealed");
    assert_eq!(
        (
            &announced["step"],
            &announced["attempt"],
            &announced["newly_sealed"]
        ),
        (&7.into(), &1.into(), &true.into())
    );
    assert_eq!(announced["wait"]["outcome"], "reached");
    assert!(place.remote_file("step_7", "model.bin").exists());
    let outcome = place.run(&["wait", "7", "--for", "durable"]).expect_code(0);
    assert_eq!(outcome.stdout, "step 7 (attempt 1) of 'demo/a' is durable\n");
    let again = place.run(&["announce", "checkpoints/step_7"]).expect_code(0);
    assert!(
        again
            .stdout
            .starts_with("step 7 (attempt 1) of 'demo/a' was already sealed: "),
        "{again:?}"
    );
    place
        .run(&["announce", "checkpoints/step_8"])
        .expect_code(2)
        .expect_error("announce the step after it is written");

    let status = place.run(&["status", "--json"]).expect_code(0).json();
    assert_eq!(status["agent"]["serves_run"], true);
    assert_eq!(status["agent"]["process_id"], agent.process.id());
    let shown = place.run(&["status"]).expect_code(0);
    let line = format!("\nagent  process {}, since ", agent.process.id());
    assert!(shown.stdout.contains(&line), "{shown:?}");

    let drained = place.run(&["drain", "--wait", "--json"]).expect_code(0).json();
    assert_eq!(
        (&drained["ended"], &drained["safe"]),
        (&true.into(), &true.into())
    );
    assert_eq!(agent.ended(), Some(0));
    place
        .run(&["drain"])
        .expect_code(12)
        .expect_error("cannot reach the agent");
    assert!(place.run(&["status", "--json"]).json()["agent"].is_null());
    place.run(&["wait", "7", "--for", "durable"]).expect_code(0);
}

#[test]
fn without_an_agent_the_records_answer() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    std::fs::write(place.path("file"), "").unwrap();
    let broken = format!("broken=file://{}", place.path("file/remote").display());
    place
        .run_here(&["push", "checkpoints/step_1", "--remote", &broken])
        .expect_code(3);
    let wait = |arguments: &[&str]| {
        let more = ["--local", ".stepvault", "--remote", broken.as_str()];
        place.run_here(&[&["wait"], arguments, &more].concat())
    };
    wait(&["1", "--for", "staged"]).expect_code(0);
    let late = wait(&["1", "--for", "durable", "--timeout", "1s"]).expect_code(12);
    assert_eq!(
        late.stdout,
        "step 1 (attempt 1) of 'demo/a' is staged, not durable yet\n  broken: missing\n"
    );
    let late = wait(&["1", "--for", "durable", "--timeout", "0s", "--json"]).expect_code(12);
    let document = late.json();
    assert_eq!(
        (&document["outcome"], &document["reached"]),
        (&"late".into(), &"staged".into())
    );
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
    let none = place
        .run_here(&["wait", "4", "--for", "durable", "--timeout", "1s"])
        .expect_code(10);
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
    let mut command = place.command(&["wait", "1", "--for", "durable", "--timeout", "3s", "--json"]);
    command.args(["--remote", remote, "--run", "a"]);
    command
        .env("AWS_ACCESS_KEY_ID", "AKIACANARY")
        .env("AWS_SECRET_ACCESS_KEY", "canary-secret");
    let output = command.output().unwrap();
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(output.status.code(), Some(12), "{output:?}");
    let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!printed.contains("canary-secret"), "{printed}");
}

#[test]
fn a_socket_that_takes_connections_and_never_answers_holds_nobody() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    place.run_here(&["push", "checkpoints/step_1"]).expect_code(0);
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
    here(&["drain"])
        .expect_code(12)
        .expect_error("it did not answer within 10 s");
    assert!(begun.elapsed() < PATIENCE);
    // The four before were those of the commands.
    UnixStream::connect(place.path(".stepvault/agent.sock")).unwrap();
    assert_eq!(silent.join().unwrap(), 5);
}

#[test]
fn a_frozen_agent_does_not_hold_the_wait() {
    let place = Place::new();
    let agent = Agent::start(&place);
    place.checkpoint("step_7", "x");
    place
        .run(&["announce", "checkpoints/step_7", "--wait-for", "durable"])
        .expect_code(0);
    agent.signal("STOP");
    let begun = Instant::now();
    place
        .run(&["wait", "7", "--for", "durable", "--timeout", "20s"])
        .expect_code(0);
    place
        .run(&["wait", "8", "--for", "durable", "--timeout", "2s"])
        .expect_code(10);
    assert!(begun.elapsed() < PATIENCE);
    agent.signal("CONT");
    place.run(&["drain", "--wait"]).expect_code(0);
    assert_eq!(agent.ended(), Some(0));
}

#[test]
fn another_user_is_refused() {
    let place = Place::new();
    let agent = Agent::start(&place);
    let socket = place.path("vault/agent.sock");
    let as_nobody = |place: &Place| {
        let binary = env!("CARGO_BIN_EXE_stepvault");
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            binary,
            "drain",
        ]);
        command.args(["--config", place.path("stepvault.toml").to_str().unwrap()]);
        let output = command
            .current_dir("/")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .output();
        let output = output.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !stderr.starts_with("setpriv"),
            "this test has to run as root: {stderr}"
        );
        (output.status.code(), stderr)
    };
    // Everything but the socket is opened to them.
    let open = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for directory in [place.path(""), place.path("vault")] {
        open(&directory, 0o755);
    }
    let (code, stderr) = as_nobody(&place);
    assert_eq!(code, Some(12), "{stderr}");
    assert!(stderr.contains("Permission denied"), "{stderr}");
    // And if its mode is lost, the agent asks who asks.
    open(&socket, 0o666);
    let (code, stderr) = as_nobody(&place);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains(
            "this user may not control the agent: the request came from user 65534, and the agent runs as \
             user 0"
        ),
        "{stderr}"
    );
    let status = place.run(&["status", "--json"]).expect_code(0).json();
    assert!(status["agent"]["stopping"].is_null(), "{status:#}");
    place.run(&["drain", "--wait"]).expect_code(0);
    assert_eq!(agent.ended(), Some(0));
}

impl Outcome {
    /// The document, or nothing where none was printed.
    fn json_or_null(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_default()
    }
}

//! The agent with renamed runs, deleted vaults, shared run names and misspelt buckets: it reports what is not durable,
//! and continues once it can.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::support::{Outcome, Place};

const PATIENCE: Duration = Duration::from_mins(1);
/// A remote that answers nobody.
const GONE: &str = "main=s3://bucket/prefix?endpoint=http://127.0.0.1:1&retry-deadline=1s";

/// An agent of the built binary with a configuration, a vault and a log of its own.
struct Agent {
    process: Child,
    log: PathBuf,
    name: &'static str,
}

impl Agent {
    /// `name` names everything it has; `run` is appended to the table of its run `demo/a`.
    fn start(
        place: &Place,
        name: &'static str,
        remote: &str,
        run: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        configure(place, name, remote, run);
        Self::start_again(place, name, environment)
    }

    fn start_again(place: &Place, name: &'static str, environment: &[(&str, &str)]) -> Self {
        let log = place.path(&format!("{name}.log"));
        let process = place
            .command(&["agent", "--config", &format!("{name}.toml")])
            .env("STEPVAULT_AGENT_POLL_INTERVAL", "200ms")
            .envs(environment.iter().copied())
            .stderr(std::fs::File::create(&log).unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { process, log, name }
    }

    fn until_logged(&mut self, text: &str) {
        let begun = Instant::now();
        loop {
            let log = std::fs::read_to_string(&self.log).unwrap();
            if log.contains(text) {
                return;
            }
            let ended = self.process.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < PATIENCE,
                "{text}: {ended:?}\n{log}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The agent's own part of `status --json`, once it answers.
    fn status(&self, place: &Place) -> Value {
        let config = format!("{}.toml", self.name);
        let begun = Instant::now();
        loop {
            let told = place.run(&["status", "--json", "--config", &config]);
            if let Ok(document) = serde_json::from_str::<Value>(&told.stdout)
                && !document["agent"].is_null()
            {
                return document["agent"].clone();
            }
            assert!(begun.elapsed() < PATIENCE, "{told:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn drain(mut self, place: &Place) -> Outcome {
        let config = format!("{}.toml", self.name);
        let told = place.run(&["drain", "--wait", "--deadline", "10s", "--config", &config]);
        self.process.wait().unwrap();
        told
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn configure(place: &Place, name: &str, remote: &str, run: &str) {
    std::fs::create_dir_all(place.path(&format!("out-{name}"))).unwrap();
    let (remote_name, url) = remote.split_once('=').unwrap();
    let text = format!(
        "node = \"{name}\"\n[local]\ndirectory = \"vault-{name}\"\n[remote.{remote_name}]\nurl = \"{url}\"\n\
         [run.\"demo/a\"]\nwatch = \"out-{name}\"\ncomplete = \"rename\"\n{run}"
    );
    std::fs::write(place.path(&format!("{name}.toml")), text).unwrap();
}

fn save(place: &Place, name: &str, step: &str) {
    let made = place.checkpoint(&format!("{name}-{step}"), &format!("{name} {step}"));
    std::fs::rename(made, place.path(&format!("out-{name}")).join(step)).unwrap();
}

/// As `rm -r` does it, called again where the agent has just written something.
fn delete_vault(place: &Place) {
    let begun = Instant::now();
    while std::fs::remove_dir_all(place.path("vault-n")).is_err() {
        assert!(begun.elapsed() < PATIENCE);
    }
}

fn main_remote(place: &Place) -> String {
    format!("main={}", place.remote())
}

#[test]
fn a_round_is_not_safe_while_the_vault_holds_undurable_steps_of_a_run_that_was_renamed() {
    let place = Place::new();
    configure(&place, "n", GONE, "");
    save(&place, "n", "step_1");
    place
        .run(&["agent", "--once", "--config", "n.toml"])
        .expect_code(3);
    // The remote answers again, and the run has another name by now.
    configure(&place, "n", &main_remote(&place), "");
    let text = std::fs::read_to_string(place.path("n.toml")).unwrap();
    std::fs::remove_dir_all(place.path("out-n")).unwrap();
    std::fs::write(place.path("n.toml"), text.replace("demo/a", "demo/renamed")).unwrap();
    let told = place
        .run(&["agent", "--once", "--config", "n.toml"])
        .expect_code(3);
    assert!(
        told.stdout.contains("'stepvault agent --once --run demo/a'")
            && told.stdout.contains("1 step of the run 'demo/a'"),
        "{told:?}"
    );
    let document = place
        .run(&["agent", "--once", "--json", "--config", "n.toml"])
        .expect_code(3)
        .json();
    assert_eq!(document["safe"], false);
    assert_eq!(document["unserved"][0]["run"], "demo/a");
    assert_eq!(document["not_durable"][0]["run"], "demo/a");
    let shown = place.run(&["status", "--config", "n.toml"]).expect_code(0).stdout;
    assert!(
        shown.contains("other  the vault holds 1 step of the run 'demo/a'"),
        "{shown}"
    );
    // What the hint says helps.
    place
        .run(&["agent", "--once", "--config", "n.toml", "--run", "demo/a"])
        .expect_code(0);
    place
        .run(&["agent", "--once", "--config", "n.toml"])
        .expect_code(0);
}

#[test]
fn a_round_is_not_safe_while_a_finished_step_cannot_be_sealed() {
    let place = Place::new();
    configure(&place, "n", &main_remote(&place), "");
    save(&place, "n", "step_1");
    let made = place.checkpoint("n-step_2", "two");
    assert!(
        Command::new("mkfifo")
            .arg(made.join("pipe"))
            .status()
            .unwrap()
            .success()
    );
    std::fs::rename(made, place.path("out-n/step_2")).unwrap();
    let told = place
        .run(&["agent", "--once", "--json", "--config", "n.toml"])
        .expect_code(3)
        .json();
    assert_eq!(told["not_durable"], serde_json::json!([]));
    let path = told["unsealed"][0]["path"].as_str().unwrap();
    assert!(path.ends_with("out-n/step_2"), "{told:#}");
    // The same of a drain.
    let agent = Agent::start_again(&place, "n", &[]);
    let begun = Instant::now();
    while agent.status(&place)["unsealed"] == serde_json::json!([]) {
        assert!(begun.elapsed() < PATIENCE);
    }
    let told = agent.drain(&place).expect_code(3);
    assert!(told.stdout.contains("step_2 is not sealed"), "{told:?}");
    std::fs::remove_file(place.path("out-n/step_2/pipe")).unwrap();
    place
        .run(&["agent", "--once", "--config", "n.toml"])
        .expect_code(0);
}

#[test]
fn a_round_is_not_safe_while_a_sealed_step_cannot_be_read() {
    let place = Place::new();
    configure(&place, "n", GONE, "");
    save(&place, "n", "step_1");
    place
        .run(&["agent", "--once", "--config", "n.toml"])
        .expect_code(3);
    std::fs::write(
        place.path("vault-n/runs/demo%2Fa/steps/000000000001.a1/seal.json"),
        "rot",
    )
    .unwrap();
    std::fs::remove_dir_all(place.path("out-n/step_1")).unwrap();
    configure(&place, "n", &main_remote(&place), "");
    let told = place
        .run(&["agent", "--once", "--json", "--config", "n.toml"])
        .expect_code(3)
        .json();
    assert_eq!(told["unreadable"].as_array().unwrap().len(), 1, "{told:#}");
}

#[test]
fn a_bucket_that_somebody_creates_later_gets_every_step_without_a_restart() {
    let (place, server) = (Place::new(), StrictS3::start());
    server.create_bucket("bucket");
    let no_bucket = || {
        for method in ["GET", "HEAD", "PUT", "POST"] {
            let refusal = FaultAction::refuse(404, "NoSuchBucket");
            server.faults().inject(method, "", u64::MAX, refusal);
        }
    };
    no_bucket();
    let remote = format!(
        "s3=s3://bucket/prefix?endpoint={}&region=us-east-1",
        server.endpoint()
    );
    let keys = [
        ("AWS_ACCESS_KEY_ID", server.access_key()),
        ("AWS_SECRET_ACCESS_KEY", server.secret_key()),
    ];
    let mut agent = Agent::start(&place, "n", &remote, "", &keys);
    save(&place, "n", "step_1");
    agent.until_logged("is not durable on s3");
    let told = &agent.status(&place)["remotes"][0];
    assert_eq!(
        (&told["needs_operator"], &told["error_kind"]),
        (&Value::Bool(true), &Value::from("usage"))
    );
    let shown = place.run(&["status", "--config", "n.toml"]).expect_code(0).stdout;
    assert!(
        shown.contains("an operator must resolve this; retried"),
        "{shown}"
    );
    // It is tried again.
    let begun = Instant::now();
    while server.faults().requests().len() < 6 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    server.faults().clear();
    agent.until_logged("s3: step 1 (attempt 1) is durable");
    assert_eq!(
        std::fs::read_to_string(&agent.log)
            .unwrap()
            .matches("is not durable on s3")
            .count(),
        1
    );
    // A drain does not wait for a person.
    no_bucket();
    save(&place, "n", "step_2");
    agent.until_logged("step 2 (attempt 1) of demo/a is not durable on s3");
    let begun = Instant::now();
    agent.drain(&place).expect_code(3);
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
}

#[test]
fn a_vault_that_is_deleted_under_the_agent_is_begun_anew_and_nothing_half_is_left() {
    let place = Place::new();
    let mut agent = Agent::start(&place, "n", &main_remote(&place), "", &[]);
    save(&place, "n", "step_1");
    agent.until_logged("main: step 1 (attempt 1) is durable");
    delete_vault(&place);
    agent.until_logged("was deleted or replaced under the agent: every step in it was durable");
    agent.until_logged("creating a new vault");
    save(&place, "n", "step_2");
    agent.until_logged("main: step 2 (attempt 1) is durable");
    assert_eq!(agent.status(&place)["serves_run"], true);
    for name in ["vault.json", "lock", "agent.sock", "runs"] {
        assert!(place.path("vault-n").join(name).exists(), "{name}");
    }
    // The new vault is locked as the old one was.
    place.run(&["agent", "--config", "n.toml"]).expect_code(13);
    agent.drain(&place).expect_code(0);
}

#[test]
fn what_was_lost_with_a_deleted_vault_is_not_called_safe() {
    let place = Place::new();
    let mut agent = Agent::start(&place, "n", GONE, "", &[]);
    save(&place, "n", "step_1");
    agent.until_logged("is not durable on main");
    // The trainer has deleted its own by then.
    std::fs::remove_dir_all(place.path("out-n/step_1")).unwrap();
    delete_vault(&place);
    agent.until_logged("it held 1 step that was not durable");
    agent.until_logged("creating a new vault");
    let told = agent.drain(&place).expect_code(3);
    assert!(told.stdout.contains("it was lost with the vault"), "{told:?}");
}

#[test]
fn of_two_agents_on_the_path_of_a_deleted_vault_one_goes_on() {
    let place = Place::new();
    let mut first = Agent::start(&place, "n", &main_remote(&place), "", &[]);
    save(&place, "n", "step_1");
    first.until_logged("main: step 1 (attempt 1) is durable");
    delete_vault(&place);
    // Another configuration file, the same vault.
    let text = std::fs::read_to_string(place.path("n.toml")).unwrap();
    std::fs::write(place.path("m.toml"), text).unwrap();
    let mut second = Agent::start_again(&place, "m", &[]);
    let begun = Instant::now();
    let code = loop {
        let ended = [&mut first.process, &mut second.process].map(|process| process.try_wait().unwrap());
        assert!(ended.iter().flatten().count() < 2, "both have ended");
        if let Some(status) = ended.into_iter().flatten().next() {
            break status.code();
        }
        assert!(begun.elapsed() < PATIENCE, "both go on");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(code, Some(13));
    save(&place, "n", "step_2");
    let begun = Instant::now();
    while !place
        .path("remote/demo/a/.stepvault/commits/000000000002.a1.json")
        .exists()
    {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_agent_warns_of_another_job_under_its_run_name_and_not_of_its_own_restart() {
    let place = Place::new();
    let remote = main_remote(&place);
    let mut first = Agent::start(&place, "one", &remote, "", &[("STEPVAULT_LAUNCH", "job-1")]);
    save(&place, "one", "step_1");
    first.until_logged("main: step 1 (attempt 1) is durable");
    let mut second = Agent::start(&place, "two", &remote, "", &[("STEPVAULT_LAUNCH", "job-2")]);
    second.until_logged("watching");
    std::thread::sleep(Duration::from_secs(1));
    save(&place, "two", "step_1");
    second.until_logged("main: step 1 (attempt 2) is durable");
    // It looks again with its own next step, or a minute later.
    save(&place, "one", "step_2");
    first.until_logged(
        "another training job writes this run on main: step 1 (attempt 2) was written by two, launch 'job-2'",
    );
    let told = &first.status(&place)["other_writers"][0];
    assert_eq!(
        (&told["launch"], &told["nodes"][0]),
        (&Value::from("job-2"), &Value::from("two"))
    );
    // Written after the second had begun, by a launch that is older.
    save(&place, "two", "step_2");
    second.until_logged("another training job writes this run on main");
    first.drain(&place).expect_code(0);
    second.drain(&place).expect_code(0);

    // The job again, on another node: what its earlier launch left is uploaded late, and is no other job's.
    save(&place, "two", "step_9");
    std::thread::sleep(Duration::from_millis(1100));
    let mut third = Agent::start(&place, "three", &remote, "", &[("STEPVAULT_LAUNCH", "job-3")]);
    third.until_logged("watching");
    std::thread::sleep(Duration::from_secs(1));
    let left = place
        .command(&["agent", "--once", "--config", "two.toml"])
        .env("STEPVAULT_LAUNCH", "job-2")
        .output();
    Outcome::of(left.unwrap()).expect_code(0);
    assert!(
        place
            .path("remote/demo/a/.stepvault/commits/000000000009.a2.json")
            .exists()
    );
    save(&place, "three", "step_3");
    third.until_logged("main: step 3 (attempt 3) is durable");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(third.status(&place)["other_writers"], serde_json::json!([]));
}

#[test]
fn an_exclusive_run_is_written_by_one_job_at_a_time() {
    let place = Place::new();
    let (remote, exclusive) = (main_remote(&place), "exclusive = true\n");
    let mut first = Agent::start(
        &place,
        "one",
        &remote,
        exclusive,
        &[("STEPVAULT_LAUNCH", "job-1")],
    );
    save(&place, "one", "step_1");
    first.until_logged("main: step 1 (attempt 1) is durable");
    let mut second = Agent::start(
        &place,
        "two",
        &remote,
        exclusive,
        &[("STEPVAULT_LAUNCH", "job-2")],
    );
    save(&place, "two", "step_7");
    second.until_logged(
        "another training job writes the run: 'demo/a' on main: the job of one in launch 'job-1'",
    );
    let push = place.checkpoint("step_8", "eight");
    let told = place
        .run(&[
            "push",
            push.to_str().unwrap(),
            "--config",
            "two.toml",
            "--local",
            "vault-three",
            "--node",
            "three",
        ])
        .expect_code(13);
    assert!(
        told.stderr.contains("another training job writes the run"),
        "{told:?}"
    );
    let commits = || {
        std::fs::read_dir(place.path("remote/demo/a/.stepvault/commits"))
            .unwrap()
            .count()
    };
    assert_eq!(commits(), 1);
    // Once the first has ended, the second goes on by itself.
    first.drain(&place).expect_code(0);
    let begun = Instant::now();
    while commits() < 2 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    second.drain(&place).expect_code(0);
}

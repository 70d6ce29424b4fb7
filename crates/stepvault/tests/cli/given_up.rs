//! A vault on a full disk with an unreachable remote: the oldest steps that are not durable are given up, which the
//! log, `status`, the agent's report and the next restore show.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Place, listed_steps};

const PATIENCE: Duration = Duration::from_mins(1);

/// A configuration with a mark that no disk reaches, and a remote that answers nobody.
fn configure(place: &Place, more: &str) {
    fs::create_dir_all(place.path("watched")).unwrap();
    let text = format!(
        "node = \"node-0\"\n[local]\ndirectory = \"vault\"\nfree-space-low = \"1000000 TB\"\n{more}\
         [remote.gone]\nurl = \"s3://bucket/prefix\"\nendpoint = \"http://127.0.0.1:1\"\nretry-deadline = \"1s\"\n\
         [run.\"demo/a\"]\nwatch = \"watched\"\ncomplete = \"rename\"\n"
    );
    fs::write(place.path("stepvault.toml"), text).unwrap();
}

/// The agent of the built binary, ended with the test.
struct Agent {
    process: Child,
    log: std::path::PathBuf,
}

impl Agent {
    fn start(place: &Place) -> Self {
        let log = place.path("agent.log");
        let mut command = place.command(&["agent", "--json"]);
        let process = command
            .env("STEPVAULT_AGENT_POLL_INTERVAL", "200ms")
            .env("STEPVAULT_AGENT_DRAIN_DEADLINE", "4s")
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .stderr(fs::File::create(&log).unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self { process, log }
    }

    fn until_logged(&mut self, text: &str) {
        let begun = Instant::now();
        loop {
            let log = self.logged();
            if log.contains(text) {
                return;
            }
            let ended = self.process.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < PATIENCE,
                "{text}: {ended:?}\n{log}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn logged(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Ends it; its code and its document.
    fn drain(mut self) -> (i32, Value) {
        kill_process(Pid::from_child(&self.process), Signal::USR1).unwrap();
        let mut text = String::new();
        let mut stdout = self.process.stdout.take().unwrap();
        std::io::Read::read_to_string(&mut stdout, &mut text).unwrap();
        let code = self.process.wait().unwrap().code().unwrap_or(-1);
        let document =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}: {}", self.logged()));
        (code, document)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Saves a step as a trainer does that keeps its last step alone.
fn save(place: &Place, agent: &mut Agent, step: u64) {
    let name = format!("step_{step}");
    let _ = fs::remove_dir_all(place.path("watched").join(format!("step_{}", step - 1)));
    let made = place.checkpoint(&name, &name);
    fs::rename(made, place.path("watched").join(&name)).unwrap();
    agent.until_logged(&format!("sealed step {step} (attempt 1)"));
}

fn in_vault(place: &Place) -> Vec<u64> {
    listed_steps(&place.run(&["list", "--json"]).json())
}

#[test]
fn what_a_full_disk_makes_the_vault_give_up_is_said_everywhere() {
    let place = Place::new();
    configure(&place, "");
    let mut agent = Agent::start(&place);
    save(&place, &mut agent, 1);
    // A pin holds, on the tiers that can be asked; which those are is said.
    let pinned = place.run(&["pin", "1", "--json"]).expect_code(3);
    let document = pinned.json();
    assert_eq!(document["changed"], serde_json::json!(["local"]), "{document:#}");
    assert_eq!(document["failed"][0]["tier"], "gone");
    save(&place, &mut agent, 2);
    save(&place, &mut agent, 3);
    agent.until_logged("gave up step 2 (attempt 1)");
    save(&place, &mut agent, 4);
    agent.until_logged("gave up step 3 (attempt 1)");
    assert!(
        agent.logged().contains("local.give-up-undurable = false"),
        "{}",
        agent.logged()
    );
    assert_eq!(in_vault(&place), [4, 1], "the newest and the pinned one stay");
    let list = place.run(&["list", "--json"]).json();
    assert_eq!(
        (
            &list["given_up"][0]["steps"][0]["step"],
            &list["given_up"][0]["steps"][1]["step"]
        ),
        (&3.into(), &2.into()),
        "{list:#}"
    );
    let listed = place.run(&["list"]).stdout;
    assert_eq!(listed.matches("given up by node-0").count(), 2, "{listed}");

    let status = place.run(&["status", "--json"]).expect_code(0).json();
    let given_up = &status["given_up"];
    assert_eq!(
        (
            &given_up["node"],
            &given_up["steps"][0]["step"],
            &given_up["steps"][1]["step"]
        ),
        (&"node-0".into(), &3.into(), &2.into()),
        "{status:#}"
    );
    let shown = place.run(&["status"]).expect_code(0).stdout;
    assert!(
        shown.contains("\nlost   node-0 gave up step 3 (attempt 1) of "),
        "{shown}"
    );

    let (code, document) = agent.drain();
    assert_eq!(
        (code, &document["given_up"]["total"]),
        (3, &2.into()),
        "{document:#}"
    );

    let restored = place
        .run(&["restore", "--into", "restored", "--json", "--local", "vault"])
        .expect_code(0)
        .json();
    assert_eq!(
        (&restored["step"], &restored["given_up"][0]["steps"][0]["step"]),
        (&4.into(), &3.into())
    );

    // Once a remote answers, the record is copied to it, so that a restore on another node reports it.
    let remote = place.remote();
    fs::write(
        place.path("stepvault.toml"),
        format!(
            "node = \"node-0\"\n[local]\ndirectory = \"vault\"\n[remote.main]\nurl = \"{remote}\"\n\
             [run.\"demo/a\"]\nwatch = \"watched\"\ncomplete = \"rename\"\n"
        ),
    )
    .unwrap();
    place.run(&["agent", "--once"]).expect_code(0);
    let elsewhere = place
        .run_here(&["restore", "--into", "elsewhere/checkpoints", "--local", "none"])
        .expect_code(0);
    assert!(
        elsewhere.stdout.contains("node-0 gave up step 3 (attempt 1) of ")
            && elsewhere.stdout.contains("restored step 4 (attempt 1)"),
        "{elsewhere:#?}"
    );
}

#[test]
fn a_policy_keeps_undurable_steps_whatever_the_disk_lacks() {
    let place = Place::new();
    configure(&place, "give-up-undurable = false\n");
    let mut agent = Agent::start(&place);
    for step in 1..=3 {
        save(&place, &mut agent, step);
    }
    agent.until_logged("short of free space: the remaining steps must be kept");
    let (code, document) = agent.drain();
    assert_eq!(
        (code, &document["given_up"]["total"]),
        (3, &0.into()),
        "{document:#}"
    );
    assert_eq!(in_vault(&place), [3, 2, 1]);
}

//! A vault on a full disk with an unreachable remote: the oldest steps that are not durable are given up, which the
//! log, `status`, the agent's report and the next restore show.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{ANY_KEYS, Place, TestProcess, listed_steps};

/// A configuration with a mark that no disk reaches, and a remote that answers nobody.
fn configure(place: &Place, more: &str) {
    std::fs::create_dir_all(place.path("watched")).unwrap();
    let text = format!(
        "node = \"node-0\"\n[local]\ndirectory = \"vault\"\nfree-space-low = \"1000000 TB\"\n{more}\
         [remote.gone]\nurl = \"s3://bucket/prefix\"\nendpoint = \"http://127.0.0.1:1\"\nretry-deadline = \"1s\"\n\
         [run.\"demo/a\"]\nwatch = \"watched\"\ncomplete = \"rename\"\n"
    );
    place.write("stepvault.toml", text);
}

fn start(place: &Place) -> TestProcess {
    let settings = [("STEPVAULT_AGENT_DRAIN_DEADLINE", "4s")];
    place.start_agent(&["--json"], &[&settings[..], &ANY_KEYS].concat())
}

/// Ends it; its document.
fn drained(agent: TestProcess) -> Value {
    agent.signal(Signal::USR1);
    agent.wait().expect_code(3).json()
}

/// Saves a step as a trainer does that keeps its last step alone.
fn save(place: &Place, agent: &mut TestProcess, step: u64) {
    let name = format!("step_{step}");
    place.remove(&format!("watched/step_{}", step - 1));
    place.save_into("watched", &name);
    agent.wait_for_log(&format!("sealed step {step} (attempt 1)"));
}

fn in_vault(place: &Place) -> Vec<u64> {
    listed_steps(&place.run(&["list", "--json"]).json())
}

#[test]
fn what_a_full_disk_makes_the_vault_give_up_is_said_everywhere() {
    let place = Place::new();
    configure(&place, "");
    let mut agent = start(&place);
    save(&place, &mut agent, 1);
    // A pin holds, on the tiers that can be asked; which those are is said.
    let pinned = place.run(&["pin", "1", "--json"]).expect_code(3);
    let document = pinned.json();
    assert_eq!(document["changed"], serde_json::json!(["local"]), "{document:#}");
    assert_eq!(document["failed"][0]["tier"], "gone");
    save(&place, &mut agent, 2);
    save(&place, &mut agent, 3);
    agent.wait_for_log("gave up step 2 (attempt 1)");
    save(&place, &mut agent, 4);
    agent.wait_for_log("gave up step 3 (attempt 1)");
    assert!(agent.logged().contains("local.give-up-undurable = false"), "{}", agent.logged());
    assert_eq!(in_vault(&place), [4, 1], "the newest and the pinned one stay");
    let list = place.run(&["list", "--json"]).json();
    assert_eq!(
        (&list["given_up"][0]["steps"][0]["step"], &list["given_up"][0]["steps"][1]["step"]),
        (&3.into(), &2.into()),
        "{list:#}"
    );
    let listed = place.run(&["list"]).stdout;
    assert_eq!(listed.matches("given up by node-0").count(), 2, "{listed}");

    let status = place.document(0, &["status"]);
    let given_up = &status["given_up"];
    assert_eq!(
        (&given_up["node"], &given_up["steps"][0]["step"], &given_up["steps"][1]["step"]),
        (&"node-0".into(), &3.into(), &2.into()),
        "{status:#}"
    );
    let shown = place.run(&["status"]).expect_code(0).stdout;
    assert!(shown.contains("\nlost   node-0 gave up step 3 (attempt 1) of "), "{shown}");

    assert_eq!(drained(agent)["given_up"]["total"], 2);

    let restored = place.document(0, &["restore", "--into", "restored", "--local", "vault"]);
    assert_eq!((&restored["step"], &restored["given_up"][0]["steps"][0]["step"]), (&4.into(), &3.into()));

    // Once a remote answers, the record is copied to it, so that a restore on another node reports it.
    let remote = place.remote();
    let configuration = format!(
        "node = \"node-0\"\n[local]\ndirectory = \"vault\"\n[remote.main]\nurl = \"{remote}\"\n\
         [run.\"demo/a\"]\nwatch = \"watched\"\ncomplete = \"rename\"\n"
    );
    place.write("stepvault.toml", configuration);
    place.succeed(&["agent", "--once"]);
    place
        .run_here(&["restore", "--into", "elsewhere/checkpoints", "--local", "none"])
        .expect_code(0)
        .expect_stdout(&["node-0 gave up step 3 (attempt 1) of ", "restored step 4 (attempt 1)"]);
}

#[test]
fn a_policy_keeps_undurable_steps_whatever_the_disk_lacks() {
    let place = Place::new();
    configure(&place, "give-up-undurable = false\n");
    let mut agent = start(&place);
    for step in 1..=3 {
        save(&place, &mut agent, step);
    }
    agent.wait_for_log("short of free space: the remaining steps must be kept");
    assert_eq!(drained(agent)["given_up"]["total"], 0);
    assert_eq!(in_vault(&place), [3, 2, 1]);
}

//! The commands to resume from a step, run and checked.

use serde_json::{Value, json};

use crate::explain::Found;
use crate::support::{Place, assert_members};

/// Runs the commands as a person would who pastes them.
fn obey(place: &Place, found: &Found) -> Vec<String> {
    let resume = &found.0["resume"];
    let commands: Vec<String> = resume["commands"]
        .as_array()
        .unwrap()
        .iter()
        .map(|command| command.as_str().unwrap().to_owned())
        .collect();
    for command in &commands {
        place.shell(command).run().expect_code(0);
    }
    commands
}

#[test]
fn a_framework_is_made_to_take_the_step_that_is_whole() {
    for (name, moved) in
        [("hf-trainer-killed", "checkpoint-15.not-whole"), ("prime-rl-checkpoints", "step_30.not-whole")]
    {
        let place = Place::new();
        place.unpack(name);
        let found = place.explain(&[name]);
        let commands = obey(&place, &found);
        assert_eq!(commands.len(), 1, "{commands:?}");
        assert!(place.path(moved).is_dir(), "{name}");
        let after = place.explain(&[name]);
        assert!(after.causes().is_empty(), "{after:#?}");
        assert_eq!(after.0["resume"]["commands"], Value::Array(Vec::new()));
        assert_eq!(after.0["resume"]["path"], found.0["resume"]["path"]);
    }
}

#[test]
fn a_pointer_that_names_a_broken_step_is_written_anew() {
    let place = Place::new();
    let root = place.unpack("deepspeed-latest-too-early");
    let found = place.explain(&["deepspeed-latest-too-early"]);
    obey(&place, &found);
    assert_eq!(std::fs::read_to_string(root.join("latest")).unwrap(), "global_step10");
}

#[test]
fn a_framework_that_finds_it_by_itself_needs_no_command() {
    let place = Place::new();
    place.unpack("orbax-killed");
    let found = place.explain(&["orbax-killed"]);
    assert_eq!(found.0["resume"]["commands"], Value::Array(Vec::new()), "{found:#?}");
    assert!(found.0["resume"]["trainer"].is_string());
}

#[test]
fn a_step_of_the_tiers_is_restored_by_the_command() {
    let place = Place::new();
    let remote = place.remote();
    for step in [1, 2] {
        place.write(&format!("out/step_{step}/model.bin"), format!("weights {step}").repeat(100));
        let path = format!("out/step_{step}");
        place.succeed(&["push", &path, "--run", "demo/a", "--remote", &remote]);
    }
    std::fs::remove_dir_all(place.path("out/step_2")).unwrap();
    let found = place.explain(&["out", "--run", "demo/a", "--remote", &remote]);
    let resume = &found.0["resume"];
    assert_members(resume, &json!({ "step": 2, "attempt": 1 }));
    assert_eq!(resume["tiers"], json!(["local", "file-remote"]), "{found:#?}");
    assert!(!place.path("out/step_2").exists(), "nothing is restored yet");
    let commands = obey(&place, &found);
    assert!(commands[0].starts_with("stepvault restore --into "), "{commands:?}");
    let restored = std::fs::read_to_string(place.path("out/step_2/model.bin")).unwrap();
    assert_eq!(restored, "weights 2".repeat(100));
}

#[test]
fn a_newer_whole_step_of_the_trainers_own_comes_first() {
    let place = Place::new();
    let remote = place.remote();
    place.write("out/step_1/model.bin", "weights 1");
    place.succeed(&["push", "out/step_1", "--run", "demo/a", "--remote", &remote]);
    place.write("out/step_2/model.bin", "weights 2");
    let found = place.explain(&["out", "--run", "demo/a", "--remote", &remote]);
    assert_eq!(found.0["resume"]["step"], 2, "{found:#?}");
    assert_eq!(found.0["resume"]["tiers"], Value::Array(Vec::new()));
}

#[test]
fn a_store_that_cannot_be_asked_is_said_and_what_is_on_disk_is_still_told() {
    let place = Place::new();
    place.write("out/step_1/model.bin", "weights 1");
    let remote = "s3://bucket/p?endpoint=http://127.0.0.1:1&region=r&retry-deadline=1s&stall-timeout=1s";
    let mut command = place.command(["explain", "--json", "out", "--run", "a", "--remote", remote]);
    command.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
    let found = Found::of(&command.run().expect_code(3));
    assert_eq!(found.0["resume"]["step"], 1, "{found:#?}");
    assert_eq!(found.0["not_looked_at"][0]["what"], "the tiers", "{found:#?}");
}

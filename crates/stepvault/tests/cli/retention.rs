//! `prune`, `pin`, `unpin`, `gc`.

use serde_json::json;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::doctor::remote_place::{RUN, RemotePlace};
use crate::support::{Place, assert_members, listed_steps};

fn steps(place: &Place) -> Vec<u64> {
    listed_steps(&place.document_here(0, &["list"]))
}

#[test]
fn a_dry_run_tells_and_does_nothing() {
    let place = Place::new();
    place.push_steps(&[1, 2, 3]);
    let arguments = ["prune", "--dry-run", "--keep-last", "1", "--keep-best", "loss:1:lowest"];
    place.run_here(&arguments).expect_code(0).expect_stdout(&["would remove 1 step"]);
    let document = place.run_here(&[&arguments[..], &["--json"]].concat()).expect_code(0).json();
    let decisions = document["tiers"][0]["plan"]["decisions"].as_array().unwrap();
    let verdicts: Vec<(u64, &str)> = decisions
        .iter()
        .map(|decision| (decision["step"].as_u64().unwrap(), decision["verdict"].as_str().unwrap()))
        .collect();
    assert_eq!(verdicts, [(1, "keep"), (2, "drop"), (3, "keep")]);
    assert!(decisions.iter().all(|decision| !decision["reasons"].as_array().unwrap().is_empty()));
    assert_eq!(document["dry_run"], true);
    assert_eq!(steps(&place), [3, 2, 1]);
}

#[test]
fn a_prune_removes_what_no_rule_keeps_and_no_more_than_allowed() {
    let place = Place::new();
    place.push_steps(&[1, 2, 3, 4]);
    let document = place.document_here(0, &["prune", "--keep-last", "1", "--max-delete", "1"]);
    assert_eq!(document["tiers"][0]["removed"], json!([{ "attempt": 1, "step": 1 }]));
    assert_eq!(steps(&place), [4, 3, 2]);
    assert!(!place.remote_file("step_1", "model.bin").exists());
    place.succeed_here(&["prune", "--keep-last", "1"]);
    assert_eq!(steps(&place), [4]);
}

/// A run that has gone back: what it abandoned takes no place of the live line, and goes first once that is long enough.
#[test]
fn the_last_steps_are_those_of_the_live_line() {
    let place = Place::new();
    place.push_steps(&[1, 2, 3, 4, 5, 6]);
    let push_again = |step: u64| {
        place.checkpoint(&format!("again/step_{step}"), &format!("again {step}"));
        place.succeed_here(&["push", &format!("checkpoints/again/step_{step}"), "--attempt", "2"]);
    };
    push_again(4);
    push_again(5);
    let removed = || {
        place.remove(".stepvault");
        let document = place.document_here(0, &["prune", "--keep-last", "4"]);
        document["tiers"][0]["removed"].clone()
    };
    assert_eq!(removed(), json!([{ "attempt": 1, "step": 1 }]));
    push_again(6);
    push_again(7);
    let ids = [(1, 4), (1, 5), (1, 6), (1, 2), (1, 3)];
    let ids = ids.map(|(attempt, step)| json!({ "attempt": attempt, "step": step }));
    assert_eq!(removed(), json!(ids));
    assert_eq!(steps(&place), [7, 6, 5, 4]);
}

#[test]
fn without_rules_everything_stays_and_rules_that_keep_nothing_are_refused() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    place.succeed_here(&["prune"]);
    place.run_here(&["prune", "--keep-last", "0"]).expect_code(1).expect_error("would delete everything");
    assert_eq!(steps(&place), [2, 1]);
}

#[test]
fn a_pin_holds_until_it_is_taken_away() {
    let place = Place::new();
    place.push_steps(&[1, 2, 3]);
    let document = place.document_here(0, &["pin", "1", "--note", "paper"]);
    assert_members(&document, &json!({ "pinned": true, "changed": ["file-remote"] }));
    let again = place.document_here(0, &["pin", "1"]);
    assert_eq!(again["unchanged"], json!(["file-remote"]));
    place.succeed_here(&["prune", "--keep-last", "1"]);
    assert_eq!(steps(&place), [3, 1]);
    place.succeed_here(&["unpin", "1"]);
    place.succeed_here(&["prune", "--keep-last", "1"]);
    assert_eq!(steps(&place), [3]);
}

#[test]
fn local_copies_stay_until_every_configured_remote_has_them() {
    let place = Place::new();
    let (first, second) = (place.remote(), format!("file://{}", place.path("second").display()));
    let file = format!(
        "[local]\ndirectory = \"vault\"\n[remote.first]\nurl = \"{first}\"\n[remote.second]\nurl = \"{second}\"\n[run.\"demo/a\"]\n"
    );
    place.write("stepvault.toml", file);
    for step in ["step_1", "step_2"] {
        place.checkpoint(step, step);
        place.succeed(&["push", &format!("checkpoints/{step}"), "--remote", "first"]);
    }
    let prune = ["prune", "--tier", "local", "--keep-last", "1", "--json"];
    // Naming one remote must not make the other one forgotten.
    let document = place.run(&[&prune[..], &["--remote", "first"]].concat()).expect_code(0).json();
    assert_eq!(document["tiers"][0]["removed"], json!([]));
    let reasons = &document["tiers"][0]["plan"]["decisions"][0]["reasons"];
    assert_eq!(reasons, &json!(["not durable on second"]));
    place.succeed(&["push", "checkpoints/step_1"]);
    let document = place.run(&prune).expect_code(0).json();
    assert_eq!(document["tiers"][0]["removed"], json!([{ "attempt": 1, "step": 1 }]));
}

#[test]
fn orphans_go_at_the_second_gc_run() {
    let place = Place::new();
    place.run_here(&["gc"]).expect_code(1).expect_error("the run has no marker on it");
    place.push_steps(&[1]);
    std::fs::write(place.remote_file("step_1", "orphan.bin"), "left over").unwrap();
    let gc = |more: &[&str]| {
        let report = place.run_here(&[&["gc", "--json"], more].concat()).expect_code(0).json();
        let report = &report["remotes"][0]["report"];
        let count = |key: &str| report[key].as_array().unwrap().len();
        (count("marked"), count("removed"), report["young"].as_u64().unwrap())
    };
    assert_eq!(gc(&[]), (0, 0, 1));
    assert_eq!(gc(&["--grace", "0s", "--dry-run"]), (1, 0, 0));
    assert_eq!(gc(&["--grace", "0s"]), (1, 0, 0));
    assert_eq!(gc(&["--grace", "0s"]), (0, 1, 0));
    assert!(!place.remote_file("step_1", "orphan.bin").exists());
    place.succeed_here(&["verify", "--deep"]);
}

#[test]
fn a_local_copy_stays_where_a_remote_has_lost_its_data_and_others_go_in_its_place() {
    let place = Place::new();
    for step in 1..=4 {
        place.checkpoint(&format!("step_{step}"), "same");
        place.succeed_here(&["push", &format!("checkpoints/step_{step}")]);
    }
    std::fs::remove_file(place.remote_file("step_1", "model.bin")).unwrap();
    let bytes = std::fs::metadata(place.path("checkpoints/step_2/model.bin")).unwrap().len()
        + std::fs::metadata(place.path("checkpoints/step_2/state.json")).unwrap().len();
    let file = format!("[local]\ndirectory = \".stepvault\"\nmaximum-size = \"{} B\"\n", 2 * bytes);
    place.write("stepvault.toml", file);
    let document = place.document_here(0, &["prune", "--tier", "local"]);
    let tier = &document["tiers"][0];
    assert_eq!(
        tier["removed"],
        json!([{ "attempt": 1, "step": 2 }, { "attempt": 1, "step": 3 }]),
        "{document:#}"
    );
    assert_eq!(tier["spared"][0]["step"], 1);
    assert_eq!(
        tier["spared"][0]["reason"],
        "its data on file-remote is not what was uploaded: model.bin is missing"
    );
}

#[test]
fn a_removal_that_is_cut_off_says_what_to_do_with_what_is_left() {
    let server = StrictS3::start();
    let place = RemotePlace::of_s3(&server);
    for number in [1, 2] {
        place.place.save_in_run(&format!("step_{number}"), 1000, 0);
        let step = format!("run/step_{number}");
        let arguments = ["push", &step, "--local", "vault", "--run", RUN, "--remote", &place.remote];
        place.stepvault(&arguments).expect_code(0);
    }
    // The commit goes by a request of its own.
    let refusal = FaultAction::refuse(403, "AccessDenied");
    server.faults().inject("POST", "delete", u64::MAX, refusal);
    let prune = ["prune", "--keep-last", "1", "--run", RUN, "--remote", &place.remote];
    let ran = place.stepvault(&prune).expect_code(1);
    ran.expect_stderr(&[
        "no longer listed, but some of their files are left",
        "grant",
        "`stepvault gc` deletes them",
    ]);
}

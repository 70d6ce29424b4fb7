//! `list`, `show`, `status`, `verify`: their documents and tables.

use serde_json::json;

use crate::support::{Place, assert_members, listed_steps};

#[test]
fn a_list_shows_every_step_with_its_places() {
    let place = Place::new();
    let empty = place.run_here(&["list"]).expect_code(0);
    assert_eq!(empty.stdout, "no tier holds a step of 'demo/a'\n");
    place.push_steps(&[9, 10]);
    let outcome = place.run_here(&["list"]).expect_code(0);
    let rows: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(rows.len(), 3, "{outcome:#?}");
    assert!(rows[0].starts_with("STEP  ATTEMPT"), "{outcome:#?}");
    assert!(rows[1].trim_start().starts_with("10 ") && rows[1].contains("file-remote"), "{outcome:#?}");

    let document = place.document_here(0, &["list"]);
    assert_eq!(listed_steps(&document), [10, 9]);
    let step = &document["steps"][1];
    assert_members(step, &json!({ "name": "step_9", "attempt": 1, "files": 2 }));
    assert_members(step, &json!({ "local": null, "pinned": false }));
    assert_eq!(step["metrics"]["loss"], 0.9);
    assert!(step["written_at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn one_step_is_shown_with_its_files() {
    let place = Place::new();
    place.push_steps(&[9]);
    let document = place.document_here(0, &["show", "9"]);
    assert_members(&document, &json!({ "step": 9, "run": "demo/a" }));
    let entry = &document["entries"][0];
    assert_members(entry, &json!({ "path": "model.bin", "bytes": 6000 }));
    assert_eq!(entry["sha256"].as_str().unwrap().len(), 64);
    place.run_here(&["show", "9"]).expect_code(0).expect_stdout(&["metrics  loss=0.9", "state.json"]);
}

#[test]
fn a_run_with_blake3_digests_is_pushed_shown_verified_and_restored() {
    let place = Place::new();
    place.write("stepvault.toml", "[run.\"demo/a\"]\ndigest = \"blake3\"\n");
    place.checkpoint("step_9", "x");
    let with_config = |command: &[&str]| {
        let arguments = [command, &["--config", "stepvault.toml"]].concat();
        place.run_here(&arguments).expect_code(0)
    };
    with_config(&["push", "checkpoints/step_9"]);
    let entry = &with_config(&["show", "9", "--json"]).json()["entries"][0];
    assert_members(entry, &json!({ "path": "model.bin", "sha256": null }));
    assert_eq!(entry["blake3"].as_str().unwrap().len(), 64);
    with_config(&["verify", "--deep"]);
    // A reader on another machine needs no setting.
    place.remove(".stepvault");
    place.run_here(&["restore", "--into", "again"]).expect_code(0);
    assert_eq!(
        std::fs::read(place.path("again/step_9/model.bin")).unwrap(),
        std::fs::read(place.path("checkpoints/step_9/model.bin")).unwrap()
    );
    let data = place.remote_file("step_9", "model.bin");
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    place.run_here(&["verify", "--deep"]).expect_code(11);
}

#[test]
fn status_counts_what_is_not_durable_without_asking_a_remote() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    place.write("file", "");
    let broken = format!("broken=file://{}", place.path("file/remote").display());
    place.run_here(&["push", "checkpoints/step_1", "--remote", &broken]).expect_code(3);
    let arguments = ["status", "--local", ".stepvault", "--remote", broken.as_str()];
    let document = place.run_here(&[&arguments[..], &["--json"]].concat()).expect_code(0).json();
    let bytes = &document["bytes"];
    assert_eq!(document["remotes"][0]["staged_steps"], 1);
    assert_eq!(&document["remotes"][0]["not_durable_bytes"], bytes);
    assert_eq!(
        (&document["remotes"][1]["durable_steps"], &document["remotes"][1]["not_durable_bytes"]),
        (&1.into(), &0.into())
    );
    assert!(document["disk_free_bytes"].as_u64().unwrap() > 0);
    place.run_here(&arguments).expect_code(0).expect_stdout(&["NEWEST DURABLE"]);
}

#[test]
fn verify_says_how_much_is_proved() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    let document = place.document_here(0, &["verify"]);
    let tier = &document["steps"][0]["tiers"][0];
    assert_members(
        tier,
        &json!({ "tier": "file-remote", "sound": false, "unproved_files": 2, "read_bytes": 0 }),
    );
    assert_members(&document, &json!({ "sound_steps": 0, "present_steps": 2, "damaged_steps": 0 }));
    let document = place.document_here(0, &["verify", "2", "--deep"]);
    assert_eq!(document["steps"].as_array().unwrap().len(), 1);
    assert_members(&document["steps"][0]["tiers"][0], &json!({ "sound": true, "proved_files": 2 }));
    let sampled = place.document_here(0, &["verify", "--sample", "1/1"]);
    assert_eq!(sampled["steps"][1]["tiers"][0]["proved_files"], 2);
    std::fs::remove_file(place.remote_file("step_2", "model.bin")).unwrap();
    place
        .run_here(&["verify"])
        .expect_code(1)
        .expect_stdout(&["step 2 (attempt 1) on file-remote: model.bin is missing"]);
}

//! `list`, `show`, `status`, `verify`: their documents and tables.

use crate::support::{Place, listed_steps};

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
    assert!(
        rows[1].trim_start().starts_with("10 ") && rows[1].contains("file-remote"),
        "{outcome:#?}"
    );

    let document = place.run_here(&["list", "--json"]).expect_code(0).json();
    assert_eq!(listed_steps(&document), [10, 9]);
    let step = &document["steps"][1];
    assert_eq!(
        (&step["name"], &step["attempt"], &step["files"]),
        (&"step_9".into(), &1.into(), &2.into())
    );
    assert_eq!(
        (&step["local"], &step["pinned"]),
        (&serde_json::Value::Null, &false.into())
    );
    assert_eq!(step["metrics"]["loss"], 0.9);
    assert!(step["written_at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn one_step_is_shown_with_its_files() {
    let place = Place::new();
    place.push_steps(&[9]);
    let document = place.run_here(&["show", "9", "--json"]).expect_code(0).json();
    assert_eq!(
        (&document["step"], &document["run"]),
        (&9.into(), &"demo/a".into())
    );
    let entry = &document["entries"][0];
    assert_eq!(
        (&entry["path"], &entry["bytes"]),
        (&"model.bin".into(), &6000.into())
    );
    assert_eq!(entry["sha256"].as_str().unwrap().len(), 64);
    let outcome = place.run_here(&["show", "9"]).expect_code(0);
    assert!(
        outcome.stdout.contains("metrics  loss=0.9") && outcome.stdout.contains("state.json"),
        "{outcome:#?}"
    );
}

#[test]
fn status_counts_what_is_not_durable_without_asking_a_remote() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    std::fs::write(place.path("file"), "").unwrap();
    let broken = format!("broken=file://{}", place.path("file/remote").display());
    place
        .run_here(&["push", "checkpoints/step_1", "--remote", &broken])
        .expect_code(3);
    let arguments = ["status", "--local", ".stepvault", "--remote", broken.as_str()];
    let document = place
        .run_here(&[&arguments[..], &["--json"]].concat())
        .expect_code(0)
        .json();
    let bytes = &document["bytes"];
    assert_eq!(document["remotes"][0]["staged_steps"], 1);
    assert_eq!(&document["remotes"][0]["not_durable_bytes"], bytes);
    assert_eq!(
        (
            &document["remotes"][1]["durable_steps"],
            &document["remotes"][1]["not_durable_bytes"]
        ),
        (&1.into(), &0.into())
    );
    assert!(document["disk_free_bytes"].as_u64().unwrap() > 0);
    let outcome = place.run_here(&arguments).expect_code(0);
    assert!(outcome.stdout.contains("NEWEST DURABLE"), "{outcome:#?}");
}

#[test]
fn verify_says_how_much_is_proved() {
    let place = Place::new();
    place.push_steps(&[1, 2]);
    let document = place.run_here(&["verify", "--json"]).expect_code(0).json();
    let tier = &document["steps"][0]["tiers"][0];
    assert_eq!(
        (&tier["tier"], &tier["sound"], &tier["read_bytes"]),
        (&"file-remote".into(), &true.into(), &0.into())
    );
    let document = place
        .run_here(&["verify", "2", "--deep", "--json"])
        .expect_code(0)
        .json();
    assert_eq!(document["steps"].as_array().unwrap().len(), 1);
    assert_eq!(document["steps"][0]["tiers"][0]["proved_files"], 2);
    let sampled = place
        .run_here(&["verify", "--sample", "1/1", "--json"])
        .expect_code(0)
        .json();
    assert_eq!(sampled["steps"][1]["tiers"][0]["proved_files"], 2);
    std::fs::remove_file(place.remote_file("step_2", "model.bin")).unwrap();
    let outcome = place.run_here(&["verify"]).expect_code(1);
    assert!(
        outcome
            .stdout
            .contains("step 2 on file-remote: model.bin is missing"),
        "{outcome:#?}"
    );
}

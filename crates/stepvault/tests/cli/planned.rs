//! Plans that change nothing: `push --dry-run` and `du`.

use serde_json::json;
use stepvault_testkit::tree;

use crate::support::Place;

#[test]
fn a_planned_push_says_what_it_would_do_and_writes_nothing() {
    let place = Place::new();
    place.checkpoint("step_5", "a");
    // A push would create this directory.
    let new = format!("new=file://{}", place.path("not/yet").display());
    std::fs::create_dir(place.path("not")).unwrap();
    place.write("not/empty", "");
    let first = place.run(&["push", "checkpoints/step_5", "--dry-run", "--run", "a", "--remote", &new]);
    first
        .expect_code(0)
        .expect_stdout(&["step 5 (attempt 1) of 'a' (2 files, ", ") would be uploaded to new"]);
    assert!(!place.path("not/yet").exists());
    let plan = ["push", "checkpoints/step_5", "--dry-run"];
    let before = tree::read_tree(place.root());
    let planned = place.document_here(0, &plan);
    assert_eq!(tree::read_tree(place.root()), before);
    assert_eq!((&planned["dry_run"], &planned["newly_sealed"]), (&json!(true), &json!(true)), "{planned}");
    assert_eq!((&planned["step"], &planned["attempt"]), (&json!(5), &json!(1)), "{planned}");
    assert_eq!(
        (&planned["files"], &planned["remotes"][0]["durable"]),
        (&json!(2), &json!(false)),
        "{planned}"
    );
    place
        .run_here(&plan)
        .expect_code(0)
        .expect_stdout(&["step 5 (attempt 1) of 'demo/a' (2 files, ", ") would be uploaded to "]);
    place.succeed_here(&["push", "checkpoints/step_5"]);
    let remote = || tree::read_tree(&place.path("remote"));
    let before = remote();
    let again = place.document_here(0, &plan);
    assert_eq!(
        (&again["newly_sealed"], &again["remotes"][0]["durable"]),
        (&json!(false), &json!(true)),
        "{again}"
    );
    place.run_here(&plan).expect_code(0).expect_stdout(&[") is already durable on "]);
    // Another content of the same number is the next revision or attempt, and a plan says which.
    place.checkpoint("step_5", "changed");
    let changed = place.document_here(0, &plan);
    assert_eq!(remote(), before);
    let pushed = place.document_here(0, &["push", "checkpoints/step_5"]);
    for member in ["step", "attempt", "revision", "files", "bytes", "newly_sealed"] {
        assert_eq!(changed[member], pushed[member], "{member}: {changed}");
    }
    place.run_here(&["push", "checkpoints/step_6", "--dry-run"]).expect_code(2);
}

#[test]
fn the_space_of_each_run_and_what_a_rule_would_free() {
    let place = Place::new();
    place.run(&["du", "--remote", &place.remote()]).expect_code(10).expect_stdout(&["no tier holds a step"]);
    place.push_steps(&[1, 20, 30]);
    place.checkpoint("step_3", "b");
    place.succeed(&["push", "checkpoints/step_3", "--run", "other", "--remote", &place.remote()]);
    place.remove(".stepvault");
    let before = tree::read_tree(place.root());
    let document = place.document(0, &["du", "--remote", &place.remote(), "--keep-last", "1"]);
    assert_eq!(tree::read_tree(place.root()), before);
    let rows = document["runs"].as_array().unwrap().iter();
    let rows: Vec<_> = rows.map(|row| json!([row["run"], row["steps"], row["prunable_steps"]])).collect();
    assert_eq!(rows, [json!(["demo/a", 3, 2]), json!(["other", 1, 0])], "{document}");
    let bytes = |row: usize, member: &str| document["runs"][row][member].as_u64().unwrap();
    assert_eq!(document["bytes"], json!(bytes(0, "bytes") + bytes(1, "bytes")));
    assert_eq!(document["prunable_bytes"], json!(bytes(0, "prunable_bytes")));
    assert!(bytes(0, "prunable_bytes") > 0 && bytes(0, "prunable_bytes") < bytes(0, "bytes"));
    // What it says is what a prune does.
    let prune = ["prune", "--remote", &place.remote(), "--run", "demo/a", "--keep-last", "1"];
    assert_eq!(
        place.document(0, &prune)["tiers"][0]["plan"]["freed_bytes"],
        json!(bytes(0, "prunable_bytes"))
    );
    let of_one = place.document(0, &["du", "--remote", &place.remote(), "--run", "other"]);
    assert_eq!(of_one["runs"].as_array().unwrap().len(), 1);
    let missing = format!("gone=file://{}", place.path("missing").display());
    let partly = place.run(&["du", "--remote", &place.remote(), "--remote", &missing]);
    partly.expect_code(3).expect_stdout(&["demo/a", "other"]);
    place.run(&["du"]).expect_code(2);
}

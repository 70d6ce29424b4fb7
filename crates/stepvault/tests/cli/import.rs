//! `import`: steps that a copying tool has put into a remote.

use serde_json::{Value, json};
use stepvault_testkit::fixture::Fixture;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree::{copy, files_below};

use crate::doctor::remote_place::RemotePlace;
use crate::support::{Place, listed_steps};

/// A place whose remote holds a trainer's directory at `old/run`, whose last save was interrupted.
fn filled() -> (Place, Fixture) {
    let (place, fixture) = (Place::new(), Fixture::unpack("hf-trainer-killed"));
    copy(&fixture.root, &place.path("remote/old/run"));
    (place, fixture)
}

fn url(place: &Place) -> String {
    format!("{}/old/run", place.remote())
}

fn import(place: &Place, code: i32, more: &[&str]) -> Value {
    place.document_here(code, &[&["import", &url(place), "--quiet-time", "0s"], more].concat())
}

fn outcomes(document: &Value) -> Vec<(u64, String)> {
    let steps = document["steps"].as_array().unwrap().iter();
    let outcome =
        |step: &Value| (step["step"].as_u64().unwrap(), step["outcome"].as_str().unwrap().to_owned());
    steps.map(outcome).collect()
}

fn all(outcome: &str) -> Vec<(u64, String)> {
    [5, 10].map(|step| (step, outcome.to_owned())).to_vec()
}

#[test]
fn a_plan_is_printed_and_carried_out_and_the_steps_are_those_of_a_run() {
    let (place, fixture) = filled();
    let plan = import(&place, 0, &["--dry-run"]);
    assert_eq!((outcomes(&plan), &plan["dry_run"]), (all("planned"), &json!(true)));
    assert!(!place.path("remote/demo").exists(), "a dry run writes nothing");
    let left = plan["left"].as_array().unwrap();
    let torn = left.iter().find(|left| left["path"] == "checkpoint-15").unwrap();
    assert!(!torn["reasons"].as_array().unwrap().is_empty(), "{torn}");
    let before = files_below(&place.path("remote/old"));
    assert_eq!(outcomes(&import(&place, 0, &[])), all("imported"));
    assert_eq!(outcomes(&import(&place, 0, &[])), all("already-imported"));
    assert_eq!(files_below(&place.path("remote/old")), before);

    let listed = place.document_here(0, &["list"]);
    assert_eq!(listed_steps(&listed), [10, 5]);
    assert_eq!(listed["steps"][0]["imported"], true);
    let shown = place.document_here(0, &["show", "10"]);
    assert_eq!(shown["imported_from"], json!([format!("{}/checkpoint-10", url(&place))]));
    place.succeed_here(&["verify", "--deep"]);
    place.succeed_here(&["pin", "5"]);
    place.succeed_here(&["restore", "--into", "restored"]);
    for path in files_below(&fixture.root.join("checkpoint-10")) {
        let inside = path.strip_prefix(&fixture.root).unwrap();
        let restored = place.path("restored").join(inside);
        assert!(std::fs::read(&path).unwrap() == std::fs::read(restored).unwrap(), "{}", inside.display());
    }
}

#[test]
fn a_prune_leaves_the_objects_unless_the_run_manages_them() {
    for manages in [false, true] {
        let (place, _fixture) = filled();
        import(&place, 0, &[]);
        let config = format!("[run.\"demo/a\"]\nmanage-imported = {manages}\n");
        let config = place.write("stepvault.toml", config);
        let arguments = ["prune", "--keep-last", "1", "--config", config.to_str().unwrap()];
        let pruned = place.run_here(&arguments).expect_code(0).expect_stdout(&["removed 1 step"]);
        assert_eq!(pruned.stdout.contains("the objects stay"), !manages, "{}", pruned.stdout);
        assert_eq!(listed_steps(&place.document_here(0, &["list"])), [10]);
        assert_eq!(place.path("remote/old/run/checkpoint-5/trainer_state.json").exists(), !manages);
        assert!(place.path("remote/old/run/checkpoint-10/trainer_state.json").exists());
    }
}

#[test]
fn a_url_that_no_remote_has_says_which_remote_would() {
    let place = Place::new();
    place
        .run_here(&["import", "s3://bucket/old/run"])
        .expect_one_error(2, &["cannot import: s3://bucket/old/run: it is not below file://"])
        .expect_hint("--remote s3://bucket");
    place.run_here(&["import", "s3://bucket/old?region=x"]).expect_one_error(2, &["it has options"]);
    place.run_here(&["import", &url(&place)]).expect_one_error(2, &["no object lies there"]);
}

#[test]
fn a_bucket_is_imported_with_the_options_of_its_remote() {
    let server = StrictS3::start();
    let remote = RemotePlace::of_s3(&server);
    remote.leave_object("old/run/step_7/weights.dat");
    let run = |words: &[&str]| {
        remote.stepvault(&[words, &["--run", "grpo", "--remote", &remote.remote, "--json"]].concat())
    };
    let words = ["import", "s3://bucket/team/old/run", "--quiet-time", "0s"];
    assert_eq!(outcomes(&run(&words).expect_code(0).json()), [(7, "imported".to_owned())]);
    run(&["verify", "--deep"]).expect_code(0);
    let stays = server.objects().keys().iter().any(|key| key.ends_with("team/old/run/step_7/weights.dat"));
    assert!(stays, "{:?}", server.objects().keys());
}

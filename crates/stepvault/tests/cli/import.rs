//! `import`: steps that a copying tool has put into a remote.

use std::path::Path;

use serde_json::{Value, json};
use stepvault_testkit::fixture::Fixture;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree::{copy, files_below, write};

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

#[test]
fn the_checksums_of_a_store_are_taken_and_named() {
    let server = StrictGcs::start();
    let remote = RemotePlace::of_gcs(&server);
    remote.leave_object("old/run/step_7/weights.dat");
    let run =
        |words: &[&str]| remote.stepvault(&[words, &["--run", "grpo", "--remote", &remote.remote]].concat());
    let words = ["import", "gs://bucket/team/old/run", "--quiet-time", "0s", "--trust-store"];
    let plan = run(&[&words[..], &["--dry-run", "--json"]].concat()).expect_code(0).json();
    assert_eq!((&plan["read_bytes"], &plan["trusted_bytes"]), (&json!(0), &json!(4)));
    run(&[&words[..], &["--dry-run"]].concat())
        .expect_code(0)
        .expect_stdout(&["0 B to read", "1 file of 4 B by the store's checksums, not read"]);
    assert_eq!(
        outcomes(&run(&[&words[..], &["--json"]].concat()).expect_code(0).json()),
        [(7, "imported".to_owned())]
    );
    let listed = run(&["list", "--json"]).expect_code(0).json();
    assert_eq!(listed["steps"][0]["trusted_files"], 1);
    let shown = run(&["show", "7", "--json"]).expect_code(0).json();
    let file = &shown["entries"][0];
    assert!(file["trusted"].as_str().unwrap().starts_with("crc32c "), "{file}");
    assert_eq!(
        (&file["digest"], &file["sha256"], &file["crc32c"]),
        (&json!(null), &json!(null), &json!(null))
    );
    run(&["show", "7"])
        .expect_code(0)
        .expect_stdout(&["1 file by the store's checksum, not read by stepvault"]);
    run(&["verify"]).expect_code(0);
    run(&["restore", "--into", "restored"]).expect_code(0);
    assert_eq!(std::fs::read(remote.place.path("restored/step_7/weights.dat")).unwrap(), b"left");
    let again = run(&words[..4]).expect_code(0);
    again.expect_stdout(&["1 step imported with --trust-store before: left as it is, and not read"]);
}

#[test]
fn the_reader_without_stepvault_computes_the_checksums_of_a_store() {
    let (s3, gcs) = (StrictS3::start(), StrictGcs::start());
    let places = [
        (RemotePlace::of_s3(&s3), "s3", s3.objects(), "crc64nvme"),
        (RemotePlace::of_gcs(&gcs), "gs", gcs.objects(), "crc32c"),
    ];
    for (remote, scheme, objects, checksum) in places {
        remote.leave_object("old/run/step_7/weights.dat");
        let url = format!("{scheme}://bucket/team/old/run");
        let words = ["import", &url, "--quiet-time", "0s", "--trust-store", "--run", "grpo", "--remote"];
        remote.stepvault(&[&words[..], &[&remote.remote]].concat()).expect_code(0);
        let copy = remote.place.path("copy");
        for key in objects.keys() {
            write(&copy.join(&key), objects.body(&key).unwrap());
        }
        let manifest = copy.join("bucket/team/grpo/.stepvault/parts/000000000007.a1/import.json");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        assert!(manifest.contains("\"format\":3") && manifest.contains(checksum), "{manifest}");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/read-store.py");
        let line = format!("python3 {} file://$PWD/copy/bucket/team grpo", script.display());
        remote.shell(&format!("{line} restored")).expect_code(0);
        let restored = std::fs::read(remote.place.path("restored/step_7/weights.dat")).unwrap();
        assert_eq!(restored, b"left");
        write(&copy.join("bucket/team/old/run/step_7/weights.dat"), "lost");
        remote
            .shell(&format!("{line} again"))
            .expect_code(1)
            .expect_stderr(&["skipped 000000000007.a1: weights.dat: wrong size or ", checksum]);
        assert!(!remote.place.path("again/step_7").exists());
    }
}

#[test]
fn a_directory_has_no_checksums_to_trust() {
    let (place, _fixture) = filled();
    place
        .run_here(&["import", &url(&place), "--quiet-time", "0s", "--trust-store"])
        .expect_one_error(2, &["cannot trust the store's checksums: file://", "a directory keeps none"])
        .expect_hint("import without --trust-store");
    assert!(!place.path("remote/demo").exists());
}

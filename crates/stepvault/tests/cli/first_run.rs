//! What a newcomer meets: vaults and archives that are found or created without an option, and mistyped names.

use serde_json::json;

use crate::support::Place;

#[test]
fn what_push_created_without_an_option_is_found_by_what_reads() {
    let place = Place::new();
    place.checkpoint("step_1", "a");
    place.succeed_here(&["push", "checkpoints/step_1"]);
    place.run(&["status", "--run", "demo/a"]).expect_code(0).expect_stdout(&["steps  1"]);
    let listed = place.document(0, &["list", "--run", "demo/a"]);
    assert_eq!((&listed["steps"][0]["step"], &listed["steps"][0]["local"]), (&json!(1), &json!("staged")));
    place.run(&["show", "1", "--run", "demo/a"]).expect_code(0).expect_stdout(&["step_1"]);
    // What deletes needs a vault that is named.
    place.run(&["prune", "--keep-last", "1", "--run", "demo/a"]).expect_code(2);
    place.remove(".stepvault");
    place.run(&["status", "--run", "demo/a"]).expect_code(2).expect_error("no local vault");
}

#[test]
fn the_runs_of_a_remote_are_listed() {
    let place = Place::new();
    place
        .run(&["runs", "--remote", &place.remote()])
        .expect_code(10)
        .expect_stdout(&["no remote holds a run"]);
    place.push_steps(&[1, 20]);
    place.checkpoint("step_3", "b");
    place.succeed(&["push", "checkpoints/step_3", "--run", "other", "--remote", &place.remote()]);
    place.write("remote/stray/file", "not of stepvault");
    let document = place.document(0, &["runs", "--remote", &place.remote()]);
    let runs = document["runs"].as_array().unwrap().iter();
    let runs: Vec<_> = runs.map(|run| json!([run["run"], run["steps"], run["newest"]["step"]])).collect();
    assert_eq!(runs, [json!(["demo/a", 2, 20]), json!(["other", 1, 3])]);
    assert!(document["runs"][0]["bytes"].as_u64().unwrap() > 12_000, "{document}");
    let missing = format!("file://{}", place.path("missing").display());
    place.run(&["runs", "--remote", &missing]).expect_code(12).expect_error("does not exist");
}

#[test]
fn a_mistyped_run_is_not_found_and_the_nearest_is_named() {
    let place = Place::new();
    place.push_steps(&[1]);
    let remote = place.remote();
    let wrong =
        |arguments: &[&str]| place.run(&[arguments, &["--remote", &remote, "--run", "demo/b"]].concat());
    for arguments in
        [&["list"][..], &["show", "1"], &["verify"], &["restore", "--into", "back"], &["pin", "1"]]
    {
        wrong(arguments).expect_code(10).expect_stderr(&["did you mean --run demo/a?"]);
    }
    // A run that exists gets no such hint.
    let missing = place.run_here(&["show", "7"]).expect_code(10);
    assert!(!missing.stderr.contains("did you mean"), "{missing:?}");
    place.checkpoint("step_2", "b");
    place.succeed_here(&["push", "checkpoints/step_2"]);
    place.run(&["status", "--run", "demo/b"]).expect_code(10).expect_stderr(&["did you mean --run demo/a?"]);
}

#[test]
fn an_archive_is_begun_beside_other_files_and_never_where_nothing_is_mounted() {
    let place = Place::new();
    place.write("train.sh", "mkdir -p ck/step_1 && echo a > ck/step_1/w.bin");
    let new = format!("file://{}", place.path("new").display());
    let doctor = place.document(0, &["doctor", "--run", "r", "--local", ".stepvault", "--remote", &new]);
    assert_eq!(doctor["outcome"], "warn", "{doctor}");
    let run = |remote: &str| {
        let options = ["run", "--run", "r", "--into", "ck", "--remote", remote, "--", "sh", "train.sh"];
        place.command(options).run()
    };
    run(&new).expect_stderr(&["created file://", "it is a new archive, without any step"]);
    assert!(place.path("new").is_dir());
    std::fs::create_dir(place.path("mount")).unwrap();
    place.remove("ck");
    place.remove(".stepvault");
    let unmounted = format!("file://{}", place.path("mount/archive").display());
    run(&unmounted).expect_code(12).expect_stderr(&["create it: mkdir "]);
    assert!(!place.path("mount/archive").exists() && !place.path("ck/step_1").exists());
}

#[test]
fn the_help_of_a_command_shows_its_own_options() {
    let place = Place::new();
    let help = place.run(&["push", "--help"]).expect_code(0).stdout;
    assert!(help.contains("--step") && !help.contains("STEPVAULT_NODES"), "{help}");
    assert!(help.contains("stepvault help options"), "{help}");
    place.run(&["help", "options"]).expect_code(0).expect_stdout(&["STEPVAULT_NODES", "--quiet"]);
}

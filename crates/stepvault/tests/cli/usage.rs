//! Invalid calls, and the streams that output goes to.

use std::process::Stdio;

use crate::support::Place;

#[test]
fn wrong_calls_say_what_why_and_what_to_do() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    place.run(&["list", "--run", "a", "--remote", "ftp://host/x"]).expect_code(2).expect_error(
        "not a remote's URL: ftp://host/x: the scheme 'ftp' is not supported\n  hint: write \
         s3://bucket/prefix",
    );
    place
        .run_here(&["push", "checkpoints/step_2"])
        .expect_code(2)
        .expect_error("cannot push the step: checkpoints/step_2: no such file or directory");
    assert!(!place.path(".stepvault").exists(), "a wrong call made a vault");
    place
        .run(&["push", "checkpoints/step_1", "--run", "a"])
        .expect_code(2)
        .expect_error("no remote selected: none is given or configured\n  hint: give --remote URL");
    place.run(&["list", "--remote", "memory://x"]).expect_code(2).expect_error("no run selected");
    place.run(&["list", "--run", "a"]).expect_code(2).expect_error("no tier selected");
    place.run(&["list", "--config", "missing.toml"]).expect_code(2).expect_error("no such file");
    place.run_here(&["status"]).expect_code(2).expect_error("no local vault");
    place
        .run_here(&["status", "--watch", "--json"])
        .expect_code(2)
        .expect_error("cannot use --watch with --json");
    place.write("checkpoints/assets/x", "x");
    place.run_here(&["push", "checkpoints/assets"]).expect_code(2).expect_error("give it with --step N");
}

#[test]
fn an_unusable_variable_is_not_ignored() {
    let place = Place::new();
    for (variable, value) in
        [("STEPVAULT_RUN", ""), ("STEPVAULT_RUN", "../x"), ("STEPVAULT_LOG", "stepvault=loud")]
    {
        let outcome = place.command(["list"]).env(variable, value).run();
        outcome.expect_code(2).expect_stderr(&[variable]);
    }
}

#[test]
fn the_attempt_may_come_from_the_launcher() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    let push = ["push", "checkpoints/step_1", "--remote", "memory://x", "--run", "a", "--json"];
    let push = |attempt: &str| place.command(push).env("STEPVAULT_ATTEMPT", attempt).run();
    assert_eq!(push("3").json()["attempt"], 3);
    push("0").expect_code(2);
}

#[test]
fn clap_errors_are_usage_errors_and_help_is_none() {
    let place = Place::new();
    place.succeed(&["--help"]);
    place.succeed(&["push", "--help"]);
    place.succeed(&["--version"]);
    place.run(&["rstore"]).expect_code(2).expect_error("restore");
    place.run(&[]).expect_code(2);
    let outcome = place.run(&["restore", "--json"]).expect_code(2);
    assert_eq!(outcome.json()["error"]["kind"], "usage");
}

#[test]
fn an_error_is_a_document_too() {
    let place = Place::new();
    let outcome = place.run(&["list", "--json"]).expect_code(2);
    let document = outcome.json();
    assert_eq!(document["error"]["kind"], "usage");
    assert_eq!(document["error"]["message"], "no run selected: none is given or configured");
    assert_eq!(document["error"]["hint"], "give --run NAME");
    outcome.expect_error("no run selected");
}

#[test]
fn quiet_means_the_result_alone() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    let outcome = place.run_here(&["push", "checkpoints/step_1", "-q"]).expect_code(0);
    assert_eq!(outcome.stderr, "");
    place.checkpoint("step_2", "y");
    place
        .run_here(&["push", "checkpoints/step_2"])
        .expect_code(0)
        .expect_stderr(&["file-remote: step 2 (attempt 1) is durable"]);
}

#[test]
fn a_closed_pipe_is_no_reason_to_panic() {
    let place = Place::new();
    let mut child = place
        .command(["completions", "bash"])
        .to_std()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn output_that_is_lost_does_not_end_with_0() {
    let place = Place::new();
    place.push_steps(&[1]);
    let remote = place.remote();
    let of_run = ["--remote", &remote, "--run", "demo/a"];
    let commands: [(&[&str], &[&str]); 6] = [
        (&["list", "--json"], &of_run),
        (&["list"], &of_run),
        (&["verify", "--json"], &of_run),
        (&["show", "1", "--json"], &of_run),
        (&["config", "show"], &[]),
        (&["--help"], &[]),
    ];
    for (command, options) in commands {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut lost = place.command([command, options].concat()).to_std();
        let output = lost.stdout(full).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {stderr}");
        assert!(stderr.contains("cannot print the result"), "{command:?}: {stderr}");
    }
    // Of a document, nobody wants a part.
    let mut child = place.command([&["list", "--json"][..], &of_run].concat()).to_std();
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
}

#[test]
fn completions_and_manual_pages_are_written() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        place.run(&["completions", shell]).expect_code(0).expect_stdout(&["restore"]);
    }
    place.run(&["man"]).expect_code(0).expect_stdout(&[".TH stepvault"]);
    place.succeed(&["man", "pages"]);
    for page in ["stepvault.1", "stepvault-restore.1", "stepvault-config-show.1"] {
        assert!(place.path("pages").join(page).is_file(), "{page}");
    }
}

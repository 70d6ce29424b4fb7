//! The agent with renamed runs, deleted vaults, shared run names and misspelt buckets: it reports what is not durable,
//! and continues once it can.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree::{files_below, set_mode};

use crate::support::{ANY_KEYS, Outcome, Place, TestProcess, assert_members, wait_until};

/// A remote that answers nobody.
const GONE: &str = "main=s3://bucket/prefix?endpoint=http://127.0.0.1:1&retry-deadline=1s";

/// Starts an agent with a configuration, a vault and a log of its own. `name` names everything it has; `run` is appended
/// to the table of its run `demo/a`.
pub(crate) fn start(
    place: &Place,
    name: &str,
    remote: &str,
    run: &str,
    variables: &[(&str, &str)],
) -> TestProcess {
    configure(place, name, remote, run);
    start_again(place, name, variables)
}

pub(crate) fn start_again(place: &Place, name: &str, variables: &[(&str, &str)]) -> TestProcess {
    place.start_agent(&["--config", &format!("{name}.toml")], variables)
}

/// The agent's own part of `status --json`, once it answers.
fn status(place: &Place, name: &str) -> Value {
    place.agent_status(&["--config", &format!("{name}.toml")])
}

pub(crate) fn drain(place: &Place, name: &str, agent: TestProcess) -> Outcome {
    let config = format!("{name}.toml");
    let drained = place.run(&["drain", "--wait", "--deadline", "10s", "--config", &config]);
    agent.wait();
    drained
}

/// One round of the agent with the configuration `n.toml`, and what it says.
pub(crate) fn round(place: &Place, code: i32) -> Outcome {
    place.run(&["agent", "--once", "--config", "n.toml"]).expect_code(code)
}

fn round_document(place: &Place, code: i32) -> Value {
    place.command(["agent", "--once", "--config", "n.toml"]).document(code)
}

pub(crate) fn configure(place: &Place, name: &str, remote: &str, run: &str) {
    std::fs::create_dir_all(place.path(&format!("out-{name}"))).unwrap();
    let (remote_name, url) = remote.split_once('=').unwrap();
    let text = format!(
        "node = \"{name}\"\n[local]\ndirectory = \"vault-{name}\"\n[remote.{remote_name}]\nurl = \"{url}\"\n\
         [run.\"demo/a\"]\nwatch = \"out-{name}\"\ncomplete = \"rename\"\n{run}"
    );
    place.write(&format!("{name}.toml"), text);
}

pub(crate) fn save(place: &Place, name: &str, step: &str) {
    let made = place.checkpoint(&format!("{name}-{step}"), &format!("{name} {step}"));
    std::fs::rename(made, place.path(&format!("out-{name}")).join(step)).unwrap();
}

/// As `rm -r` does it, called again where the agent has just written something.
fn delete_vault(place: &Place) {
    wait_until("the vault is deleted", || std::fs::remove_dir_all(place.path("vault-n")).is_ok());
}

pub(crate) fn main_remote(place: &Place) -> String {
    format!("main={}", place.remote())
}

#[test]
fn a_round_is_not_durable_while_the_vault_holds_undurable_steps_of_a_run_that_was_renamed() {
    let place = Place::new();
    configure(&place, "n", GONE, "");
    save(&place, "n", "step_1");
    round(&place, 3);
    // The remote answers again, and the run has another name by now.
    configure(&place, "n", &main_remote(&place), "");
    place.remove("out-n");
    place.write("n.toml", place.read("n.toml").replace("demo/a", "demo/renamed"));
    round(&place, 3).expect_stdout(&["'stepvault agent --once --run demo/a'", "1 step of the run 'demo/a'"]);
    let document = round_document(&place, 3);
    assert_eq!(document["durable"], false);
    assert_eq!(document["unserved"][0]["run"], "demo/a");
    assert_eq!(document["not_durable"][0]["run"], "demo/a");
    let shown = place.run(&["status", "--config", "n.toml"]).expect_code(0).stdout;
    assert!(shown.contains("other  the vault holds 1 step of the run 'demo/a'"), "{shown}");
    // What the hint says helps.
    place.succeed(&["agent", "--once", "--config", "n.toml", "--run", "demo/a"]);
    round(&place, 0);
}

#[test]
fn a_round_is_not_durable_while_a_finished_step_cannot_be_sealed() {
    let place = Place::new();
    configure(&place, "n", &main_remote(&place), "");
    save(&place, "n", "step_1");
    let made = place.checkpoint("n-step_2", "two");
    assert!(Command::new("mkfifo").arg(made.join("pipe")).status().unwrap().success());
    std::fs::rename(made, place.path("out-n/step_2")).unwrap();
    let told = round_document(&place, 3);
    assert_eq!(told["not_durable"], json!([]));
    let path = told["unsealed"][0]["path"].as_str().unwrap();
    assert!(path.ends_with("out-n/step_2"), "{told:#}");
    // The same of a drain.
    let agent = start_again(&place, "n", &[]);
    wait_until("it cannot be sealed", || status(&place, "n")["unsealed"] != json!([]));
    drain(&place, "n", agent).expect_code(3).expect_stdout(&["step_2 is not sealed"]);
    std::fs::remove_file(place.path("out-n/step_2/pipe")).unwrap();
    round(&place, 0);
}

#[test]
fn a_round_is_not_durable_while_a_sealed_step_cannot_be_read() {
    let place = Place::new();
    configure(&place, "n", GONE, "");
    save(&place, "n", "step_1");
    round(&place, 3);
    place.write("vault-n/runs/demo%2Fa/steps/000000000001.a1/seal.json", "rot");
    place.remove("out-n/step_1");
    configure(&place, "n", &main_remote(&place), "");
    let told = round_document(&place, 3);
    assert_eq!(told["unreadable"].as_array().unwrap().len(), 1, "{told:#}");
}

#[test]
fn a_bucket_that_somebody_creates_later_gets_every_step_without_a_restart() {
    let (place, server) = (Place::new(), StrictS3::start());
    server.create_bucket("bucket");
    let no_bucket = || {
        for method in ["GET", "HEAD", "PUT", "POST"] {
            let refusal = FaultAction::refuse(404, "NoSuchBucket");
            server.faults().inject(method, "", u64::MAX, refusal);
        }
    };
    no_bucket();
    let remote = format!("s3=s3://bucket/prefix?endpoint={}&region=us-east-1", server.endpoint());
    let keys = [("AWS_ACCESS_KEY_ID", server.access_key()), ("AWS_SECRET_ACCESS_KEY", server.secret_key())];
    let mut agent = start(&place, "n", &remote, "", &keys);
    save(&place, "n", "step_1");
    agent.wait_for_log("is not durable on s3");
    let told = &status(&place, "n")["remotes"][0];
    assert_members(told, &json!({ "needs_operator": true, "error_kind": "usage" }));
    let shown = place.run(&["status", "--config", "n.toml"]).expect_code(0).stdout;
    assert!(shown.contains("an operator must resolve this; retried"), "{shown}");
    // It is tried again.
    wait_until("more requests", || server.faults().requests().len() >= 6);
    server.faults().clear();
    agent.wait_for_log("s3: step 1 (attempt 1) is durable");
    assert_eq!(agent.logged().matches("is not durable on s3").count(), 1);
    // A drain does not wait for a person.
    no_bucket();
    save(&place, "n", "step_2");
    agent.wait_for_log("step 2 (attempt 1) of demo/a is not durable on s3");
    let begun = Instant::now();
    drain(&place, "n", agent).expect_code(3);
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
}

#[test]
fn a_vault_that_is_deleted_under_the_agent_is_begun_anew_and_nothing_half_is_left() {
    let place = Place::new();
    let mut agent = start(&place, "n", &main_remote(&place), "", &[]);
    save(&place, "n", "step_1");
    agent.wait_for_log("main: step 1 (attempt 1) is durable");
    delete_vault(&place);
    agent.wait_for_log("was deleted or replaced under the agent: every step in it was durable");
    agent.wait_for_log("creating a new vault");
    save(&place, "n", "step_2");
    agent.wait_for_log("main: step 2 (attempt 1) is durable");
    assert_eq!(status(&place, "n")["serves_run"], true);
    for name in ["vault.json", "lock", "agent.sock", "runs"] {
        assert!(place.path("vault-n").join(name).exists(), "{name}");
    }
    // The new vault is locked as the old one was.
    place.run(&["agent", "--config", "n.toml"]).expect_code(13);
    drain(&place, "n", agent).expect_code(0);
}

#[test]
fn what_was_lost_with_a_deleted_vault_is_not_called_durable() {
    let place = Place::new();
    let mut agent = start(&place, "n", GONE, "", &[]);
    save(&place, "n", "step_1");
    agent.wait_for_log("is not durable on main");
    // The trainer has deleted its own by then.
    std::fs::remove_dir_all(place.path("out-n/step_1")).unwrap();
    delete_vault(&place);
    agent.wait_for_log("it held 1 step that was not durable");
    agent.wait_for_log("creating a new vault");
    // The control socket is created after that message.
    status(&place, "n");
    drain(&place, "n", agent).expect_code(3).expect_stdout(&["it was lost with the vault"]);
}

#[test]
fn of_two_agents_on_the_path_of_a_deleted_vault_one_goes_on() {
    let place = Place::new();
    let mut first = start(&place, "n", &main_remote(&place), "", &[]);
    save(&place, "n", "step_1");
    first.wait_for_log("main: step 1 (attempt 1) is durable");
    delete_vault(&place);
    // Another configuration file, the same vault.
    place.write("m.toml", place.read("n.toml"));
    let mut second = start_again(&place, "m", &[]);
    let mut codes = Vec::new();
    wait_until("one of them ends", || {
        let ended = [first.ended(), second.ended()];
        codes = ended.into_iter().flatten().map(|status| status.code()).collect();
        !codes.is_empty()
    });
    assert_eq!(codes, [Some(13)], "the other one goes on");
    save(&place, "n", "step_2");
    wait_until("step 2 is committed", || place.commit(2, 1).exists());
}

#[test]
fn an_agent_warns_of_another_job_under_its_run_name_and_not_of_its_own_restart() {
    let place = Place::new();
    let remote = main_remote(&place);
    let mut first = start(&place, "one", &remote, "", &[("STEPVAULT_LAUNCH", "job-1")]);
    save(&place, "one", "step_1");
    first.wait_for_log("main: step 1 (attempt 1) is durable");
    let mut second = start(&place, "two", &remote, "", &[("STEPVAULT_LAUNCH", "job-2")]);
    second.wait_for_log("watching");
    std::thread::sleep(Duration::from_secs(1));
    save(&place, "two", "step_1");
    second.wait_for_log("main: step 1 (attempt 2) is durable");
    // It looks again with its own next step, or a minute later.
    save(&place, "one", "step_2");
    first.wait_for_log(
        "another training job writes this run on main: step 1 (attempt 2) was written by two, launch 'job-2'",
    );
    let told = &status(&place, "one")["other_writers"][0];
    assert_eq!((&told["launch"], &told["nodes"][0]), (&Value::from("job-2"), &Value::from("two")));
    // Written after the second had begun, by a launch that is older.
    save(&place, "two", "step_2");
    second.wait_for_log("another training job writes this run on main");
    drain(&place, "one", first).expect_code(0);
    drain(&place, "two", second).expect_code(0);

    // The job again, on another node: what its earlier launch left is uploaded late, and is no other job's.
    save(&place, "two", "step_9");
    std::thread::sleep(Duration::from_millis(1100));
    let mut third = start(&place, "three", &remote, "", &[("STEPVAULT_LAUNCH", "job-3")]);
    third.wait_for_log("watching");
    std::thread::sleep(Duration::from_secs(1));
    place
        .command(["agent", "--once", "--config", "two.toml"])
        .env("STEPVAULT_LAUNCH", "job-2")
        .run()
        .expect_code(0);
    assert!(place.commit(9, 2).exists());
    save(&place, "three", "step_3");
    third.wait_for_log("main: step 3 (attempt 3) is durable");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(status(&place, "three")["other_writers"], json!([]));
}

#[test]
fn an_exclusive_run_is_written_by_one_job_at_a_time() {
    let place = Place::new();
    let (remote, exclusive) = (main_remote(&place), "exclusive = true\n");
    let mut first = start(&place, "one", &remote, exclusive, &[("STEPVAULT_LAUNCH", "job-1")]);
    save(&place, "one", "step_1");
    first.wait_for_log("main: step 1 (attempt 1) is durable");
    let mut second = start(&place, "two", &remote, exclusive, &[("STEPVAULT_LAUNCH", "job-2")]);
    save(&place, "two", "step_7");
    second.wait_for_log(
        "another training job writes the run: 'demo/a' on main: the job of one in launch 'job-1'",
    );
    let push = place.checkpoint("step_8", "eight");
    place
        .run(&[
            "push",
            push.to_str().unwrap(),
            "--config",
            "two.toml",
            "--local",
            "vault-three",
            "--node",
            "three",
        ])
        .expect_code(13)
        .expect_stderr(&["another training job writes the run"]);
    let commits = || files_below(&place.path("remote/demo/a/.stepvault/commits")).len();
    assert_eq!(commits(), 1);
    // Once the first has ended, the second goes on by itself.
    drain(&place, "one", first).expect_code(0);
    wait_until("the second commit", || commits() == 2);
    drain(&place, "two", second).expect_code(0);
}

/// A volume that all users can write to, as an emptyDir of Kubernetes, with the vault and the checkpoints in it.
fn open_volume(place: &Place, allows: bool) {
    std::fs::create_dir(place.path("volume")).unwrap();
    set_mode(&place.path("volume"), 0o777);
    let text = format!(
        "[local]\ndirectory = \"volume/vault\"\nallow-shared-parents = {allows}\n[remote.main]\nurl = \"{}\"\n\
         [run.\"demo/a\"]\nwatch = \"volume/out\"\ncomplete = \"rename\"\n",
        place.remote()
    );
    place.write("n.toml", text);
}

#[test]
fn a_vault_below_an_open_directory_is_used_in_every_command_if_that_is_allowed() {
    let place = Place::new();
    open_volume(&place, true);
    let trainer =
        "mkdir -p volume/out/.t && echo 1 >volume/out/.t/m.bin && mv volume/out/.t volume/out/step_1";
    let run = ["run", "--config", "n.toml", "--into", "volume/out", "--", "sh", "-c"];
    place.command(run).with([trainer]).run().expect_code(0);
    assert!(place.commit(1, 1).exists(), "the step of `run` is durable");

    let made = place.checkpoint("two", "two");
    std::fs::rename(made, place.path("volume/out/step_2")).unwrap();
    round(&place, 0);
    assert!(place.commit(2, 1).exists(), "the step of `agent` is durable");
    let made = place.checkpoint("three", "three");
    std::fs::rename(made, place.path("volume/out/step_3")).unwrap();
    place.succeed(&["agent", "--once", "--like-last", "--local", "volume/vault"]);
    assert!(place.commit(3, 1).exists(), "the step of `agent --like-last` is durable");

    place.remove("volume/out");
    let restored = place.run(&["restore", "--config", "n.toml", "--into", "volume/out", "--wait-for-turn"]);
    let restored = restored.expect_code(0);
    assert!(!restored.stderr.contains("cannot"), "{restored:?}");
    assert!(place.path("volume/out/step_3").exists());
    place.succeed(&["doctor", "--config", "n.toml"]);
}

#[test]
fn a_vault_that_others_could_replace_never_ends_with_0() {
    let place = Place::new();
    open_volume(&place, true);
    std::fs::create_dir_all(place.path("volume/out")).unwrap();
    place.succeed(&["agent", "--once", "--config", "n.toml"]);
    place.remove("volume/vault");
    place.write("n.toml", place.read("n.toml").replace("parents = true", "parents = false"));
    round(&place, 1).expect_stderr(&["allow-shared-parents"]);
    place.run(&["doctor", "--config", "n.toml"]).expect_code(14);
}

#[test]
fn two_jobs_that_push_by_turns_are_warned() {
    let place = Place::new();
    let push = |step: u64, vault: &str| {
        let made = place.checkpoint(&format!("step_{step}"), &format!("{vault} {step}"));
        let arguments = ["push", made.to_str().unwrap(), "--local", vault, "--node", vault];
        place.run_here(&arguments).expect_code(0)
    };
    let is_warned = |outcome: &Outcome| outcome.stderr.contains("another job writes the run 'demo/a' on");
    assert!(!is_warned(&push(1, "one")) && !is_warned(&push(2, "one")));
    // It cannot know whether the job has moved here.
    assert!(!is_warned(&push(3, "two")));
    push(4, "one").expect_stderr(&["another job writes the run", "step 3 (attempt 1) was written by two"]);
    push(5, "two").expect_stderr(&["step 4 (attempt 1) was written by one"]);
    assert!(!is_warned(&push(6, "two")), "it is told once");
}

#[test]
fn the_same_size_and_times_with_other_bytes_are_another_checkpoint() {
    let place = Place::new();
    let save = |bytes: &str, links: &str| {
        place.remove("checkpoints");
        let path = place.write("checkpoints/step_1/model.bin", bytes);
        for path in [path.as_path(), path.parent().unwrap()] {
            let touched = Command::new("touch").args(["-d", "@1600000000"]).arg(path).status();
            assert!(touched.unwrap().success());
        }
        place.run_here(&["push", "checkpoints/step_1", "--local", "vault", links]).expect_code(0)
    };
    for links in ["--copy", "-v"] {
        save("AAAA", links);
        save("BBBB", links).expect_stdout(&["revision"]);
        // The vault is lost: only the remote knows.
        place.remove("vault");
        save("CCCC", links).expect_stdout(&["revision"]);
        place.remove("vault");
        let again = save("CCCC", links);
        assert!(again.stdout.contains("already durable"), "{again:?}");
        place.remove("vault");
        place.remove("remote/demo");
    }
}

#[test]
fn an_agent_does_not_take_other_bytes_for_the_sealed_step_because_of_their_times() {
    let place = Place::new();
    configure(&place, "n", &main_remote(&place), "");
    place.write("n.toml", place.read("n.toml").replace("[local]\n", "[local]\nlinks = \"copy\"\n"));
    let save = |bytes: &str| {
        place.remove("out-n/step_1");
        let path = place.write("new/model.bin", bytes);
        let touched = Command::new("touch").args(["-d", "@1600000000"]).arg(path).status();
        assert!(touched.unwrap().success());
        std::fs::rename(place.path("new"), place.path("out-n/step_1")).unwrap();
    };
    save("AAAA");
    round(&place, 0);
    save("BBBB");
    round(&place, 0);
    let stored = files_below(&place.path("remote"));
    let has = |bytes: &[u8]| stored.iter().any(|path| std::fs::read(path).unwrap() == bytes);
    assert!(has(b"AAAA") && has(b"BBBB"), "{stored:?}");
    // What it has seen so is known without a look at the bytes.
    round(&place, 0).expect_stdout(&["sealed 0 steps"]);
}

#[test]
fn an_archive_whose_filesystem_is_mounted_later_gets_every_step() {
    let place = Place::new();
    let url = format!("main=file://{}", place.path("mnt/archive").display());
    let mut agent = start(&place, "n", &url, "", &[]);
    save(&place, "n", "step_1");
    agent.wait_for_log("step 1 (attempt 1) of demo/a is not durable on main");
    save(&place, "n", "step_2");
    std::fs::create_dir(place.path("mnt")).unwrap();
    for step in [1, 2] {
        agent.wait_for_log(&format!("main: step {step} (attempt 1) is durable"));
    }
    drain(&place, "n", agent).expect_code(0);
}

#[test]
fn a_round_after_the_trainers_end_serves_the_run_that_only_the_command_line_named() {
    let place = Place::new();
    let configure = |url: &str, runs: &str| {
        let text = format!(
            "[local]\ndirectory = \"vault\"\n[agent]\ndrain-deadline = \"2s\"\n[remote.main]\nurl = \"{url}\"\n\
             {runs}"
        );
        place.write("n.toml", text);
    };
    configure(GONE.split_once('=').unwrap().1, "");
    let trainer = "mkdir -p out/.t && echo 1 >out/.t/m.bin && mv out/.t out/step_1";
    let run = [
        "run",
        "--config",
        "n.toml",
        "--start-anyway",
        "--run",
        "sweep-3",
        "--into",
        "out",
        "--",
        "sh",
        "-c",
    ];
    place.command(run).with([trainer]).envs(ANY_KEYS).run().expect_code(0);
    let epilog = ["agent", "--once", "--trainer-ended", "--config", "n.toml"];
    for runs in ["", "[run.other]\nwatch = \"other\"\n"] {
        std::fs::create_dir_all(place.path("other")).unwrap();
        configure(&place.remote(), runs);
        place.run(&epilog).expect_code(0);
        let commit = "remote/sweep-3/.stepvault/commits/000000000001.a1.json";
        assert!(place.path(commit).exists());
        place.remove("remote/sweep-3/.stepvault/commits");
    }
}

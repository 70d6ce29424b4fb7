//! Missing remotes: directories whose filesystem is not mounted, emptied buckets, unreadable objects. None of these
//! counts as an empty store or as damage.

use std::path::Path;

use serde_json::{Value, json};
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::support::{Outcome, Place, TestCommand, assert_members, at_once, listed_steps};

/// Steps are complete when they have their names: nothing is waited for.
const CONFIGURATION: &str = "[run.\"demo/a\"]\nwatch = \"out\"\ncomplete = \"rename\"\npattern = \"step_*\"\n\
                             [agent]\npoll-interval = \"200ms\"\n";

/// A node whose trainer went on from step 1: its vault is `vault`, and holds no step.
fn place_of_a_node() -> Place {
    let place = Place::new();
    place.push_steps(&[1]);
    place.write("stepvault.toml", CONFIGURATION);
    std::fs::create_dir(place.path("out")).unwrap();
    let remote = place.remote();
    let tiers = ["--remote", &remote, "--run", "demo/a", "--local", "vault"];
    place.succeed(&[&["run", "--into", "out"][..], &tiers, &["--", "true"]].concat());
    assert!(is_empty_or_missing(&place.path("vault/runs/demo%2Fa/steps")));
    place
}

/// A command of that node.
fn on_node(place: &Place, arguments: &[&str]) -> Outcome {
    place.run_here(&[arguments, &["--local", "vault"]].concat())
}

/// Takes the remote's filesystem away: what is left is the directory that it is mounted on, if `leaves` one.
fn unmount(place: &Place, leaves: bool) {
    std::fs::rename(place.path("remote"), place.path("unmounted")).unwrap();
    if leaves {
        std::fs::create_dir(place.path("remote")).unwrap();
    }
}

fn mount(place: &Place) {
    let _ = std::fs::remove_dir(place.path("remote"));
    std::fs::rename(place.path("unmounted"), place.path("remote")).unwrap();
}

fn is_empty_or_missing(path: &Path) -> bool {
    path.read_dir().map_or(true, |mut entries| entries.next().is_none())
}

#[test]
fn a_directory_that_is_missing_is_no_new_run() {
    let place = Place::new();
    std::fs::remove_dir(place.path("remote")).unwrap();
    for arguments in
        [&["restore", "--into", "back"][..], &["list"], &["verify"], &["prune", "--keep-last", "1"], &["gc"]]
    {
        place.run_here(arguments).expect_code(12).expect_stderr(&["does not exist", "mount its filesystem"]);
        assert!(!place.path("remote").exists(), "{arguments:?}");
    }
    std::fs::create_dir(place.path("remote")).unwrap();
    place.run_here(&["restore", "--into", "back"]).expect_code(10);
}

#[test]
fn the_first_push_creates_the_last_component_and_nothing_above_it() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    let url = format!("file://{}", place.path("mnt/archive").display());
    let push = || place.run(&["push", "checkpoints/step_1", "--run", "demo/a", "--remote", &url]);
    push().expect_code(12).expect_error("its parent directory");
    assert!(!place.path("mnt").exists());
    std::fs::create_dir(place.path("mnt")).unwrap();
    push().expect_code(0);
    assert!(place.path("mnt/archive/demo/a/.stepvault/vault.json").exists());
}

/// Whichever command asks, and whether the mount point is there or not.
#[test]
fn a_remote_that_is_not_mounted_is_unreachable_for_a_node_that_has_seen_it() {
    for leaves in [false, true] {
        let place = place_of_a_node();
        unmount(&place, leaves);
        place.checkpoint("step_2", "y");
        for (arguments, code) in [
            (&["restore", "--into", "again"][..], 12),
            // The vault can be asked.
            (&["list"], 3),
            (&["verify", "--tier", "remote"], 12),
            (&["prune", "--tier", "remote", "--keep-last", "1"], 12),
            (&["gc"], 12),
            (&["push", "checkpoints/step_2"], 12),
        ] {
            let outcome = on_node(&place, arguments);
            assert_eq!(outcome.code, code, "{arguments:?} {outcome:#?}");
            assert!(
                outcome.stderr.contains("mount") && outcome.stderr.contains("stepvault remote forget"),
                "{arguments:?} {outcome:#?}"
            );
            assert!(is_empty_or_missing(&place.path("remote")), "{arguments:?}");
            assert_eq!(place.path("remote").exists(), leaves, "{arguments:?}");
        }
        mount(&place);
        on_node(&place, &["push", "checkpoints/step_2"]).expect_code(0);
        let list = on_node(&place, &["list", "--json"]).expect_code(0).json();
        assert_eq!(listed_steps(&list), [2, 1]);
    }
}

#[test]
fn another_name_for_the_same_directory_remembers_the_same() {
    let place = place_of_a_node();
    unmount(&place, true);
    let named = format!("another={}", place.remote());
    place
        .run(&["restore", "--into", "again", "--run", "demo/a", "--local", "vault", "--remote", &named])
        .expect_code(12);
}

#[test]
fn another_run_begins_no_archive_where_this_vault_has_seen_one() {
    let place = place_of_a_node();
    place.checkpoint("step_2", "y");
    let remote = place.remote();
    let push = || {
        place.run(&["push", "checkpoints/step_2", "--run", "demo/b", "--local", "vault", "--remote", &remote])
    };
    for leaves in [false, true] {
        unmount(&place, leaves);
        push().expect_code(12);
        assert!(is_empty_or_missing(&place.path("remote")));
        assert_eq!(place.path("remote").exists(), leaves);
        mount(&place);
    }
    push().expect_code(0);
}

#[test]
fn nothing_is_evicted_while_the_remote_is_not_mounted() {
    let place = Place::new();
    for step in [1, 2, 3] {
        let name = format!("step_{step}");
        place.checkpoint(&name, &name);
        on_node(&place, &["push", &format!("checkpoints/{name}")]).expect_code(0);
    }
    unmount(&place, true);
    on_node(&place, &["prune", "--tier", "local", "--keep-last", "1"]);
    let document = on_node(&place, &["verify", "--tier", "local", "--json"]).json();
    assert_eq!(document["steps"].as_array().unwrap().len(), 3, "{document:#}");
    mount(&place);
    on_node(&place, &["prune", "--tier", "local", "--keep-last", "1"]).expect_code(0);
    let document = on_node(&place, &["verify", "--tier", "local", "--json"]).json();
    assert_eq!(document["steps"].as_array().unwrap().len(), 1, "{document:#}");
}

#[test]
fn an_archive_that_was_emptied_on_purpose_is_forgotten_and_filled_again() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    on_node(&place, &["push", "checkpoints/step_1"]).expect_code(0);
    std::fs::remove_dir_all(place.path("remote/demo")).unwrap();
    on_node(&place, &["push", "checkpoints/step_1"]).expect_code(12);
    let forget = |json: &[&str]| {
        place.run(&[&["remote", "forget", "file-remote", "--local", "vault"][..], json].concat())
    };
    let document = forget(&["--json"]).expect_code(0).json();
    assert_eq!(document["runs"][0]["run"], "demo/a", "{document:#}");
    assert_eq!((&document["runs"][0]["archive"], &document["runs"][0]["steps"]), (&true.into(), &1.into()));
    let again = forget(&[]).expect_code(0);
    assert_eq!(again.stdout, "the vault has no records of file-remote\n");
    let pushed = on_node(&place, &["push", "checkpoints/step_1", "--json"]).expect_code(0).json();
    assert_eq!(pushed["remotes"][0]["durable"], true);
    on_node(&place, &["verify", "--deep", "--tier", "remote"]).expect_code(0);
}

#[test]
fn a_remote_is_not_forgotten_under_an_agent() {
    let place = place_of_a_node();
    let lock = std::fs::File::open(place.path("vault/lock"));
    let lock = lock.unwrap_or_else(|_| std::fs::File::create(place.path("vault/lock")).unwrap());
    lock.lock().unwrap();
    place.run(&["remote", "forget", "file-remote", "--local", "vault"]).expect_code(13);
}

#[test]
fn no_trainer_is_started_while_the_remote_is_not_mounted() {
    let place = Place::new();
    place.write("stepvault.toml", CONFIGURATION);
    std::fs::create_dir(place.path("out")).unwrap();
    let remote = place.remote();
    let run_with = |remote: &str| place.run(&["run", "--remote", remote, "--", "touch", "started"]);
    let run = || run_with(&remote);
    // On a node that knows of nothing, below a mount point without its filesystem, and on one that has been here before.
    std::fs::create_dir(place.path("mount")).unwrap();
    run_with(&format!("file://{}", place.path("mount/remote").display())).expect_code(12);
    assert!(!place.path("started").exists() && !place.path("mount/remote").exists());
    run().expect_code(0);
    assert!(place.path("started").exists());
    std::fs::remove_file(place.path("started")).unwrap();
    place.push_steps(&[1]);
    std::fs::remove_dir_all(place.path("checkpoints")).unwrap();
    run().expect_code(0);
    std::fs::remove_file(place.path("started")).unwrap();
    std::fs::remove_dir_all(place.path("out")).unwrap();
    std::fs::create_dir(place.path("out")).unwrap();
    unmount(&place, true);
    run().expect_code(12).expect_stderr(&["the trainer was not started"]);
    assert!(!place.path("started").exists() && is_empty_or_missing(&place.path("remote")));
}

#[test]
fn an_agent_waits_for_the_mount_and_goes_on_by_itself() {
    let place = Place::new();
    place.write("stepvault.toml", CONFIGURATION);
    std::fs::create_dir(place.path("out")).unwrap();
    let remote = place.remote();
    let mut agent = place.start_agent(&["--remote", &remote, "--local", "vault"], &[]);
    place.save_into("out", "step_1");
    agent.wait_until("step 1 is committed", || place.commit(1, 1).exists());
    unmount(&place, true);
    place.save_into("out", "step_2");
    agent.wait_for_log("stepvault remote forget");
    assert!(is_empty_or_missing(&place.path("remote")), "{}", agent.logged());
    // What is mounted again is found without help.
    mount(&place);
    agent.wait_until("step 2 is committed", || place.commit(2, 1).exists());
}

struct S3Place {
    place: Place,
    server: StrictS3,
}

impl S3Place {
    fn new() -> Self {
        let server = StrictS3::start();
        server.create_bucket("bucket");
        let place = Place::new();
        // Nothing waits long at the end for a store that refuses to answer.
        place.write("stepvault.toml", format!("{CONFIGURATION}drain-deadline = \"2s\"\n"));
        Self { place, server }
    }

    fn command(&self, arguments: &[&str]) -> TestCommand {
        let endpoint = self.server.endpoint();
        let remote = format!(
            "s3=s3://bucket/prefix?endpoint={endpoint}&region=us-east-1&allow-http=true&retry-deadline=1s"
        );
        let before = ["--remote", remote.as_str(), "--run", "demo/a"];
        let mut command = self.place.command([&before[..], arguments].concat());
        command
            .env("AWS_ACCESS_KEY_ID", self.server.access_key())
            .env("AWS_SECRET_ACCESS_KEY", self.server.secret_key());
        command
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        self.command(arguments).run()
    }

    fn push(&self, step: u64) -> Outcome {
        let name = format!("step_{step}");
        self.place.checkpoint(&name, &name);
        self.run(&["push", &format!("checkpoints/{name}"), "--local", "vault"])
    }
}

#[test]
fn a_bucket_that_was_emptied_gets_no_marker_in_silence() {
    let place = S3Place::new();
    place.push(1).expect_code(0);
    place.server.objects().with(std::collections::BTreeMap::clear);
    // The vault can be asked, so that a list is had in part.
    let of_remote = ["--tier", "remote", "--keep-last", "1"];
    let prune = [&["prune", "--local", "vault"][..], &of_remote].concat();
    for (arguments, code) in
        [(&["list", "--local", "vault"][..], 3), (&prune, 12), (&["gc", "--local", "vault"], 12)]
    {
        let outcome = place.run(arguments).expect_code(code);
        assert!(outcome.stderr.contains("stepvault remote forget s3"), "{arguments:?} {outcome:#?}");
    }
    place.push(2).expect_code(12);
    let keys = place.server.objects().keys();
    assert!(keys.is_empty(), "{keys:?}");
    place.run(&["remote", "forget", "s3", "--local", "vault"]).expect_code(0);
    place.push(2).expect_code(0);
    let list = place.command(&["list"]).document(0);
    assert_eq!(listed_steps(&list), [2]);
}

/// Neither `restore` nor `run` takes an older step in silence while the store refuses to serve `key` of the newest.
fn a_step_that_cannot_be_read_is_not_skipped_in_silence(key: &str) {
    let place = S3Place::new();
    for step in [1, 2] {
        place.push(step).expect_code(0);
    }
    std::fs::remove_dir_all(place.place.path("vault")).unwrap();
    let kept = place.server.objects().with(|objects| objects.clone());
    let faults = place.server.faults();
    faults.inject("GET", key, u64::MAX, FaultAction::refuse(503, "SlowDown"));
    let outcome = place.run(&["restore", "--into", "back", "--json"]).expect_code(12);
    let document = outcome.json();
    assert_eq!(document["error"]["kind"], "unreachable", "{document:#}");
    let message = document["error"]["message"].as_str().unwrap();
    assert!(message.contains("step 2 (attempt 1)"), "{key}: {message}");
    outcome.expect_stderr(&["--allow-older"]);
    assert!(!place.place.path("back/step_1").exists());
    let run = ["run", "--into", "out", "--local", "vault"];
    std::fs::create_dir_all(place.place.path("out")).unwrap();
    let trainer = ["--", "touch", "started"];
    place.run(&[&run[..], &trainer].concat()).expect_code(12);
    assert!(!place.place.path("started").exists(), "{key}");
    let older = place.command(&["restore", "--into", "older", "--replace", "--allow-older"]).document(0);
    assert_eq!(older["step"], 1, "{older:#}");
    let skipped: &Value = &older["skipped"][0];
    assert_members(skipped, &json!({ "step": 2, "unread": true }));
    place.run(&[&run[..], &["--allow-older"], &trainer].concat()).expect_code(0);
    assert!(place.place.path("started").exists(), "{key}");
    std::fs::remove_file(place.place.path("started")).unwrap();
    for directory in ["out", "older", "vault"] {
        place.place.remove(directory);
    }
    faults.clear();
    // What the trainer's start has left there.
    place.server.objects().with(|objects| objects.clone_from(&kept));
    let whole = place.command(&["restore", "--into", "back"]).document(0);
    assert_eq!(whole["step"], 2);
    assert_eq!(whole["skipped"].as_array().unwrap().len(), 0);
}

#[test]
fn a_commit_a_manifest_or_a_file_that_cannot_be_read_is_not_skipped_in_silence() {
    let keys = ["commits/000000000002.a1", "parts/000000000002.a1", "000000000002.a1/step_2/model.bin"];
    at_once(keys, a_step_that_cannot_be_read_is_not_skipped_in_silence);
}

//! Remotes and vaults that go back in time, and vaults that are copied.

use std::path::Path;
use std::process::Command;

use stepvault_testkit::tree::files_below;

use crate::agent_truth::{configure, drain, main_remote, round, save, start, start_again};
use crate::support::{Place, wait_until};

/// Copies a directory with all its times, and replaces what is there.
fn copy(place: &Place, from: &str, to: &str) {
    let target = place.path(to);
    if target.exists() {
        place.remove(to);
    }
    let copied = Command::new("cp").arg("-a").args([&place.path(from), &target]).status();
    assert!(copied.unwrap().success());
}

/// Replaces what a directory holds by what an older copy of it holds, as a snapshot does: it stays the same directory.
fn go_back(place: &Place, name: &str, older: &str) {
    let entries = |directory: &Path| std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    for entry in entries(&place.path(name)) {
        let path = entry.path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }
    for entry in entries(&place.path(older)) {
        std::fs::rename(entry.path(), place.path(name).join(entry.file_name())).unwrap();
    }
}

#[test]
fn steps_that_a_remote_has_lost_are_uploaded_again() {
    let place = Place::new();
    configure(&place, "n", &main_remote(&place), "");
    place.write("n.toml", place.read("n.toml") + "[agent]\nretention-interval = \"1s\"\n");
    save(&place, "n", "step_1");
    round(&place, 0);
    let older = || copy(&place, "remote", "older");
    let go_back = || go_back(&place, "remote", "older");
    older();
    save(&place, "n", "step_2");
    save(&place, "n", "step_3");
    round(&place, 0);
    go_back();
    assert!(!place.commit(3, 1).exists());
    round(&place, 0)
        .expect_stderr(&["steps of demo/a that were durable on main are gone from it: step 2", "step 3"]);
    assert!(place.commit(2, 1).exists() && place.commit(3, 1).exists());
    // Nothing is lost any more.
    let quiet = round(&place, 0);
    assert!(!quiet.stderr.contains("gone"), "{quiet:?}");

    // The same under a running agent, which had nothing to do.
    older();
    save(&place, "n", "step_4");
    let mut agent = start_again(&place, "n", &[]);
    agent.wait_for_log("main: step 4 (attempt 1) is durable");
    go_back();
    agent.wait_for_log("steps of demo/a that were durable on main are gone from it: step 4");
    wait_until("step 4 is committed again", || place.commit(4, 1).exists());
    drain(&place, "n", agent).expect_code(0);
}

#[test]
fn a_push_sends_what_the_remote_has_lost() {
    let place = Place::new();
    place.checkpoint("step_1", "one");
    let push = || place.run_here(&["push", "checkpoints/step_1", "--local", "vault"]);
    push().expect_code(0);
    for lost in [".stepvault/commits", ".stepvault/parts", "000000000001.a1"] {
        place.remove(&format!("remote/demo/a/{lost}"));
    }
    push().expect_code(0).expect_stderr(&["step 1 (attempt 1) was durable on", "and is gone from it"]);
    assert!(place.commit(1, 1).exists());
}

#[test]
fn a_vault_that_goes_back_in_time_uses_no_identity_again() {
    let place = Place::new();
    configure(&place, "n", &main_remote(&place), "");
    save(&place, "n", "step_1");
    round(&place, 0);
    // Sealed, and not uploaded when the snapshot was taken.
    std::fs::rename(place.path("remote"), place.path("away")).unwrap();
    save(&place, "n", "step_2");
    round(&place, 3);
    std::fs::rename(place.path("away"), place.path("remote")).unwrap();
    copy(&place, "vault-n", "older");
    copy(&place, "out-n", "older-out");
    save(&place, "n", "step_3");
    save(&place, "n", "step_4");
    round(&place, 0);
    let prune = ["prune", "--tier", "remote", "--keep-last", "1", "--config", "n.toml"];
    place.run(&prune).expect_code(0);
    let commits = || {
        let mut names = files_below(&place.path("remote/demo/a/.stepvault/commits"));
        names.sort();
        names
    };
    let before: Vec<_> = commits();
    assert_eq!(before.len(), 1, "{before:?}");
    let content = std::fs::read(place.commit(4, 1)).unwrap();

    go_back(&place, "vault-n", "older");
    go_back(&place, "out-n", "older-out");
    // Step 2 was removed meanwhile; the trainer saves steps 3 and 4 again, with other bytes.
    for step in ["step_3", "step_4"] {
        place.write("again", "another");
        std::fs::create_dir_all(place.path("t")).unwrap();
        std::fs::rename(place.path("again"), place.path("t/model.bin")).unwrap();
        std::fs::rename(place.path("t"), place.path("out-n").join(step)).unwrap();
    }
    let said = round(&place, 0);
    let removed = "retention had already removed step 2 (attempt 1)";
    assert!(said.stdout.contains(removed) && !place.commit(2, 1).exists(), "{said:?}");
    assert_eq!(std::fs::read(place.commit(4, 1)).unwrap(), content);
    assert!(!place.commit(3, 1).exists(), "{said:?}");
    let restored = place.path("restored");
    place
        .run(&["restore", "--config", "n.toml", "--local", "vault-new", "--as", restored.to_str().unwrap()])
        .expect_code(0);
    assert_eq!(place.read("restored/model.bin"), "another");
}

#[test]
fn two_clones_of_a_vault_are_two_jobs() {
    let place = Place::new();
    let (remote, exclusive) = (main_remote(&place), "exclusive = true\n");
    configure(&place, "one", &remote, exclusive);
    save(&place, "one", "step_1");
    let ended = place.run(&["agent", "--once", "--config", "one.toml"]).expect_code(0);
    assert!(!ended.stderr.contains("copy of another"), "{ended:?}");
    copy(&place, "vault-one", "vault-two");
    let mut first = start_again(&place, "one", &[]);
    save(&place, "one", "step_2");
    first.wait_for_log("main: step 2 (attempt 1) is durable");
    let mut second = start(&place, "two", &remote, exclusive, &[]);
    second.wait_for_log("this vault is a copy of another one (its directory is another one)");
    save(&place, "two", "step_7");
    second.wait_for_log("another training job writes the run: 'demo/a' on main: the job of one");
    drain(&place, "one", first).expect_code(0);
    second.wait_for_log("main: step 7 (attempt 1) is durable");
    drain(&place, "two", second).expect_code(0);
}

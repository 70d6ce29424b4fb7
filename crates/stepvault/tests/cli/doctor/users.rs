//! Directories and files that another user owns.

use std::os::unix::fs::chown;

use stepvault_testkit::tree::set_mode;
use stepvault_testkit::users::NOBODY;

use crate::doctor::{Findings as _, place};
use crate::support::{Outcome, Place};

/// Runs as another user; `None`, and reports it, where that cannot be done.
fn as_nobody(place: &Place) -> Option<Outcome> {
    let arguments = ["doctor", "run", "--local", "vault", "--json"];
    Some(place.command_of(NOBODY, &arguments)?.run())
}

fn give_to_nobody(place: &Place, names: &[&str]) {
    for name in names {
        chown(place.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

#[test]
fn a_directory_of_another_user_fails() {
    let place = place();
    give_to_nobody(&place, &["vault", "tmp"]);
    let Some(ran) = as_nobody(&place) else { return };
    let ran = ran.expect_code(14);
    ran.finding("directory", "checkpoints").expect(
        "fail",
        "this user may not do that",
        "run stepvault as the user that trains",
    );
    ran.finding("directory", "vault").expect("pass", "written", "");
}

#[test]
fn a_vault_of_another_user_fails() {
    let place = place();
    give_to_nobody(&place, &["run", "tmp"]);
    // Open to all, so that nothing but its owner and its mode is wrong.
    set_mode(&place.path("vault"), 0o777);
    let Some(ran) = as_nobody(&place) else { return };
    ran.expect_code(14).finding("vault owner", "vault").expect(
        "fail",
        "it can be written to by every user, who could plant a checkpoint for a restore",
        "run chmod go-w",
    );
}

#[test]
fn a_home_of_another_user_hides_no_configuration_that_counts() {
    let place = place();
    give_to_nobody(&place, &["vault", "tmp", "run"]);
    let closed = place.path(".config");
    std::fs::create_dir(&closed).unwrap();
    set_mode(&closed, 0o700);
    let Some(ran) = as_nobody(&place) else { return };
    ran.expect_code(0)
        .expect_stderr(&["permission denied: this configuration file is ignored"])
        .finding("directory", "run")
        .expect("pass", "written", "");
    // One that is seen and cannot be read is another matter.
    let own = place.path(".config/stepvault");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("stepvault.toml"), "").unwrap();
    set_mode(&own.join("stepvault.toml"), 0o600);
    set_mode(&closed, 0o755);
    let Some(ran) = as_nobody(&place) else { return };
    ran.expect_code(2).expect_stderr(&["this user may not do that"]);
}

#[test]
fn files_of_another_user_are_copied_and_that_is_said() {
    let place = place();
    place.save_in_run("step_5", 3000, 0);
    // By its profile a step of nobody knows whom is copied in any case.
    let configuration = "[run.mine]\nwatch = \"run\"\ncomplete = \"quiet\"\n";
    std::fs::write(place.path("stepvault.toml"), configuration).unwrap();
    give_to_nobody(&place, &["vault", "tmp", "run"]);
    let past = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    let file = std::fs::File::open(place.path("run/step_5/model.bin")).unwrap();
    file.set_modified(past).unwrap();
    let Some(ran) = as_nobody(&place) else { return };
    let protects = std::fs::read_to_string("/proc/sys/fs/protected_hardlinks");
    if protects.is_ok_and(|text| text.trim() == "0") {
        eprintln!("not run: this kernel lets users link the files of others");
        return;
    }
    ran.finding("hard links", "run to ").expect(
        "warn",
        "the trainer's files belong to user 0, and the kernel does not let other users link them: 2.9 KiB of each step",
        "run the agent as the trainer's user",
    );
}

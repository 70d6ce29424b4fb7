//! Directories and files that another user owns.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::place::{Place, Ran, doctor_line};

const NOBODY: u32 = 65534;

/// Runs as another user; `None`, and says so, where that cannot be done.
fn as_nobody(place: &Place) -> Option<Ran> {
    let line = doctor_line(&["run", "--local", "vault", "--json"]);
    let is_reachable = |path: &str| {
        std::path::Path::new(path).ancestors().skip(1).all(|above| {
            above
                .metadata()
                .is_ok_and(|facts| facts.permissions().mode() & 0o001 != 0)
        })
    };
    if !rustix::process::geteuid().is_root() || !is_reachable(&line[0]) {
        eprintln!("not run: only the superuser can become another user, who has to reach the program");
        return None;
    }
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).uid(NOBODY).gid(NOBODY);
    Some(place.run(&mut command))
}

#[test]
fn a_directory_of_another_user_fails() {
    let place = Place::new();
    for name in ["vault", "tmp"] {
        chown(place.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
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
    let place = Place::new();
    for name in ["run", "tmp"] {
        chown(place.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // Open to all, so that nothing but its owner and its mode is wrong.
    std::fs::set_permissions(place.path("vault"), std::fs::Permissions::from_mode(0o777)).unwrap();
    let Some(ran) = as_nobody(&place) else { return };
    ran.expect_code(14).finding("vault owner", "vault").expect(
        "fail",
        "it can be written to by every user, who could plant a checkpoint for a restore",
        "run chmod go-w",
    );
}

#[test]
fn a_home_of_another_user_hides_no_configuration_that_counts() {
    let place = Place::new();
    for name in ["vault", "tmp", "run"] {
        chown(place.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let closed = place.path(".config");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let Some(ran) = as_nobody(&place) else { return };
    assert!(
        ran.stderr
            .contains("permission denied: this configuration file is ignored"),
        "{}",
        ran.stderr
    );
    ran.expect_code(0)
        .finding("directory", "run")
        .expect("pass", "written", "");
    // One that is seen and cannot be read is another matter.
    let own = place.path(".config/stepvault");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("stepvault.toml"), "").unwrap();
    std::fs::set_permissions(own.join("stepvault.toml"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
    let Some(ran) = as_nobody(&place) else { return };
    let ran = ran.expect_code(2);
    assert!(ran.stderr.contains("this user may not do that"), "{}", ran.stderr);
}

#[test]
fn files_of_another_user_are_copied_and_that_is_said() {
    let place = Place::new();
    place.write_step("step_5", 3000, 0);
    // By its profile a step of nobody knows whom is copied in any case.
    let configuration = "[run.mine]\nwatch = \"run\"\ncomplete = \"quiet\"\n";
    std::fs::write(place.path("stepvault.toml"), configuration).unwrap();
    for name in ["vault", "tmp", "run"] {
        let _ = chown(place.path(name), Some(NOBODY), Some(NOBODY));
    }
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

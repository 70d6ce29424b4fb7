//! Full disks, and directories that are not writable.

use stepvault_testkit::tree::set_mode;
use stepvault_testkit::users::NOBODY;

use crate::explain::{Found, Tmpfs};
use crate::support::Place;

const TORCH: &str = "Traceback (most recent call last):
  File \"/workspace/prime-rl/.venv/lib/python3.12/site-packages/torch/serialization.py\", line 966, in save
    with _open_zipfile_writer(f) as opened_zipfile:
RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0
";

#[test]
fn a_disk_without_bytes() {
    let place = Place::on_disk();
    let Some(disk) = Tmpfs::mount(place.path("out"), "size=2m") else {
        return;
    };
    disk.fill();
    let log = place.write("rank_0.log", format!("step 99\n{TORCH}"));
    let found = place.explain(&["out", "--log", log.to_str().unwrap()]);
    assert_eq!(found.causes(), ["disk-full"], "{found:#?}");
    let cause = found.cause("disk-full");
    assert_eq!(cause["likelihood"], "very-likely");
    let evidence = found.evidence("disk-full");
    assert!(evidence.contains("/out: 0 B of 2.0 MiB free"), "{evidence}");
    assert!(evidence.contains("unexpected pos 64 vs 0"), "{evidence}");
    let lines: Vec<_> =
        cause["evidence"].as_array().unwrap().iter().map(|piece| piece["line"].as_u64()).collect();
    assert!(lines.contains(&Some(5)) && lines.contains(&Some(4)), "{lines:?}");
    let printed = place.run(&["explain", "out", "--log", "rank_0.log"]).expect_code(0);
    assert!(printed.stdout.starts_with("1. disk-full, very likely: "), "{printed:#?}");
    printed.expect_stdout(&["rank_0.log:5: RuntimeError: [enforce fail", "clean-source"]);
}

#[test]
fn a_disk_without_inodes_has_bytes_left() {
    let place = Place::on_disk();
    let Some(disk) = Tmpfs::mount(place.path("out"), "size=8m,nr_inodes=80") else {
        return;
    };
    disk.fill_with_files();
    place.write("a.log", "OSError: [Errno 28] No space left on device: 'out/step_2'\n");
    let found = place.explain(&["out", "--log", "a.log"]);
    assert_eq!(found.causes(), ["inodes-full"], "the log's words are the same for both: {found:#?}");
    assert!(found.evidence("inodes-full").contains("/out: 0 inodes free"), "{found:#?}");
}

#[test]
fn a_full_disk_of_temporary_files_is_told_from_the_checkpoints() {
    let place = Place::on_disk();
    let Some(disk) = Tmpfs::mount(place.path("scratch"), "size=1m") else {
        return;
    };
    disk.fill();
    std::fs::create_dir(place.path("out")).unwrap();
    place.write("a.log", "RuntimeError: unexpected pos 64 vs 0\n");
    let found = place.explain(&["out", "--log", "a.log", "--tmpdir", "scratch"]);
    assert_eq!(found.causes(), ["temporary-directory-full"], "{found:#?}");
    let mut command = place.command(["explain", "--json", "out"]);
    command.env("TMPDIR", place.path("scratch"));
    let found = Found::of(&command.run().expect_code(0));
    assert_eq!(found.causes(), ["temporary-directory-full"], "{found:#?}");
}

#[test]
fn a_mount_that_became_read_only() {
    let place = Place::on_disk();
    let Some(disk) = Tmpfs::mount(place.path("out"), "size=4m") else {
        return;
    };
    disk.remount("remount,ro");
    place.write("a.log", "OSError: [Errno 30] Read-only file system: 'out/step_2'\n");
    let found = place.explain(&["out", "--log", "a.log"]);
    assert_eq!(found.causes(), ["read-only"], "{found:#?}");
    assert!(found.evidence("read-only").contains("mounted read-only"), "{found:#?}");
}

#[test]
fn a_directory_that_is_not_there() {
    let place = Place::on_disk();
    place.write("a.log", "RuntimeError: Parent directory /mnt/checkpoints does not exist.\n");
    let found = place.explain(&["checkpoints", "--log", "a.log"]);
    assert_eq!(found.causes(), ["directory-missing"], "{found:#?}");
    let evidence = found.evidence("directory-missing");
    assert!(evidence.contains("/checkpoints does not exist"), "{evidence}");
    assert_eq!(found.0["resume"], serde_json::Value::Null);
}

#[test]
fn a_directory_of_another_user() {
    let place = Place::on_disk();
    std::fs::create_dir(place.path("out")).unwrap();
    set_mode(&place.path("out"), 0o755);
    let Some(mut explain) = place.command_of(NOBODY, &["explain", "--json", "out"]) else {
        return;
    };
    explain.env("HOME", "/nonexistent").env("TMPDIR", "/tmp");
    let found = Found::of(&explain.run().expect_code(0));
    assert_eq!(found.causes(), ["permission-denied"], "{found:#?}");
    let evidence = found.evidence("permission-denied");
    assert!(evidence.contains("user 65534 has no permission to write to"), "{evidence}");
    assert!(evidence.contains("its owner is user 0"), "{evidence}");
}

#[test]
fn a_directory_where_nothing_is_wrong() {
    let place = Place::on_disk();
    std::fs::create_dir(place.path("out")).unwrap();
    place.write("a.log", "step 1\nstep 2\n");
    let found = place.explain(&["out", "--log", "a.log"]);
    assert!(found.causes().is_empty(), "{found:#?}");
}

//! `push`, loss of the local tier, `restore`: bytes, modes and times.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::support::Place;

/// Everything below a directory: mode, time to the nanosecond, and bytes or link target.
fn tree(root: &Path) -> BTreeMap<String, (u32, SystemTime, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        if metadata.is_symlink() {
            let target = std::fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes();
            found.insert(name, (0, SystemTime::UNIX_EPOCH, target));
            continue;
        }
        let bytes = if metadata.is_dir() {
            Vec::new()
        } else {
            std::fs::read(&path).unwrap()
        };
        found.insert(
            name,
            (
                metadata.permissions().mode() & 0o777,
                metadata.modified().unwrap(),
                bytes,
            ),
        );
        if metadata.is_dir() {
            pending.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    found
}

fn dress(path: &Path, mode: u32, seconds: u64, nanoseconds: u32) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    File::open(path).unwrap().set_modified(time).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_directory_comes_back_with_bytes_modes_and_times() {
    let place = Place::new();
    let source = place.checkpoint("step_100", "weights");
    std::fs::create_dir_all(source.join("sub/empty")).unwrap();
    std::fs::write(source.join("sub/run.sh"), "#!/bin/sh\n").unwrap();
    std::fs::write(source.join("nothing"), "").unwrap();
    symlink("model.bin", source.join("latest")).unwrap();
    // Several parts, and no two alike.
    let large: Vec<u8> = (0..20_000_000_u32)
        .map(|number| u8::try_from(number.wrapping_mul(2_654_435_761) >> 24).unwrap())
        .collect();
    std::fs::write(source.join("large.bin"), large).unwrap();
    dress(&source.join("sub/run.sh"), 0o755, 1_700_000_000, 123_456_789);
    dress(&source.join("nothing"), 0o600, 1_600_000_000, 1);
    dress(&source.join("sub/empty"), 0o700, 1_500_000_000, 0);
    dress(&source, 0o750, 1_700_000_001, 0);
    let before = tree(&source);

    let pushed = place
        .run_here(&["push", "checkpoints/step_100", "--json"])
        .expect_code(0)
        .json();
    assert_eq!(
        (&pushed["step"], &pushed["attempt"], &pushed["newly_sealed"]),
        (&100.into(), &1.into(), &true.into())
    );
    assert_eq!(pushed["remotes"][0]["durable"], true);
    assert_eq!(tree(&source), before, "the push changed its source");
    std::fs::remove_dir_all(place.path("checkpoints")).unwrap();
    std::fs::remove_dir_all(place.path(".stepvault")).unwrap();

    let plan = place
        .run_here(&["restore", "--into", "back", "--plan", "--json"])
        .expect_code(0)
        .json();
    assert_eq!(
        (&plan["planned"], &plan["sources"][0]["tier"]),
        (&true.into(), &"file-remote".into())
    );
    assert!(!place.path("back").exists(), "a plan did something");

    let restored = place
        .run_here(&["restore", "--into", "back", "--json"])
        .expect_code(0)
        .json();
    assert_eq!(restored["path"], place.path("back/step_100").to_str().unwrap());
    assert_eq!(restored["bytes"], pushed["bytes"]);
    assert_eq!(
        restored["sources"],
        serde_json::json!([{ "tier": "file-remote", "bytes": pushed["bytes"] }])
    );
    assert_eq!(restored["skipped"], serde_json::json!([]));
    assert_eq!(tree(&place.path("back/step_100")), before);

    let again = place
        .run_here(&["restore", "--into", "back", "--json"])
        .expect_code(0)
        .json();
    assert_eq!(again["already_there"], true);
    std::fs::write(place.path("back/step_100/model.bin"), "other").unwrap();
    place
        .run_here(&["restore", "--into", "back"])
        .expect_code(1)
        .expect_error("--replace");
    place
        .run_here(&["restore", "--into", "back", "--replace"])
        .expect_code(0);
    assert_eq!(tree(&place.path("back/step_100")), before);
}

#[test]
fn a_single_file_is_a_checkpoint_too() {
    let place = Place::new();
    std::fs::create_dir(place.path("checkpoints")).unwrap();
    std::fs::write(place.path("checkpoints/checkpoint-7.pt"), "weights").unwrap();
    place
        .run_here(&["push", "checkpoints/checkpoint-7.pt"])
        .expect_code(0);
    place
        .run_here(&["restore", "--as", "other/name.pt", "--step", "7"])
        .expect_code(0);
    assert_eq!(
        std::fs::read_to_string(place.path("other/name.pt")).unwrap(),
        "weights"
    );
}

#[test]
fn some_files_can_be_taken() {
    let place = Place::new();
    place.push_steps(&[1]);
    place
        .run_here(&["restore", "--into", "back", "--include", "*.json"])
        .expect_code(0);
    let names: Vec<_> = std::fs::read_dir(place.path("back/step_1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["state.json"]);
    place
        .run_here(&["restore", "--into", "none", "--include", "*.pt"])
        .expect_code(2)
        .expect_error("--include");
}

#[test]
fn the_local_copy_comes_first_and_a_second_push_moves_nothing() {
    let place = Place::new();
    place.checkpoint("step_1", "x");
    place.run_here(&["push", "checkpoints/step_1"]).expect_code(0);
    let again = place
        .run_here(&["push", "checkpoints/step_1", "--json"])
        .expect_code(0)
        .json();
    assert_eq!(again["newly_sealed"], false);
    assert_eq!(again["remotes"][0]["already_durable"], true);
    let restored = place
        .run_here(&["restore", "--into", "back", "--json"])
        .expect_code(0)
        .json();
    assert_eq!(restored["sources"][0]["tier"], "local");
}

#[test]
fn what_is_unchanged_since_the_step_before_is_copied_and_said_to_be() {
    let place = Place::new();
    place.checkpoint("step_1", "the same");
    place.checkpoint("step_2", "the same");
    let first = place
        .run_here(&["push", "checkpoints/step_1", "--json"])
        .expect_code(0)
        .json();
    assert_eq!(first["remotes"][0]["copied_bytes"], 0);
    let second = place
        .run_here(&["push", "checkpoints/step_2", "--json"])
        .expect_code(0)
        .json();
    let copied = second["remotes"][0]["copied_bytes"].as_u64().unwrap();
    assert!(
        copied > 0 && copied <= second["bytes"].as_u64().unwrap(),
        "{second}"
    );
    place.checkpoint("step_3", "the same");
    let third = place.run_here(&["push", "checkpoints/step_3"]).expect_code(0);
    assert!(third.stdout.contains("copied in the store)"), "{third:#?}");
    let line = " of it copied in the store, to file://";
    assert!(third.stderr.contains(line), "{third:#?}");
}

//! Steps that Orbax wrote.

use stepvault_formats::structure::orbax;

use super::checkpoint::{Checkpoint, is_broken, why};

#[test]
fn complete_steps_are_sound() {
    for (fixture, steps) in [
        ("orbax-ocdbt", &["10", "20", "30"][..]),
        ("orbax-zarr-plain", &["10", "20"]),
        ("orbax-killed", &["10", "20"]),
    ] {
        let checkpoint = Checkpoint::fixture(fixture);
        for step in steps {
            assert_eq!(why(checkpoint.judge(orbax::check, step)), "sound", "{fixture} {step}");
        }
    }
}

#[test]
fn a_step_that_was_never_renamed_is_not_finished() {
    let checkpoint = Checkpoint::fixture("orbax-killed");
    assert_eq!(
        why(checkpoint.judge(orbax::check, "30.orbax-checkpoint-tmp")),
        "30.orbax-checkpoint-tmp was never renamed to its final name: the save was not finished"
    );
}

/// Files without which a step can still be restored.
const NOT_NEEDED: [&str; 5] = [
    "_CHECKPOINT_METADATA",
    "_sharding",
    "/process_0",
    "commit_success.txt",
    "ocdbt.process_0/manifest.ocdbt",
];

#[test]
fn whatever_is_needed_is_missed_when_it_is_gone() {
    // Written by the process on the way; the merged database uses nothing of it.
    let superseded = [
        "10/default/ocdbt.process_0/d/238f02c17c99cc1020c396a964e17424",
        "10/default/ocdbt.process_0/d/5265f906b625032c46759aa74919ba0e",
        "10/default/ocdbt.process_0/d/7ecc1184336b2a5bcf311c7c018e5371",
    ];
    for (fixture, expected) in [("orbax-ocdbt", &superseded[..]), ("orbax-zarr-plain", &[])] {
        let checkpoint = Checkpoint::fixture(fixture);
        let step = checkpoint.files.keys().filter(|path| path.starts_with("10/"));
        let unmissed: Vec<_> = step
            .filter(|path| !is_broken(&checkpoint.without(path).judge(orbax::check, "10")))
            .filter(|path| !NOT_NEEDED.iter().any(|name| path.ends_with(name)))
            .collect();
        assert_eq!(unmissed, expected, "{fixture}");
    }
}

#[test]
fn every_cut_into_the_structure_shows() {
    let checkpoint = Checkpoint::fixture("orbax-ocdbt");
    for name in [
        "_CHECKPOINT_METADATA",
        "default/_METADATA",
        "default/_sharding",
        "default/array_metadatas/process_0",
    ] {
        let path = format!("10/{name}");
        let whole = checkpoint.files[&path].to_vec();
        for length in (0..whole.len()).step_by(7) {
            let damaged = checkpoint.with(&path, &whole[..length]);
            assert!(is_broken(&damaged.judge(orbax::check, "10")), "{name} cut to {length}");
        }
    }
}

#[test]
fn a_leaf_without_its_array_is_named() {
    let checkpoint = Checkpoint::fixture("orbax-ocdbt");
    let path = "10/default/_METADATA";
    let text = String::from_utf8(checkpoint.files[path].to_vec()).unwrap();
    let renamed = text.replacen(r#"{"key": "step", "#, r#"{"key": "stop", "#, 1);
    assert_ne!(renamed, text);
    assert_eq!(
        why(checkpoint.with(path, renamed.as_bytes()).judge(orbax::check, "10")),
        "10/default/_METADATA names stop, but the database in the same directory does not have it: part of the save \
         is missing"
    );
}

//! Every archive of real checkpoints, compared with its manifest.

use std::cmp::Reverse;
use std::path::Path;

use serde_json::Value;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::deep::read_step;
use stepvault_formats::detect::detect;
use stepvault_formats::find::{FindOptions, Found, FoundStep, find_steps};
use stepvault_formats::pointer::{PointerContent, pointer_after_restore};
use stepvault_formats::profile::ProfileSet;
use stepvault_formats::resume::{Resumed, moved_aside_before_restore, resumed_by_framework};
use stepvault_formats::warnings::warnings;

use crate::directory::archive::{Fixture, manifest};

/// The profile of each fixture.
const EXPECTED: [(&str, &str); 30] = [
    ("torch-formats", "generic"),
    ("safetensors-llama", "generic"),
    ("dcp-1rank", "dcp"),
    ("dcp-2rank", "dcp"),
    ("dcp-2rank-zero-byte-shard", "dcp"),
    ("dcp-killed-before-metadata", "dcp"),
    ("dcp-hf-storage", "dcp"),
    ("hf-trainer-1rank", "hf-trainer"),
    ("hf-trainer-2rank", "hf-trainer"),
    ("hf-trainer-killed", "hf-trainer"),
    ("accelerate-1rank", "accelerate"),
    ("accelerate-2rank", "accelerate"),
    ("lightning-last-copy", "lightning"),
    ("lightning-last-link", "lightning"),
    ("orbax-ocdbt", "orbax"),
    ("orbax-killed", "orbax"),
    ("orbax-zarr-plain", "orbax"),
    ("deepspeed-zero1", "deepspeed"),
    ("deepspeed-latest-too-early", "deepspeed"),
    ("megatron-torch-dist", "megatron"),
    ("verl-fsdp", "verl"),
    ("prime-rl-checkpoints", "prime-rl"),
    ("prime-rl-weights-old", "prime-rl"),
    ("cycling-utils-sync", "cycling-utils"),
    ("cycling-utils-killed", "cycling-utils"),
    ("timm-saver", "timm"),
    ("killed-torch-save", "generic"),
    ("killed-torch-save-small", "generic"),
    ("sigterm-torch-save", "generic"),
    ("enospc-torch-save", "generic"),
];

/// Steps that are cut off in a way that no name and no marker shows: the check of their files decides.
const STRUCTURE_DECIDES: [(&str, &str); 4] = [
    ("killed-torch-save", "step_2.pt"),
    ("killed-torch-save-small", "step_3.pt"),
    ("sigterm-torch-save", "step_3.pt"),
    ("enospc-torch-save", "step_2.pt"),
];

/// Two days after the last fixture was written.
const NOW: Timestamp = Timestamp::from_seconds(1_795_430_000);

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"))
}

fn each_fixture(check: impl Fn(&Value, &str, &Fixture, &ProfileSet)) {
    let profiles = ProfileSet::default();
    let fixtures = manifest();
    assert_eq!(fixtures.len(), EXPECTED.len());
    for (fixture, (name, profile)) in fixtures.iter().zip(EXPECTED) {
        assert_eq!(text(fixture, "name"), name);
        check(fixture, profile, &Fixture::unpack(fixture["name"].as_str().unwrap()), &profiles);
    }
}

fn found(profile: &str, unpacked: &Fixture, profiles: &ProfileSet) -> Found {
    let profile = profiles.get(profile).unwrap();
    find_steps(profile, &unpacked.tree, unpacked, NOW, &FindOptions::default())
}

fn decided_by_structure(fixture: &str, step: &str) -> bool {
    STRUCTURE_DECIDES.contains(&(fixture, step))
}

#[test]
fn each_is_taken_for_what_it_is() {
    each_fixture(|fixture, expected, unpacked, profiles| {
        let detection = detect(&unpacked.tree, unpacked, profiles).unwrap();
        assert_eq!(detection.profile.name, expected, "{}: {:?}", fixture["name"], detection.why);
        assert!(!detection.why.is_empty());
    });
}

#[test]
fn steps_and_whether_they_are_complete_are_those_of_the_manifest() {
    each_fixture(|fixture, profile, unpacked, profiles| {
        let name = text(fixture, "name");
        let found = found(profile, unpacked, profiles);
        let mut known: Vec<_> = fixture["steps"]
            .as_array()
            .unwrap()
            .iter()
            // Some files are samples of a format, not steps.
            .filter(|step| !step["step"].is_null())
            .map(|step| {
                let path = text(step, "path");
                let complete = step["complete"] == true || decided_by_structure(name, path);
                (path.to_owned(), step["step"].as_u64(), complete)
            })
            .collect();
        let mut seen: Vec<_> =
            found.steps.iter().map(|step| (step.path.clone(), step.step, step.is_complete())).collect();
        // Both formats of the same weights are one step.
        let is_beside = |path: &String| {
            let mut steps = found.steps.iter();
            steps.any(|step| step.path != *path && step.members.contains(path))
        };
        known.retain(|(path, ..)| !is_beside(path));
        known.sort();
        seen.sort();
        assert_eq!(seen, known, "{name}: {:#?}", found.steps);
        let incomplete = found.steps.iter().filter(|step| !step.is_complete());
        assert!(incomplete.into_iter().all(|step| !step.reasons().is_empty()), "{name}");
    });
}

/// Returns the complete step with the highest number, before all others one that the trainer can resume from. Of several
/// with the same number, returns the first by path.
pub(super) fn newest_complete(found: &Found) -> Option<&FoundStep> {
    let complete = found.steps.iter().filter(|step| step.is_complete());
    complete.max_by_key(|step| (step.resumable, step.step, Reverse(&step.path)))
}

#[test]
fn the_newest_complete_step_is_that_of_the_manifest() {
    each_fixture(|fixture, profile, unpacked, profiles| {
        let name = text(fixture, "name");
        let mut found = found(profile, unpacked, profiles);
        found.steps.retain(|step| !decided_by_structure(name, &step.path));
        let newest = newest_complete(&found).map(|step| step.path.as_str());
        assert_eq!(newest, fixture["newest_complete"].as_str(), "{name}");
    });
}

#[test]
fn pointers_say_what_the_manifest_says() {
    each_fixture(|fixture, profile, unpacked, profiles| {
        let found = found(profile, unpacked, profiles);
        let known = fixture["pointers"].as_array().unwrap();
        assert_eq!(found.pointers.len(), known.len(), "{}: {:?}", fixture["name"], found.pointers);
        for (pointer, known) in found.pointers.iter().zip(known) {
            assert_eq!(pointer.path, text(known, "path"));
            let value = &known["value"];
            match text(known, "kind") {
                "copy" => assert_eq!(
                    Some(format!("global_step {}", pointer.target_step.unwrap())),
                    value.as_str().map(str::to_owned)
                ),
                "hardlink" => assert_eq!(Some(pointer.says.as_str()), value[0].as_str()),
                _ => assert_eq!(Some(pointer.says.as_str()), value.as_str()),
            }
            assert!(!pointer.dangling, "{pointer:?}");
            assert!(pointer.target.is_some(), "{pointer:?}");
        }
    });
}

/// Real frameworks name existing steps, write the step's own number into it, and leave no file out.
#[test]
fn nothing_is_warned_of_that_a_framework_has_finished() {
    each_fixture(|fixture, profile, unpacked, profiles| {
        let found = found(profile, unpacked, profiles);
        let warnings = warnings(&found, &unpacked.tree, unpacked);
        assert_eq!(warnings, Vec::<String>::new(), "{}", fixture["name"]);
    });
}

/// Every byte of the finished steps is read, and the checksums in them hold.
#[test]
fn the_checksums_of_finished_steps_hold() {
    each_fixture(|fixture, profile, unpacked, profiles| {
        let name = text(fixture, "name");
        for step in found(profile, unpacked, profiles).steps {
            if !step.is_complete() || decided_by_structure(name, &step.path) {
                continue;
            }
            let read = std::cell::Cell::new(0);
            let deep = read_step(&step, &unpacked.tree, unpacked, &|bytes| {
                read.set(read.get() + bytes);
            });
            assert_eq!(deep.findings, [], "{name}: {}", step.path);
            let proved = deep.checksummed_bytes + deep.unproved_bytes.values().sum::<u64>();
            assert_eq!((proved, read.get()), (step.bytes, step.bytes), "{name}: {}", step.path);
            let has_checksums = ["torch", "DCP", "OCDBT"];
            let has_some = deep.unproved_bytes.keys().any(|format| has_checksums.contains(format));
            assert!(deep.checksummed_bytes > 0 || !has_some, "{name}: {deep:?}");
        }
    });
}

/// Once the newest complete step was restored, its pointer written, and the files in the way moved aside, the
/// framework resumes from that step.
#[test]
fn a_framework_goes_on_from_what_was_restored() {
    each_fixture(|fixture, profile, unpacked, profiles| {
        let profile = profiles.get(profile).unwrap();
        let Some(newest) = fixture["newest_complete"].as_str() else {
            return;
        };
        let aside = moved_aside_before_restore(profile, &unpacked.tree, unpacked, newest);
        for (index, path) in aside.iter().enumerate() {
            let place = unpacked.root.with_extension(format!("aside-{index}"));
            move_to(&unpacked.root.join(path), &place);
        }
        let seen = text(fixture, "run_root");
        for write in pointer_after_restore(profile, &unpacked.tree, seen, &[newest.to_owned()]) {
            let path = unpacked.root.join(&write.path);
            let _ = std::fs::remove_file(&path);
            match write.content {
                PointerContent::Text(text) => put(&path, text.as_bytes()),
                PointerContent::Symlink(target) => std::os::unix::fs::symlink(target, path).unwrap(),
                PointerContent::CopyOf(step) => {
                    std::fs::copy(unpacked.root.join(step), path).unwrap();
                }
            }
        }
        let after = crate::directory::archive::scan(&unpacked.root);
        match resumed_by_framework(profile, &after, unpacked) {
            Resumed::Step(path) => assert_eq!(path, newest, "{}", fixture["name"]),
            Resumed::Unknown => assert!(["dcp", "generic", "timm"].contains(&profile.name.as_str())),
            // A trainer cannot resume from weights alone.
            Resumed::Nothing => assert_eq!(fixture["name"], "prime-rl-weights-old"),
            other @ Resumed::Fails { .. } => panic!("{}: {other:?}", fixture["name"]),
        }
    });
}

#[expect(clippy::disallowed_methods, reason = "a scratch directory of this test alone")]
fn put(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

#[expect(clippy::disallowed_methods, reason = "a scratch directory of this test alone")]
fn move_to(from: &Path, to: &Path) {
    std::fs::rename(from, to).unwrap();
}

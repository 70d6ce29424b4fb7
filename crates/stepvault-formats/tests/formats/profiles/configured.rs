//! Steps by the names and the proof that a configuration gives, and by the generic profile.

use std::time::Duration;

use stepvault_core::config::Completion;
use stepvault_core::path::RelativePath;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::find::{Extent, FindOptions, FoundStep, find_steps};
use stepvault_formats::profile::{GENERIC, PathGlob, Profile};

use super::layouts::profile;
use crate::directory::memory::Memory;

fn rules() -> [Completion; 3] {
    let marker = Completion::Marker(RelativePath::new("sub/DONE").unwrap());
    [Completion::Rename, marker, Completion::Quiet(Duration::from_secs(30))]
}

fn configured(completion: &Completion) -> Profile {
    let names = PathGlob::try_from("checkpoint*".to_owned()).unwrap();
    Profile::configured(completion, Some(names)).unwrap().unwrap()
}

/// Returns whether a step is complete this long after the last write.
fn is_complete(completion: &Completion, memory: &Memory, age_seconds: i64, extent: Extent) -> bool {
    let now = Timestamp::from_seconds(memory.clock_seconds + age_seconds);
    let options = FindOptions { extent, ..FindOptions::default() };
    let found = find_steps(&configured(completion), &memory.tree(), memory, now, &options);
    found.steps.iter().any(FoundStep::is_complete)
}

#[test]
fn a_step_is_complete_when_its_rule_says_so() {
    // Whether each rule proves it.
    for (lines, proved) in [
        (&["checkpoint-7/model.bin"][..], [true, false, true]),
        (&["checkpoint-7/model.bin", "checkpoint-7/sub/DONE ="], [true; 3]),
        (&["checkpoint-7/model.bin", "checkpoint-7/sub/DONE"], [true; 3]),
        (&["checkpoint-7/model.bin", "checkpoint-7/DONE"], [true, false, true]),
        (&["checkpoint-7/sub/DONE.tmp"], [true, false, false]),
        (&["checkpoint-7/x/.tmpAbCd"], [true, false, false]),
        (&["checkpoint-7/x.tmp", "checkpoint-7/sub/DONE"], [true, true, false]),
        (&["checkpoint-7.pt"], [true, false, true]),
        (&["checkpoint-7/"], [false; 3]),
        (&["checkpoint-7/sub/"], [false; 3]),
        (&["checkpoint-7.tmp/model.bin", "checkpoint-7.tmp/sub/DONE"], [false; 3]),
        (&["checkpoint-7.orbax-checkpoint-tmp/model.bin"], [false; 3]),
        (&["step-7/model.bin", "step-7/sub/DONE"], [false; 3]),
        (&["x/checkpoint-7/model.bin", "x/checkpoint-7/sub/DONE"], [false; 3]),
    ] {
        let memory = Memory::new(lines);
        for (rule, proved) in rules().iter().zip(proved) {
            for age_seconds in [-1, 0, 29, 30, 1000] {
                let is_quiet = age_seconds >= 30 || !matches!(rule, Completion::Quiet(_));
                assert_eq!(
                    is_complete(rule, &memory, age_seconds, Extent::Whole),
                    proved && is_quiet,
                    "{rule:?} {lines:?} {age_seconds}"
                );
            }
        }
    }
}

#[test]
fn a_configured_marker_is_required_on_every_node() {
    let [_, marker, _] = rules();
    let memory = Memory::new(&["checkpoint-7/model.bin"]);
    for extent in [Extent::Whole, Extent::LeadingPart, Extent::OtherPart] {
        assert!(!is_complete(&marker, &memory, 1000, extent), "{extent:?}");
    }
}

#[test]
fn a_name_without_a_number_is_a_step_without_a_number() {
    let memory = Memory::new(&["checkpoint-last/model.bin"]);
    let found = find_steps(
        &configured(&Completion::Rename),
        &memory.tree(),
        &memory,
        memory.settled(),
        &FindOptions::default(),
    );
    assert_eq!(found.steps.len(), 1);
    assert_eq!(found.steps[0].step, None);
}

#[test]
fn without_a_pattern_the_usual_names_are_steps() {
    let automatic = Completion::Auto(Duration::from_secs(30));
    assert!(Profile::configured(&automatic, None).unwrap().is_none());
    let profile = Profile::configured(&Completion::Rename, None).unwrap().unwrap();
    for (path, ignored) in
        [("step_5", false), ("epoch=1.ckpt", false), ("logs", true), ("logs/step_5", false)]
    {
        assert_eq!(profile.ignores(path), ignored, "{path}");
    }
}

#[test]
fn what_says_no_step_is_none() {
    let memory = Memory::new(&[
        "wandb/run-20261121/files/model_1.pt",
        "events.out.tfevents.1795251080.host",
        "config_3.yaml",
        "final.pt",
        "best/model.pt",
        "checkpoints/ckpt_200.pt",
        "checkpoint_300",
    ]);
    let found =
        find_steps(&profile(GENERIC), &memory.tree(), &memory, memory.settled(), &FindOptions::default());
    let steps: Vec<_> = found.steps.iter().map(|step| (step.path.as_str(), step.step)).collect();
    assert_eq!(steps, [("checkpoints/ckpt_200.pt", Some(200)), ("checkpoint_300", Some(300))]);
}

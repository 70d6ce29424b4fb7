//! The generic profile, with the rule that a configuration names: it agrees with `completeness`.

use stepvault_core::timestamp::Timestamp;
use stepvault_formats::completeness::{FileFacts, Rule, StepFacts, Verdict, verdict};
use stepvault_formats::find::{FindOptions, FoundStep, find_steps};
use stepvault_formats::profile::generic;

use crate::directory::memory::Memory;

/// Directories with a step `checkpoint-7`, or none.
const DIRECTORIES: [&[&str]; 8] = [
    &["checkpoint-7/model.bin"],
    &["checkpoint-7/model.bin", "checkpoint-7/sub/DONE ="],
    &["checkpoint-7/model.bin", "checkpoint-7/sub/DONE"],
    &["checkpoint-7/model.bin", "checkpoint-7/DONE"],
    &["checkpoint-7/"],
    &["checkpoint-7/sub/"],
    &["checkpoint-7.tmp/model.bin", "checkpoint-7.tmp/sub/DONE"],
    &["checkpoint-7.orbax-checkpoint-tmp/model.bin"],
];

#[test]
fn it_says_what_the_rule_says() {
    let marker = Rule::Marker {
        file: "sub/DONE".to_owned(),
    };
    for rule in [Rule::Rename, marker, Rule::Quiet { seconds: 30 }] {
        let profile = generic(&rule).unwrap();
        for lines in DIRECTORIES {
            let memory = Memory::new(lines);
            for age_seconds in [0, 29, 30, 1000] {
                let now = Timestamp::from_seconds(memory.clock_seconds + age_seconds);
                let by_profile = find_steps(&profile, &memory.tree(), &memory, now, &FindOptions::default());
                let complete = by_profile.steps.iter().any(FoundStep::is_complete);
                assert_eq!(
                    complete,
                    by_rule(&rule, &memory, now),
                    "{rule:?} {lines:?} {age_seconds}"
                );
            }
        }
    }
}

fn by_rule(rule: &Rule, memory: &Memory, now: Timestamp) -> bool {
    let tree = memory.tree();
    let (name, _) = tree.children("").next().unwrap();
    let step = tree.below(name);
    let files: Vec<_> = step
        .files()
        .map(|(path, entry)| FileFacts {
            path,
            mtime: entry.mtime,
        })
        .collect();
    verdict(rule, &StepFacts { name, files: &files }, now) == Verdict::Complete
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
    let profile = generic(&Rule::Quiet { seconds: 30 }).unwrap();
    let found = find_steps(
        &profile,
        &memory.tree(),
        &memory,
        memory.settled(),
        &FindOptions::default(),
    );
    let steps: Vec<_> = found
        .steps
        .iter()
        .map(|step| (step.path.as_str(), step.step))
        .collect();
    assert_eq!(
        steps,
        [
            ("checkpoints/ckpt_200.pt", Some(200)),
            ("checkpoint_300", Some(300))
        ]
    );
}

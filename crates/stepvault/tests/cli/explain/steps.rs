//! Steps that real frameworks left when they were killed or their disk was full.

use crate::support::Place;

/// An archive, its first cause, what its evidence says, and the step to go on from.
const LEFT: [(&str, &str, &str, Option<&str>); 10] = [
    ("enospc-torch-save", "interrupted-save", "step_2.pt", Some("step_1.pt")),
    ("killed-torch-save", "interrupted-save", "no end record", None),
    ("killed-torch-save-small", "interrupted-save", "step_3.pt", Some("step_2.pt")),
    ("sigterm-torch-save", "interrupted-save", "has no data/39", Some("step_2.pt")),
    ("dcp-killed-before-metadata", "partial-step", ".metadata", Some("step_20")),
    ("orbax-killed", "interrupted-save", "30.orbax-checkpoint-tmp", Some("20")),
    ("hf-trainer-killed", "partial-step", "trainer_state.json does not exist yet", Some("checkpoint-10")),
    ("deepspeed-latest-too-early", "partial-step", "dp_world_size 2", Some("global_step10")),
    ("prime-rl-checkpoints", "partial-step", "orchestrator/progress.pt", Some("checkpoints/step_20")),
    ("cycling-utils-killed", "partial-step", "still names", Some("AtomicDirectory_checkpoint_1")),
];

#[test]
fn what_a_killed_framework_left_is_named_with_the_step_to_go_on_from() {
    for (name, cause, evidence, step) in LEFT {
        let place = Place::new();
        let root = place.unpack(name);
        let found = place.explain(&[name]);
        assert_eq!(found.causes(), [cause], "{name}: {found:#?}");
        assert!(found.evidence(cause).contains(evidence), "{name}: {found:#?}");
        let path = found.0["resume"]["path"].as_str().map(str::to_owned);
        let expected = step.map(|step| root.join(step).display().to_string());
        assert_eq!(path, expected, "{name}: {found:#?}");
    }
}

#[test]
fn a_run_whose_steps_are_whole_has_nothing_to_explain() {
    for name in ["dcp-2rank", "hf-trainer-2rank", "orbax-ocdbt", "deepspeed-zero1", "cycling-utils-sync"] {
        let place = Place::new();
        place.unpack(name);
        let found = place.explain(&[name]);
        assert!(found.causes().is_empty(), "{name}: {found:#?}");
        assert!(found.0["resume"]["path"].is_string(), "{name}");
    }
}

#[test]
fn steps_from_the_future_tell_of_a_clock() {
    let place = Place::new();
    let model = place.write("out/step_1/model.bin", "weights");
    let ahead = std::time::SystemTime::now() + std::time::Duration::from_hours(2);
    std::fs::File::open(&model).unwrap().set_modified(ahead).unwrap();
    let found = place.explain(&["out"]);
    assert_eq!(found.causes(), ["clock-wrong"], "{found:#?}");
    assert!(found.evidence("clock-wrong").contains("ahead of this machine's clock"), "{found:#?}");
}

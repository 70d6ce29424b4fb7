//! Directories with arbitrary names and contents: nothing panics, and little is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::detect::detect;
use stepvault_formats::find::{Completeness, FindOptions, find_steps};
use stepvault_formats::pointer::pointer_after_restore;
use stepvault_formats::profile::ProfileSet;
use stepvault_formats::prunable::prunable;
use stepvault_formats::resume::{moved_aside_before_restore, resume_text, resumed_by_framework};

use super::fixtures::newest_complete;
use crate::directory::memory::Memory;

/// More than any of these directories may require: each profile reads each file a few times.
const READ_LIMIT_BYTES: u64 = 16 << 20;

/// Names that some framework uses, and similar names.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "checkpoints",
            "checkpoint",
            "weights",
            "step_10",
            "step-20",
            "step_99999999999999999999999",
            "checkpoint-5",
            "checkpoint_3",
            "global_step7",
            "global_step_7",
            "iter_0000010",
            "40",
            "0",
            "040",
            "ep0-ba10-rank0.pt",
            "ep0-ba10-rank4294967295.pt",
            "latest-rank0.pt",
            "latest",
            "STABLE",
            "trainer",
            "latest_checkpointed_iteration.txt",
            "recover_checkpoint",
            "recover_info",
            "step_info.json",
            "dataloader_info.pkl",
            "trainer_state.json",
            "metadata.json",
            ".metadata",
            "__0_0.distcp",
            "actor",
            "A_checkpoint_3",
            "A.latest_checkpoint",
            "A.latest_checkpoint_temp",
            "last.ckpt",
            "last.pt",
            "epoch=0-step=5.ckpt",
            "last.pth.tar",
            "checkpoint-3.pth.tar",
            "checkpoint_last.pt",
            "data.pt",
            "rng_state_0.pth",
            "rng_state_4294967295.pth",
            "model_world_size_4294967295_rank_0.pt",
            "mp_rank_00_model_states.pt",
            "zero_pp_rank_4294967295_mp_rank_00_optim_states.pt",
            "params",
            "train_state",
            "items",
            "iter",
            "process_0-of-4294967295.json",
            "40.orbax-checkpoint-tmp",
            "x.tmp",
            "random_states_0.pkl",
            "model.safetensors",
            "training_args.bin",
            "_CHECKPOINT_METADATA",
            "weights.part",
        ])
        .prop_map(str::to_owned),
        "[a-z0-9_.=*{}\\[\\]學 -]{1,12}",
    ]
}

fn content() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[0-9]{1,30}",
        Just("{\"global_step\": -1}".to_owned()),
        Just(
            "{\"global_step\": 3, \"best_model_checkpoint\": \"/////\", \"step\": 1, \"timestamp\": \"x\"}"
                .to_owned()
        ),
        Just("[".repeat(5000)),
        "\\PC{0,40}",
        name(),
    ]
}

fn line() -> impl Strategy<Value = String> {
    let path = prop::collection::vec(name(), 1..4).prop_map(|names| names.join("/"));
    (path, content(), 0..4_u8).prop_map(|(path, content, kind)| match kind {
        0 => format!("{path} -> {content}"),
        1 => format!("{path}/"),
        _ => format!("{path} = {content}"),
    })
}

proptest! {
    // Each case is run with every profile.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_directory(lines in prop::collection::vec(line(), 0..40), early in any::<bool>()) {
        let mut memory = Memory::default();
        for line in &lines {
            memory.write(line);
        }
        let tree = memory.tree();
        let profiles = ProfileSet::default();
        let now = if early { Timestamp::default() } else { memory.settled() };
        prop_assert!(detect(&tree, &memory, &profiles).is_some());
        for profile in profiles.iter() {
            let found = find_steps(profile, &tree, &memory, now, &FindOptions::default());
            for step in &found.steps {
                prop_assert!(tree.get(&step.path).is_some());
                prop_assert!(step.members.contains(&step.path));
                if let Completeness::NotYet { reasons } = &step.complete {
                    prop_assert!(!reasons.is_empty());
                }
                let _ = pointer_after_restore(profile, &tree, "/run", &step.members);
                let _ = moved_aside_before_restore(profile, &tree, &memory, &step.path);
                let _ = resume_text(profile, "/run", &step.path);
            }
            let _ = resumed_by_framework(profile, &tree, &memory);
            for step in prunable(profile, &tree, &memory, &found) {
                prop_assert!(step.is_complete());
                prop_assert_ne!(Some(&step.path), newest_complete(&found).map(|step| &step.path));
                let named = |pointer: &stepvault_formats::pointer::PointerFound| {
                    pointer.target.as_ref() == Some(&step.path)
                };
                prop_assert!(!found.pointers.iter().any(named));
            }
            // The same directory gives the same result.
            prop_assert_eq!(found, find_steps(profile, &tree, &memory, now, &FindOptions::default()));
        }
        prop_assert!(memory.read_bytes.load(Ordering::Relaxed) < READ_LIMIT_BYTES);
    }
}

#[test]
fn a_large_pointer_is_not_read() {
    let mut memory = Memory::new(&["iter_0000010/.metadata"]);
    memory.write(&format!("latest_checkpointed_iteration.txt = {}", "1".repeat(5000)));
    memory.read_bytes = Arc::new(AtomicU64::new(0));
    let profiles = ProfileSet::default();
    let profile = profiles.get("megatron").unwrap();
    let found = find_steps(profile, &memory.tree(), &memory, memory.settled(), &FindOptions::default());
    assert!(found.pointers[0].dangling);
    assert_eq!(memory.read_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_text_is_looked_for_at_both_ends_of_a_file_and_no_further() {
    let mut memory = Memory::default();
    let filler = "x".repeat(5 << 20);
    for (content, expected) in [
        (format!("train_state{filler}"), "torchtitan"),
        (format!("{filler}train_state"), "torchtitan"),
        (format!("{filler}train_state{filler}"), "dcp"),
    ] {
        memory.write("step-5/__0_0.distcp");
        memory.write(&format!("step-5/.metadata = {content}"));
        memory.read_bytes.store(0, Ordering::Relaxed);
        let profiles = ProfileSet::default();
        let detection = detect(&memory.tree(), &memory, &profiles).unwrap();
        assert_eq!(detection.profile.name, expected);
        let read_bytes = memory.read_bytes.load(Ordering::Relaxed);
        assert!(read_bytes <= 2 * stepvault_formats::detect::CONTENT_LIMIT_BYTES, "{read_bytes}");
    }
}

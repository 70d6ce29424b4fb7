//! The plan of what a restore does for the trainer.

use stepvault_formats::handoff::{FirstStart, HandoffPlan, Restored, in_the_way_of_a_first_start, plan};
use stepvault_formats::pointer::PointerContent;
use stepvault_formats::profile::ProfileSet;

use crate::directory::memory::Memory;

/// Returns the plan for a step in `/data/<directory>`.
fn planned(directory: &str, memory: &Memory, name: &str, overrides_newer: bool) -> HandoffPlan {
    planned_paths(directory, memory, &[name], overrides_newer)
}

fn planned_paths(directory: &str, memory: &Memory, paths: &[&str], overrides_newer: bool) -> HandoffPlan {
    planned_over(directory, memory, paths, (overrides_newer, &[]))
}

/// Returns the plan after a search that has skipped some steps.
fn planned_over(
    directory: &str,
    memory: &Memory,
    paths: &[&str],
    (overrides_newer, skipped): (bool, &[u64]),
) -> HandoffPlan {
    let profiles = ProfileSet::default();
    let restored = Restored {
        directory: &format!("/data/{directory}"),
        tree: &memory.tree(),
        paths: &paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>(),
        overrides_newer,
        skipped: &skipped.iter().copied().collect(),
        profile: None,
    };
    plan(&restored, &profiles, memory).unwrap()
}

fn newest(directory: &str, memory: &Memory, name: &str) -> HandoffPlan {
    planned(directory, memory, name, false)
}

#[test]
fn the_directory_of_the_steps_is_also_seen_from_above() {
    let accelerate = Memory::new(&["checkpoint_3/random_states_0.pkl", "checkpoint_4/model.safetensors"]);
    let plan = newest("checkpoints", &accelerate, "checkpoint_3");
    assert_eq!((plan.framework.as_str(), &plan.aside[..]), ("accelerate", &["checkpoint_4".to_owned()][..]));
    // A step that is not complete is moved aside wherever the trainer looks.
    assert_eq!(newest("mine", &accelerate, "checkpoint_3").aside, ["checkpoint_4"]);
    // The name of the directory also identifies it.
    let titan = Memory::new(&["step-3/__0_0.distcp", "step-3/.metadata"]);
    let plan = newest("checkpoint", &titan, "step-3");
    assert_eq!(plan.framework, "torchtitan");
    assert!(plan.resume.contains("checkpoint.load_step=3"), "{}", plan.resume);
    assert_eq!(newest("mine", &titan, "step-3").framework, "dcp");
}

#[test]
fn every_path_of_a_step_is_pointed_to_and_none_is_in_the_way_of_another() {
    let composer = Memory::new(&[
        "ep1-ba200-rank0.pt = older",
        "ep1-ba200-rank1.pt = older",
        "ep1-ba300-rank0.pt = newer",
        "ep1-ba300-rank1.pt = newer",
    ]);
    let step = ["ep1-ba200-rank0.pt", "ep1-ba200-rank1.pt"];
    let plan = planned_paths("checkpoints", &composer, &step, true);
    assert_eq!(plan.framework, "composer");
    // Composer refuses to save a step that stands there already.
    let newer = ["ep1-ba300-rank0.pt", "ep1-ba300-rank1.pt"].map(str::to_owned);
    assert_eq!((&plan.kept, &plan.aside[..]), (&None, &newer[..]));
    let pointers: Vec<_> = plan
        .pointers
        .iter()
        .map(|pointer| (pointer.write.path.as_str(), pointer.write.content.clone()))
        .collect();
    let link = |rank: usize| PointerContent::Symlink(step[rank].to_owned());
    assert_eq!(pointers, [("latest-rank0.pt", link(0)), ("latest-rank1.pt", link(1))]);
}

#[test]
fn pointers_stay_inside_the_directory() {
    let memory = Memory::new(&["epoch=0-step=5.ckpt = five"]);
    let plan = newest("checkpoints", &memory, "epoch=0-step=5.ckpt");
    let [pointer] = &plan.pointers[..] else { panic!("{plan:?}") };
    assert_eq!(pointer.write.path, "last.ckpt");
    assert_eq!(pointer.write.content, PointerContent::CopyOf("epoch=0-step=5.ckpt".to_owned()));
    assert!(!pointer.is_right && !plan.is_done());
}

#[test]
fn a_pointer_that_is_right_is_left_alone() {
    let mut memory = Memory::new(&["global_step5/mp_rank_00_model_states.pt", "latest = global_step5"]);
    assert!(newest("run", &memory, "global_step5").is_done());
    memory.write("latest = global_step4");
    assert!(!newest("run", &memory, "global_step5").is_done());
    let links = Memory::new(&["ep0-ba10-rank0.pt", "latest-rank0.pt -> ep0-ba10-rank0.pt"]);
    assert!(newest("run", &links, "ep0-ba10-rank0.pt").is_done());
    let copy = Memory::new(&["checkpoint-3.pth.tar = three", "last.pth.tar = three"]);
    assert!(newest("run", &copy, "checkpoint-3.pth.tar").is_done());
}

#[test]
fn what_is_no_pointer_is_not_written_over() {
    for (in_the_way, aside) in [
        ("last.pth.tar = other", true),
        ("last.pth.tar/file", true),
        ("last.pth.tar -> gone", false),
        ("last.pth.tar = two", false),
    ] {
        let mut memory = Memory::new(&["checkpoint-2.pth.tar = two", "checkpoint-3.pth.tar = three"]);
        memory.write(in_the_way);
        let plan = planned("run", &memory, "checkpoint-3.pth.tar", true);
        assert_eq!(plan.aside == ["last.pth.tar"], aside, "{in_the_way}: {plan:?}");
        assert_eq!(plan.pointers.len(), 1, "{in_the_way}");
    }
}

/// Otherwise a restore at each start would throw a run back to the remote's newest step (L4, S4).
#[test]
fn a_newer_complete_step_is_gone_on_from() {
    let complete = |memory: &mut Memory, step: u32| {
        let weights = "model.safetensors = \u{2}\0\0\0\0\0\0\0{}";
        for file in [weights, "trainer_state.json = {}"] {
            memory.write(&format!("checkpoint-{step}/{file}"));
        }
    };
    let mut memory = Memory::default();
    complete(&mut memory, 10);
    complete(&mut memory, 20);
    memory.write("checkpoint-30/model.safetensors");
    let plan = newest("run", &memory, "checkpoint-10");
    assert_eq!(plan.kept.as_deref(), Some("checkpoint-20"));
    assert_eq!(plan.aside, ["checkpoint-30"]);
    assert!(plan.resume.contains("/data/run/checkpoint-20"), "{}", plan.resume);
    let back = planned("run", &memory, "checkpoint-10", true);
    assert_eq!(
        (back.kept, &back.aside[..]),
        (None, &["checkpoint-20", "checkpoint-30"].map(str::to_owned)[..])
    );

    // A step that was written before the restored one belongs to a branch that the run has left.
    let mut left = Memory::default();
    complete(&mut left, 20);
    complete(&mut left, 10);
    let plan = newest("run", &left, "checkpoint-10");
    assert_eq!((plan.kept, &plan.aside[..]), (None, &["checkpoint-20".to_owned()][..]));
}

/// Otherwise a trainer that takes the highest number would crash on it at every start.
#[test]
fn a_newer_step_with_a_damaged_file_is_not_gone_on_from() {
    let memory = Memory::new(&[
        "checkpoint-10/model.safetensors",
        "checkpoint-10/trainer_state.json",
        "checkpoint-20/model.safetensors = cut off",
        "checkpoint-20/trainer_state.json = {}",
    ]);
    let plan = newest("run", &memory, "checkpoint-10");
    assert_eq!((plan.kept, &plan.aside[..]), (None, &["checkpoint-20".to_owned()][..]));
}

#[test]
fn a_first_start_is_not_given_what_is_not_whole() {
    let in_the_way = |memory: &Memory, from_scratch| {
        let tree = memory.tree();
        let start = FirstStart { directory: "/data/run", tree: &tree, from_scratch, profile: None };
        in_the_way_of_a_first_start(&start, &ProfileSet::default(), memory)
    };
    let memory = Memory::new(&[
        "global_step5/mp_rank_00_model_states.pt",
        "global_step9/mp_rank_00_model_states.pt = cut off",
        "latest = global_step9",
        "corpus_2024/shard_7.bin = c",
    ])
    .hide("global_step5");
    assert_eq!(in_the_way(&memory, false), ["global_step9", "latest"]);
    assert_eq!(in_the_way(&memory, true), ["global_step5", "global_step9", "latest"]);
    // Unknown names are the user's own, but for those that look like a step's.
    let generic = Memory::new(&["ckpt_5.npy = cut off", "tokens_7.npy = cut off", "ckpt_9.dat = any"]);
    assert_eq!(in_the_way(&generic, false), ["ckpt_5.npy"]);
    assert_eq!(in_the_way(&Memory::default(), true), [""; 0]);
}

/// Otherwise each start would begin with the torn step, or mix the next save of its number with its files (S4).
#[test]
fn steps_that_the_run_has_left_are_moved_aside_whatever_the_trainer_resumes_by() {
    for (files, step, torn, newer) in [
        (
            &[
                "step_15/.metadata",
                "step_15/__0_0.distcp",
                "step_20/__0_0.distcp",
                "step_30/__0_0.distcp",
                "step_30/.metadata",
            ][..],
            "step_15",
            "step_20",
            "step_30",
        ),
        (&["ckpt_15.pt = a", "ckpt_20.pt.tmp = b", "ckpt_30.pt = c"], "ckpt_15.pt", "", "ckpt_30.pt"),
    ] {
        let memory = Memory::new(files).hide(newer);
        let selected = planned("mine", &memory, step, true);
        assert_eq!(selected.kept, None);
        assert!(selected.aside.iter().any(|path| path == newer), "{:?}", selected.aside);
        assert!(!selected.aside.iter().any(|path| path == step), "{:?}", selected.aside);
        // A complete step that no tier has is not taken away from a trainer that may resume from it.
        let found = newest("mine", &memory, step);
        assert!(!found.aside.iter().any(|path| path == newer), "{:?}", found.aside);
        if !torn.is_empty() {
            assert!(found.aside.iter().any(|path| path == torn), "{:?}", found.aside);
        }
    }
}

/// A node that is alone now holds `.metadata` and its own shard of a step whose other shards are lost.
#[test]
fn a_step_that_was_skipped_is_neither_kept_nor_left_in_place() {
    for directory in ["mine", "checkpoint"] {
        let memory = Memory::new(&[
            "step-15/__0_0.distcp",
            "step-15/.metadata",
            "step-20/__0_0.distcp",
            "step-20/.metadata",
        ]);
        let plan = planned_over(directory, &memory, &["step-15"], (false, &[20]));
        assert_eq!((plan.kept, &plan.aside[..]), (None, &["step-20".to_owned()][..]));
    }
}

/// On every node but the first, no step has the proof.
#[test]
fn what_is_older_than_the_step_stays() {
    let memory = Memory::new(&[
        "step_5/__1_0.distcp",
        "step_10/__1_0.distcp",
        "step_15/__1_0.distcp",
        "step_15/.metadata",
        "step_20/__1_0.distcp",
    ]);
    assert_eq!(planned("mine", &memory, "step_15", true).aside, ["step_20"]);
}

#[test]
fn the_generic_profile_moves_only_what_is_named_like_the_step() {
    let memory = Memory::new(&["ckpt_15.pt = a", "ckpt_30.pt = b", "corpus_2024/shard_7.bin = c"]);
    assert_eq!(planned("mine", &memory, "ckpt_15.pt", true).aside, ["ckpt_30.pt"]);
}

#[test]
fn pointers_name_the_kept_step() {
    let memory = Memory::new(&[
        "global_step5/mp_rank_00_model_states.pt",
        "global_step9/mp_rank_00_model_states.pt",
        "latest = global_step7",
    ])
    .hide("global_step9");
    let plan = newest("run", &memory, "global_step5");
    assert_eq!(plan.kept.as_deref(), Some("global_step9"));
    assert_eq!(plan.pointers[0].write.content, PointerContent::Text("global_step9".to_owned()));
}

#[test]
fn nothing_is_moved_that_holds_the_step_or_lies_in_it() {
    let memory = Memory::new(&[
        "iter_0000010/.metadata",
        "iter_0000010/metadata.json",
        "iter_0000010/iter_x/file",
        "iter_5.tmp/iter_6.tmp/file",
        "latest_checkpointed_iteration.txt = 10",
    ]);
    assert_eq!(newest("run", &memory, "iter_0000010").aside, ["iter_5.tmp"]);
}

#[test]
fn a_trainer_without_a_profile_is_told_the_path() {
    let plan = newest("run", &Memory::new(&["odd/file"]), "odd");
    assert_eq!(plan.framework, "generic");
    assert_eq!(plan.resume, "start the trainer from /data/run/odd");
    assert!(plan.is_done());
}

//! The part of a step on one node of several: the proof on that node, and what must not count as the whole step.

use stepvault_core::timestamp::Timestamp;
use stepvault_formats::find::{Extent, FindOptions, FoundStep, find_steps};
use stepvault_formats::profile::ProfileSet;

use crate::directory::memory::Memory;

/// Returns why each step is not complete; empty for a complete one.
fn reasons(profile: &str, extent: Extent, lines: &[&str], now: Option<Timestamp>) -> Vec<String> {
    let (profiles, memory) = (ProfileSet::default(), Memory::new(lines));
    let options = FindOptions { extent, ..FindOptions::default() };
    let now = now.unwrap_or_else(|| memory.settled());
    let found = find_steps(profiles.get(profile).unwrap(), &memory.tree(), &memory, now, &options);
    let text = |step: &FoundStep| step.reasons().join("; ");
    found.steps.iter().map(text).collect()
}

const SHARDS_OF_NODE_1: [&str; 2] = ["step-5/__4_0.distcp", "step-5/__5_0.distcp"];

#[test]
fn a_node_without_rank_0_is_proved_by_its_quiet_time() {
    assert_eq!(reasons("dcp", Extent::OtherPart, &SHARDS_OF_NODE_1, None), [""]);
    let now = Some(Timestamp::from_seconds(4));
    assert_eq!(
        reasons("dcp", Extent::OtherPart, &SHARDS_OF_NODE_1, now),
        ["it was written 2 s ago, and must be unchanged for 30 s"]
    );
    assert_eq!(
        reasons("dcp", Extent::Whole, &SHARDS_OF_NODE_1, None),
        ["none of .metadata, __*.metadata exists yet"]
    );
}

#[test]
fn a_save_that_was_cut_off_is_never_proved_where_rank_0_runs() {
    let shards = ["step-5/__0_0.distcp", "step-5/__1_0.distcp"];
    assert_eq!(
        reasons("dcp", Extent::LeadingPart, &shards, None),
        [
            "none of .metadata, __*.metadata exists yet (rank 0 writes it; the node of rank 0 must be the first by \
             name)"
        ]
    );
    let proved = [shards[0], shards[1], "step-5/.metadata"];
    assert_eq!(reasons("dcp", Extent::LeadingPart, &proved, None), [""]);
    // The marker of the previous save, next to new shards.
    let overwritten = [shards[0], "step-5/.metadata", shards[1]];
    assert_eq!(reasons("dcp", Extent::LeadingPart, &overwritten, None).len(), 1);
    assert_ne!(reasons("dcp", Extent::LeadingPart, &overwritten, None), [""]);
}

#[test]
fn ranks_of_other_nodes_are_not_missing_and_empty_files_of_its_own_are() {
    let node_1 = [
        "global_step_5/actor/model_world_size_8_rank_4.pt",
        "global_step_5/actor/model_world_size_8_rank_5.pt",
    ];
    assert_eq!(reasons("verl", Extent::OtherPart, &node_1, None), [""]);
    assert_ne!(reasons("verl", Extent::Whole, &node_1, None), [""]);
    let empty = [node_1[0], "global_step_5/actor/model_world_size_8_rank_5.pt ="];
    assert_eq!(
        reasons("verl", Extent::OtherPart, &empty, None),
        ["actor/model_world_size_8_rank_5.pt is empty (0 bytes)"]
    );
    // Only the first node is told which required files it must have.
    assert_eq!(
        reasons("verl", Extent::LeadingPart, &node_1, None),
        ["none of data.pt, data_*.pt exists yet"]
    );
}

#[test]
fn a_pointer_that_a_restore_left_behind_holds_up_nothing() {
    let lines = [
        "iter_0000010/.metadata",
        "iter_0000010/metadata.json",
        "iter_0000010/__0_0.distcp",
        "iter_0000010/train_dataloader_dprank000.pt",
        "latest_checkpointed_iteration.txt = 10",
        "iter_0000020/__1_0.distcp",
    ];
    assert_eq!(
        reasons("megatron", Extent::OtherPart, &lines, None)[1],
        "",
        "nobody writes the pointer on this node"
    );
    let first = reasons("megatron", Extent::LeadingPart, &lines, None);
    assert!(first[1].contains("latest_checkpointed_iteration.txt still names 10"), "{first:?}");
}

#[test]
fn a_restored_step_of_all_ranks_is_no_measure_for_the_next_one() {
    let mut lines: Vec<String> =
        (0..8).map(|rank| format!("checkpoints/step_10/trainer/dataloader/rank_{rank}.pt")).collect();
    lines.extend(
        ["orchestrator/progress.pt", "trainer/__0_0.distcp", "trainer/.metadata"]
            .map(|name| format!("checkpoints/step_10/{name}")),
    );
    lines.extend((4..8).map(|rank| format!("checkpoints/step_20/trainer/dataloader/rank_{rank}.pt")));
    lines.push("checkpoints/step_20/trainer/__4_0.distcp".to_owned());
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_eq!(reasons("prime-rl", Extent::OtherPart, &lines, None), ["", ""]);
}

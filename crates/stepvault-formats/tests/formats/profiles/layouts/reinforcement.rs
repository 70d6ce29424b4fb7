//! Trainers of reinforcement learning.

use super::{killed_after_each_write, look, profile};
use crate::directory::memory::Memory;
use stepvault_formats::find::FindOptions;
use stepvault_formats::find::find_steps;

#[test]
fn prime_rl() {
    let before = [
        "checkpoints/step_10/trainer/__0_0.distcp",
        "checkpoints/step_10/trainer/.metadata",
        "checkpoints/step_10/orchestrator/progress.pt",
        "broadcasts/step_11/model.safetensors",
        "broadcasts/step_11/STABLE =",
    ];
    let writes = [
        "checkpoints/step_20/trainer/",
        "checkpoints/step_20/trainer/__0_0.distcp",
        "checkpoints/step_20/trainer/.metadata.tmp",
        "checkpoints/step_20/trainer/.metadata.tmp >> checkpoints/step_20/trainer/.metadata",
        "checkpoints/step_20/orchestrator/progress.pt.77.tmp",
        "checkpoints/step_20/orchestrator/progress.pt.77.tmp >> checkpoints/step_20/orchestrator/progress.pt",
    ];
    killed_after_each_write("prime-rl", &before, &writes, "checkpoints/step_20", &[]);
    killed_after_each_write("prime-rl", &[], &writes, "checkpoints/step_20", &[]);
    let found = look("prime-rl", &Memory::new(&before));
    assert_eq!(found.ignored, ["broadcasts"]);
    assert_eq!(found.steps.len(), 1);
}

#[test]
fn prime_rl_supervised() {
    let before = [
        "checkpoints/step_10/trainer/dataloader/rank_0.pt",
        "checkpoints/step_10/trainer/dataloader/rank_1.pt",
        "checkpoints/step_10/trainer/__0_0.distcp",
        "checkpoints/step_10/trainer/.metadata",
    ];
    let writes = [
        "checkpoints/step_20/trainer/dataloader/rank_1.pt",
        "checkpoints/step_20/trainer/dataloader/rank_0.pt",
        "checkpoints/step_20/trainer/__0_0.distcp",
        "checkpoints/step_20/trainer/.metadata",
    ];
    killed_after_each_write("prime-rl", &before, &writes, "checkpoints/step_20", &[]);
}

const AREAL_SAVE: [&str; 9] = [
    "actor/recover_checkpoint/__0_0.distcp",
    "actor/recover_checkpoint/__1_0.distcp",
    "actor/recover_checkpoint/.metadata",
    "recover_info/step_info.json = {\"epoch\": 0, \"epoch_step\": 9, \"global_step\": 9, \"steps_per_epoch\": 50}",
    "recover_info/saver_info.json",
    "recover_info/evaluator_info.json",
    "recover_info/stats_logger_info.json",
    "recover_info/checkpoint_info.json",
    "recover_info/dataloader_info.pkl",
];

#[test]
fn areal_is_one_unit_that_is_overwritten() {
    killed_after_each_write("areal", &[], &AREAL_SAVE, "actor/recover_checkpoint", &[]);
    // The second save over the first: every write but the last is detected only by its time.
    killed_after_each_write("areal", &AREAL_SAVE, &AREAL_SAVE, "actor/recover_checkpoint", &[]);
    let mut memory = Memory::new(&AREAL_SAVE);
    memory.write("actor/weight_update/model.safetensors");
    memory.write("recover_info/recover_checkpoint/");
    memory.write("logs/recover_checkpoint/");
    memory.write("critic/recover_checkpoint/model.safetensors");
    let found = look("areal", &memory);
    let [unit] = found.steps.as_slice() else {
        panic!("{:#?}", found.steps);
    };
    assert_eq!(unit.members, ["actor/recover_checkpoint", "critic/recover_checkpoint", "recover_info"]);
    assert_eq!(unit.step, Some(9));
    assert_eq!(
        unit.reasons(),
        [
            "critic/recover_checkpoint/model.safetensors was written after recover_info/step_info.json: the weights \
             are newer than the rest of the step"
        ]
    );
    assert_eq!(found.ignored, ["actor/weight_update"]);
}

#[test]
fn areal_must_be_quiet_even_when_its_times_are_in_order() {
    let memory = Memory::new(&AREAL_SAVE);
    let now = stepvault_core::timestamp::Timestamp::from_seconds(memory.clock_seconds + 3);
    let found = find_steps(&profile("areal"), &memory.tree(), &memory, now, &FindOptions::default());
    assert_eq!(found.steps[0].reasons(), ["it was written 3 s ago, and must be unchanged for 30 s"]);
}

#[test]
fn areal_exports() {
    let before = [
        "actor/epoch0epochstep3globalstep3/model.safetensors",
        "actor/epoch0epochstep3globalstep3/config.json",
        "actor/epoch0epochstep3globalstep3/tokenizer_config.json",
    ];
    let writes = [
        "actor/epoch0epochstep7globalstep7/config.json",
        "actor/epoch0epochstep7globalstep7/model.safetensors",
        "actor/epoch0epochstep7globalstep7/tokenizer_config.json",
    ];
    killed_after_each_write("areal", &before, &writes, "actor/epoch0epochstep7globalstep7", &[]);
    let archon = ["a/epoch0epochstep7globalstep7.tmp/model.safetensors"];
    let found = look("areal", &Memory::new(&archon));
    assert_eq!(found.temporary, ["a/epoch0epochstep7globalstep7.tmp"]);
    assert_eq!(found.steps[0].step, Some(7));
}

#[test]
fn verl_whose_pointer_is_never_written() {
    let sync = [
        "global_step_5/actor/model_world_size_2_rank_0.pt",
        "global_step_5/actor/model_world_size_2_rank_1.pt",
        "global_step_5/data.pt",
    ];
    killed_after_each_write("verl", &[], &sync, "global_step_5", &[]);
    let mut husk = Memory::new(&sync);
    husk.write("latest_checkpointed_iteration.txt = 5");
    husk.write("- global_step_5/actor");
    let found = look("verl", &husk);
    assert!(!found.steps[0].is_complete(), "{found:#?}");
    let hole = Memory::new(&["global_step_5/actor/model_world_size_3_rank_1.pt", "global_step_5/data.pt"]);
    assert_eq!(
        look("verl", &hole).steps[0].reasons(),
        ["the files (global_step_5/actor/model_world_size_3_rank_*.pt) of rank 0 are missing: 1 of 3 exist"
            .replace("global_step_5/", "")]
    );
}

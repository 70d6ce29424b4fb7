//! Other trainers on torch.

use super::{complete, detected, killed_after_each_write, look};
use crate::directory::memory::Memory;

#[test]
fn openpi_with_pytorch() {
    let before = ["1000/model.safetensors", "1000/optimizer.pt", "1000/metadata.pt"];
    let writes = [
        "tmp_2000/model.safetensors",
        "tmp_2000/optimizer.pt",
        "tmp_2000/metadata.pt",
        "tmp_2000/assets/norm_stats.json",
        "tmp_2000 >> 2000",
    ];
    killed_after_each_write("openpi-pytorch", &before, &writes, "2000", &[]);
}

#[test]
fn torchtitan() {
    let before = ["checkpoint/step-0/__0_0.distcp", "checkpoint/step-0/.metadata"];
    let writes = [
        "checkpoint/step-500/",
        "checkpoint/step-500/__1_0.distcp",
        "checkpoint/step-500/__0_0.distcp",
        "checkpoint/step-500/.metadata",
    ];
    killed_after_each_write("torchtitan", &before, &writes, "checkpoint/step-500", &[]);
    let hugging_face = [
        "checkpoint/step-900/sharded/shard-00001-model-00001-of-00001.safetensors",
        "checkpoint/step-900/model-00001-of-00001.safetensors",
        "checkpoint/step-900/model.safetensors.index.json",
    ];
    killed_after_each_write("torchtitan", &before, &hugging_face, "checkpoint/step-900", &[]);
    let by_content = Memory::new(&["step-500/__0_0.distcp", "step-500/.metadata = model.tok train_state"]);
    assert_eq!(detected(&by_content), "torchtitan");
}

#[test]
fn dcp_overwritten_in_place() {
    let before = ["latest/__0_0.distcp", "step_5/__0_0.distcp", "step_5/.metadata"];
    let mut memory = Memory::new(&before);
    assert_eq!(complete("dcp", &memory), ["step_5"]);
    memory.write("step_5/__0_0.distcp");
    let found = look("dcp", &memory);
    assert_eq!(
        found.steps[0].reasons(),
        [
            "__0_0.distcp was written after .metadata, which a save writes later: the step is being overwritten, or \
             was copied without its modification times"
        ]
    );
}

#[test]
fn deepspeed_with_stage_3() {
    let before = [
        "global_step10/zero_pp_rank_0_mp_rank_00_model_states.pt",
        "global_step10/zero_pp_rank_1_mp_rank_00_model_states.pt",
        "global_step10/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "global_step10/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "latest = global_step10",
    ];
    let writes = [
        "best/zero_pp_rank_0_mp_rank_00_model_states.pt",
        "best/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "latest = best",
    ];
    let mut memory = Memory::new(&before);
    assert_eq!(look("deepspeed", &memory).steps[0].ranks, Some(2));
    for write in writes {
        memory.write(write);
    }
    let found = look("deepspeed", &memory);
    assert_eq!(found.pointer().unwrap().target.as_deref(), Some("best"));
    memory.write("latest = global_step99");
    let pointer = look("deepspeed", &memory).pointers.remove(0);
    assert_eq!((pointer.dangling, pointer.target_step), (true, Some(99)));
}

#[test]
fn megatron() {
    let before = [
        "iter_0000010/__0_0.distcp",
        "iter_0000010/.metadata",
        "iter_0000010/metadata.json",
        "latest_checkpointed_iteration.txt = 10",
    ];
    let writes = [
        "iter_0000020/__0_0.distcp",
        "iter_0000020/.metadata",
        "iter_0000020/metadata.json",
        "latest_checkpointed_iteration.txt = 20",
    ];
    killed_after_each_write("megatron", &before, &writes, "iter_0000020", &[]);
    let mut cut_off = Memory::new(&before);
    cut_off.write("iter_0000020/__0_0.distcp");
    assert_eq!(
        look("megatron", &cut_off).steps[1].reasons(),
        [
            "none of .metadata, mp_rank_*/model_optim_rng.pt, *_model_states.pt exists yet",
            ".metadata does not exist yet",
            "latest_checkpointed_iteration.txt still names 10",
        ]
    );
    cut_off.write("latest_checkpointed_iteration.txt = release");
    assert!(!look("megatron", &cut_off).pointers[0].dangling);
    cut_off.write("latest_checkpointed_iteration.txt = garbage");
    assert!(look("megatron", &cut_off).pointers[0].dangling);
}

#[test]
fn torchtune() {
    let before = ["epoch_0/model-00001-of-00001.safetensors", "epoch_0/recipe_state.pt"];
    let mut memory = Memory::new(&before);
    memory.write("epoch_1/");
    assert_eq!(complete("torchtune", &memory), ["epoch_0"]);
    // The last checkpoint of a run has no recipe state, so a missing one proves nothing.
    let writes = ["epoch_1/model-00001-of-00001.safetensors", "epoch_1/recipe_state.pt"];
    killed_after_each_write("torchtune", &before, &writes, "epoch_1", &writes[..1]);
    let distributed = ["step_5/__0_0.distcp", "step_5/.metadata"];
    killed_after_each_write("torchtune", &before, &distributed, "step_5", &[]);
}

#[test]
fn composer() {
    let before = ["ep0-ba100-rank0.pt", "latest-rank0.pt -> ep0-ba100-rank0.pt"];
    let writes = ["ep0-ba200-rank0.pt", "latest-rank0.pt -> ep0-ba200-rank0.pt"];
    killed_after_each_write("composer", &before, &writes, "ep0-ba200-rank0.pt", &[]);
    let by_rank = Memory::new(&[
        "ep0-ba100-rank0.pt",
        "ep0-ba100-rank1.pt",
        "latest-rank0.pt -> ep0-ba100-rank0.pt",
        "latest-rank1.pt -> ep0-ba100-rank1.pt",
        "ep0-ba200-rank0.pt",
        "ep0-ba200-rank1.pt",
        "latest-rank0.pt -> ep0-ba200-rank0.pt",
    ]);
    let found = look("composer", &by_rank);
    assert_eq!(found.steps[0].members, ["ep0-ba100-rank0.pt", "ep0-ba100-rank1.pt"]);
    assert!(found.steps[0].is_complete());
    assert_eq!(found.steps[1].reasons(), ["latest-rank1.pt still names ep0-ba100-rank1.pt"]);
    let sharded = ["ep1-ba300/__0_0.distcp", "ep1-ba300/.metadata"];
    killed_after_each_write("composer", &before, &sharded, "ep1-ba300", &[]);
}

#[test]
fn cycling_utils_by_rank() {
    let before = [
        "Saver_rank_0_checkpoint_1/checkpoint.pt",
        "Saver_rank_1_checkpoint_1/checkpoint.pt",
        "Saver_rank_0.latest_checkpoint -> /out/Saver_rank_0_checkpoint_1",
        "Saver_rank_1.latest_checkpoint -> /out/Saver_rank_1_checkpoint_1",
    ];
    let writes = [
        "Saver_rank_0_checkpoint_2_force/",
        "Saver_rank_0_checkpoint_2_force/checkpoint.pt",
        "Saver_rank_0.latest_checkpoint_temp -> /out/Saver_rank_0_checkpoint_2_force",
        "Saver_rank_0.latest_checkpoint_temp >> Saver_rank_0.latest_checkpoint",
        "Saver_rank_1_checkpoint_2_force/checkpoint.pt",
        "Saver_rank_1.latest_checkpoint -> /out/Saver_rank_1_checkpoint_2_force",
    ];
    killed_after_each_write("cycling-utils", &before, &writes, "Saver_rank_0_checkpoint_2_force", &[]);
    let found = look("cycling-utils", &Memory::new(&before));
    assert_eq!(found.steps[0].members, ["Saver_rank_0_checkpoint_1", "Saver_rank_1_checkpoint_1"]);
    assert_eq!(found.steps[0].ranks, Some(2));
}

#[test]
fn ultralytics() {
    let memory = Memory::new(&["args.yaml", "weights/last.pt = one", "weights/best.pt = two"]);
    let found = look("ultralytics", &memory);
    assert_eq!(found.steps.len(), 1);
    assert_eq!((found.steps[0].path.as_str(), found.steps[0].step), ("weights/last.pt", None));
    assert!(found.steps[0].is_complete());
    assert_eq!(detected(&memory), "ultralytics");
}

#[test]
fn stepvault() {
    let mut memory = Memory::new(&["step_90/model.pt", "step_100/model.pt", "latest -> step_90"]);
    assert_eq!(detected(&memory), "stepvault");
    assert_eq!(complete("stepvault", &memory), ["step_90", "step_100"]);
    let found = look("stepvault", &memory);
    assert_eq!(found.pointers[0].target_step, Some(90));
    memory.write("latest/file");
    assert_eq!(detected(&memory), "generic");
}

#[test]
fn fairseq() {
    let memory = Memory::new(&[
        "checkpoint1-shard0.pt = one",
        "checkpoint1-shard1.pt = two",
        "checkpoint_2_5000-shard0.pt = three",
        "checkpoint_last-shard0.pt = three",
        "checkpoint_last-shard1.pt = four",
        "checkpoint_best-shard0.pt = one",
    ]);
    assert_eq!(detected(&memory), "fairseq");
    let found = look("fairseq", &memory);
    let paths: Vec<_> = found.steps.iter().map(|step| (step.path.as_str(), step.step, step.ranks)).collect();
    assert_eq!(
        paths,
        [
            ("checkpoint_2_5000-shard0.pt", Some(5000), Some(1)),
            ("checkpoint1-shard0.pt", Some(1), Some(2)),
            ("checkpoint_last-shard0.pt", None, Some(2)),
        ]
    );
}

/// Blind spots: files that only some runs write are known from an earlier step, and the first step has none.
#[test]
fn the_first_step_of_a_run_tells_less() {
    let hugging_face = [
        "checkpoint-5/trainer_state.json = {}",
        "checkpoint-5/model.safetensors",
        "checkpoint-5/optimizer.pt",
        "checkpoint-5/rng_state.pth",
    ];
    // save_only_model leaves only weights and state.
    killed_after_each_write("hf-trainer", &[], &hugging_face, "checkpoint-5", &hugging_face[1..2]);
    let accelerate = [
        "checkpoints/checkpoint_0/model.safetensors",
        "checkpoints/checkpoint_0/optimizer.bin",
        "checkpoints/checkpoint_0/random_states_0.pkl",
        "checkpoints/checkpoint_0/random_states_1.pkl",
        "checkpoints/checkpoint_0/custom_checkpoint_0.pkl",
    ];
    killed_after_each_write("accelerate", &[], &accelerate, "checkpoints/checkpoint_0", &accelerate[2..4]);
    let deepspeed = [
        "global_step10/mp_rank_00_model_states.pt",
        "global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "latest = global_step10",
        "global_step10/zero_pp_rank_1_mp_rank_00_optim_states.pt",
    ];
    killed_after_each_write("deepspeed", &[], &deepspeed, "global_step10", &deepspeed[..3]);
    let export = [
        "actor/epoch0epochstep7globalstep7/config.json",
        "actor/epoch0epochstep7globalstep7/model.safetensors",
        "actor/epoch0epochstep7globalstep7/tokenizer_config.json",
    ];
    killed_after_each_write("areal", &[], &export, "actor/epoch0epochstep7globalstep7", &export[1..2]);
}

//! Frameworks without an archive of real checkpoints: directories written by hand, in the order in which the framework
//! writes, looked at after each write.

use stepvault_formats::detect::detect;
use stepvault_formats::find::{FindOptions, Found, find_steps};
use stepvault_formats::profile::{Profile, ProfileSet};

use crate::directory::memory::Memory;

fn profile(name: &str) -> Profile {
    ProfileSet::default().get(name).unwrap().clone()
}

fn detected(memory: &Memory) -> String {
    let profiles = ProfileSet::default();
    detect(&memory.tree(), memory, &profiles)
        .unwrap()
        .profile
        .name
        .clone()
}

fn look(name: &str, memory: &Memory) -> Found {
    let options = FindOptions::default();
    find_steps(&profile(name), &memory.tree(), memory, memory.settled(), &options)
}

/// The paths of the complete steps.
fn complete(name: &str, memory: &Memory) -> Vec<String> {
    let found = look(name, memory);
    found
        .steps
        .iter()
        .filter(|step| step.is_complete())
        .map(|step| step.path.clone())
        .collect()
}

/// Writes a step after `before`, and checks that it is complete after the last write and after none before, even when
/// nothing happens for long: each prefix of the writes is what a kill leaves. `tells_nothing` lists those after which it
/// looks complete although it is not: nothing in the framework's layout tells.
fn killed_after_each_write(name: &str, before: &[&str], writes: &[&str], step: &str, tells_nothing: &[&str]) {
    let mut memory = Memory::new(before);
    for write in writes {
        let (write, last) = (*write, std::ptr::eq(*write, *writes.last().unwrap()));
        memory.write(write);
        if !before.is_empty() || last {
            assert_eq!(detected(&memory), name, "after {write}");
        }
        let is_complete = complete(name, &memory).iter().any(|path| path == step);
        let expected = last || tells_nothing.contains(&write);
        let found = look(name, &memory);
        assert_eq!(is_complete, expected, "{name} after {write}: {:#?}", found.steps);
    }
    for write in tells_nothing {
        assert!(writes.contains(write), "{write}");
    }
}

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
    // The second save over the first: every write but the last is seen by its time alone.
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
    assert_eq!(
        unit.members,
        [
            "actor/recover_checkpoint",
            "critic/recover_checkpoint",
            "recover_info"
        ]
    );
    assert_eq!(unit.step, Some(9));
    assert_eq!(
        unit.reasons(),
        [
            "critic/recover_checkpoint/model.safetensors was written after recover_info/step_info.json: the weights are of \
          a newer save than the rest"
        ]
    );
    assert_eq!(found.ignored, ["actor/weight_update"]);
}

#[test]
fn areal_must_be_quiet_even_when_its_times_are_in_order() {
    let memory = Memory::new(&AREAL_SAVE);
    let now = stepvault_core::timestamp::Timestamp::from_seconds(memory.clock_seconds + 3);
    let found = find_steps(
        &profile("areal"),
        &memory.tree(),
        &memory,
        now,
        &FindOptions::default(),
    );
    assert_eq!(
        found.steps[0].reasons(),
        ["it was written 3 s ago, and must be quiet for 30 s"]
    );
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
    killed_after_each_write(
        "areal",
        &before,
        &writes,
        "actor/epoch0epochstep7globalstep7",
        &[],
    );
    let archon = ["a/epoch0epochstep7globalstep7.tmp/model.safetensors"];
    let found = look("areal", &Memory::new(&archon));
    assert_eq!(found.temporary, ["a/epoch0epochstep7globalstep7.tmp"]);
    assert_eq!(found.steps[0].step, Some(7));
}

#[test]
fn openpi_with_jax() {
    let before = [
        "wandb_id.txt",
        "5000/params/_METADATA",
        "5000/train_state/_METADATA",
        "5000/assets/norm_stats.json",
        "5000/_CHECKPOINT_METADATA",
    ];
    let writes = [
        "10000.orbax-checkpoint-tmp/_CHECKPOINT_METADATA",
        "10000.orbax-checkpoint-tmp/params.orbax-checkpoint-tmp/_METADATA",
        "10000.orbax-checkpoint-tmp/assets/norm_stats.json",
        "10000.orbax-checkpoint-tmp/train_state/_METADATA",
        "10000.orbax-checkpoint-tmp/params.orbax-checkpoint-tmp >> 10000.orbax-checkpoint-tmp/params",
        "10000.orbax-checkpoint-tmp >> 10000",
    ];
    killed_after_each_write("openpi-jax", &before, &writes, "10000", &[]);
    let mut empty = Memory::new(&before);
    empty.write("15000/");
    let found = look("openpi-jax", &empty);
    assert_eq!(found.steps[1].reasons(), ["it holds no file yet"]);
    // JAX's own rule is less careful.
    assert_eq!(complete("openpi-jax", &empty), ["5000"]);
}

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
    let by_content = Memory::new(&[
        "step-500/__0_0.distcp",
        "step-500/.metadata = model.tok train_state",
    ]);
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
            "__0_0.distcp was written after .metadata, which comes after it in a save: the step is being overwritten, or \
          was copied without its times"
        ]
    );
}

#[test]
fn trl_and_unsloth() {
    let before = [
        "checkpoint-5/adapter_model.safetensors",
        "checkpoint-5/training_args.bin = PK ctrl.trainer.sft_config",
        "checkpoint-5/optimizer.pt",
        "checkpoint-5/scheduler.pt",
        "checkpoint-5/rng_state_0.pth",
        "checkpoint-5/rng_state_1.pth",
        "checkpoint-5/trainer_state.json = {\"best_model_checkpoint\": \"out/checkpoint-5\"}",
        "checkpoint-5/entropy_ctrl_state.json",
    ];
    let writes = [
        "checkpoint-10/adapter_model.safetensors",
        "checkpoint-10/training_args.bin = PK ctrl.trainer.sft_config",
        "checkpoint-10/optimizer.pt",
        "checkpoint-10/scheduler.pt",
        "checkpoint-10/rng_state_0.pth",
        "checkpoint-10/rng_state_1.pth",
        "checkpoint-10/trainer_state.json = {\"best_model_checkpoint\": \"out/checkpoint-5\"}",
        "checkpoint-10/entropy_ctrl_state.json",
    ];
    killed_after_each_write("trl", &before, &writes, "checkpoint-10", &[]);
    let unsloth = Memory::new(&["checkpoint-5/training_args.bin = PK UnslothSFTConfig"]);
    assert_eq!(detected(&unsloth), "trl");
}

#[test]
fn hf_trainer_in_two_processes() {
    let before = [
        "checkpoint-5/model.safetensors",
        "checkpoint-5/optimizer.pt",
        "checkpoint-5/rng_state_0.pth",
        "checkpoint-5/rng_state_1.pth",
        "checkpoint-5/trainer_state.json = {}",
    ];
    // Rank 0 is done before rank 1 has begun: no barrier.
    let writes = [
        "checkpoint-10/model.safetensors",
        "checkpoint-10/optimizer.pt",
        "checkpoint-10/rng_state_0.pth",
        "checkpoint-10/trainer_state.json = {}",
        "checkpoint-10/rng_state_1.pth",
    ];
    killed_after_each_write("hf-trainer", &before, &writes, "checkpoint-10", &[]);
    killed_after_each_write("hf-trainer", &[], &writes, "checkpoint-10", &[]);
    let mut saved = Memory::new(&before);
    saved.write("checkpoint-5/checkpoint-is-incomplete.txt");
    assert_eq!(
        look("hf-trainer", &saved).steps[0].reasons(),
        ["checkpoint-is-incomplete.txt is there, which says that it is not complete"]
    );
}

#[test]
fn hf_trainer_with_sharded_state() {
    let before = [
        "checkpoint-5/pytorch_model_fsdp_0/__0_0.distcp",
        "checkpoint-5/pytorch_model_fsdp_0/.metadata",
        "checkpoint-5/optimizer_0/__0_0.distcp",
        "checkpoint-5/optimizer_0/.metadata",
        "checkpoint-5/trainer_state.json = {}",
    ];
    let mut memory = Memory::new(&before);
    assert_eq!(complete("hf-trainer", &memory), ["checkpoint-5"]);
    memory.write("- checkpoint-5/pytorch_model_fsdp_0/.metadata");
    assert_eq!(
        look("hf-trainer", &memory).steps[0].reasons(),
        ["pytorch_model_fsdp_0/.metadata is not there yet"]
    );
    assert_eq!(detected(&memory), "hf-trainer");
}

#[test]
fn hf_trainer_over_deepspeed() {
    let memory = Memory::new(&[
        "checkpoint-5/global_step5/mp_rank_00_model_states.pt",
        "checkpoint-5/global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "checkpoint-5/latest = global_step5",
        "checkpoint-5/rng_state_0.pth",
        "checkpoint-5/rng_state_1.pth",
        "checkpoint-5/trainer_state.json = {}",
    ]);
    assert_eq!(detected(&memory), "hf-trainer");
    assert_eq!(complete("hf-trainer", &memory), ["checkpoint-5"]);
}

#[test]
fn lightning_sharded() {
    let before = [
        "checkpoints/epoch=0-step=10.ckpt/__0_0.distcp",
        "checkpoints/epoch=0-step=10.ckpt/.metadata",
        "checkpoints/epoch=0-step=10.ckpt/meta.pt",
    ];
    let writes = [
        "checkpoints/epoch=0-step=20.ckpt/__0_0.distcp",
        "checkpoints/epoch=0-step=20.ckpt/.metadata",
        "checkpoints/epoch=0-step=20.ckpt/meta.pt",
    ];
    killed_after_each_write(
        "lightning",
        &before,
        &writes,
        "checkpoints/epoch=0-step=20.ckpt",
        &[],
    );
}

#[test]
fn lightning_moved_from_another_filesystem() {
    let mut memory = Memory::new(&[
        "checkpoints/epoch=0-step=10.ckpt",
        "checkpoints/epoch=0-step=20.ckpt =",
    ]);
    assert_eq!(
        complete("lightning", &memory),
        ["checkpoints/epoch=0-step=10.ckpt"]
    );
    memory.write("checkpoints/last.ckpt = of another step");
    let found = look("lightning", &memory);
    assert_eq!(
        found.steps[1].reasons(),
        ["epoch=0-step=20.ckpt is empty (0 bytes)"]
    );
    // With bytes of its own it is a step; its number is inside.
    assert_eq!(
        (found.steps[2].path.as_str(), found.steps[2].step),
        ("checkpoints/last.ckpt", None)
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
            "none of .metadata, mp_rank_*/model_optim_rng.pt, *_model_states.pt is there yet",
            ".metadata is not there yet",
            "latest_checkpointed_iteration.txt still says 10",
        ]
    );
    cut_off.write("latest_checkpointed_iteration.txt = release");
    assert!(!look("megatron", &cut_off).pointers[0].dangling);
    cut_off.write("latest_checkpointed_iteration.txt = garbage");
    assert!(look("megatron", &cut_off).pointers[0].dangling);
}

#[test]
fn nemo() {
    let before = [
        "checkpoints/gpt--step=10-last/weights/.metadata",
        "checkpoints/gpt--step=10-last/context/io.json",
    ];
    let writes = [
        "checkpoints/gpt--step=20-last-unfinished =",
        "checkpoints/gpt--step=20-last/weights/__0_0.distcp",
        "checkpoints/gpt--step=20-last/weights/.metadata",
        "checkpoints/gpt--step=20-last/context/io.json",
        "- checkpoints/gpt--step=20-last-unfinished",
    ];
    killed_after_each_write("nemo", &before, &writes, "checkpoints/gpt--step=20-last", &[]);
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
    let hole = Memory::new(&[
        "global_step_5/actor/model_world_size_3_rank_1.pt",
        "global_step_5/data.pt",
    ]);
    assert_eq!(
        look("verl", &hole).steps[0].reasons(),
        ["the files (global_step_5/actor/model_world_size_3_rank_*.pt) of rank 0 are not there: 1 of 3 are"
            .replace("global_step_5/", "")]
    );
}

#[test]
fn torchtune() {
    let before = [
        "epoch_0/model-00001-of-00001.safetensors",
        "epoch_0/recipe_state.pt",
    ];
    let mut memory = Memory::new(&before);
    memory.write("epoch_1/");
    assert_eq!(complete("torchtune", &memory), ["epoch_0"]);
    // The last save of a run has no recipe state, so that a missing one says nothing.
    let writes = [
        "epoch_1/model-00001-of-00001.safetensors",
        "epoch_1/recipe_state.pt",
    ];
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
    assert_eq!(
        found.steps[0].members,
        ["ep0-ba100-rank0.pt", "ep0-ba100-rank1.pt"]
    );
    assert!(found.steps[0].is_complete());
    assert_eq!(
        found.steps[1].reasons(),
        ["latest-rank1.pt still says ep0-ba100-rank1.pt"]
    );
    let sharded = ["ep1-ba300/__0_0.distcp", "ep1-ba300/.metadata"];
    killed_after_each_write("composer", &before, &sharded, "ep1-ba300", &[]);
}

#[test]
fn maxtext() {
    let before = [
        "checkpoints/0/items/manifest.ocdbt",
        "checkpoints/0/iter/process_0-of-2.json",
        "checkpoints/0/iter/process_1-of-2.json",
    ];
    let writes = [
        "checkpoints/50.orbax-checkpoint-tmp/items/manifest.ocdbt",
        "checkpoints/50.orbax-checkpoint-tmp/iter/process_1-of-2.json",
        "checkpoints/50.orbax-checkpoint-tmp/iter/process_0-of-2.json",
        "checkpoints/50.orbax-checkpoint-tmp >> checkpoints/50",
    ];
    killed_after_each_write("maxtext", &before, &writes, "checkpoints/50", &[]);
}

#[test]
fn levanter() {
    let json = |step: u32| {
        format!("{{\"step\": {step}, \"timestamp\": \"2026-01-0{step}T00:00:00\", \"is_temporary\": false}}")
    };
    let first = format!("run/step-1/metadata.json = {}", json(1));
    let second = format!("run/step-2/metadata.json = {}", json(2));
    let before = ["run/step-1/model/weight/.zarray", first.as_str()];
    let writes = [
        "run/step-2/model/weight/.zarray",
        "run/step-2/model/weight/0",
        second.as_str(),
    ];
    killed_after_each_write("levanter", &before, &writes, "run/step-2", &[]);
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
    killed_after_each_write(
        "cycling-utils",
        &before,
        &writes,
        "Saver_rank_0_checkpoint_2_force",
        &[],
    );
    let found = look("cycling-utils", &Memory::new(&before));
    assert_eq!(
        found.steps[0].members,
        ["Saver_rank_0_checkpoint_1", "Saver_rank_1_checkpoint_1"]
    );
    assert_eq!(found.steps[0].ranks, Some(2));
}

#[test]
fn ultralytics() {
    let memory = Memory::new(&["args.yaml", "weights/last.pt = one", "weights/best.pt = two"]);
    let found = look("ultralytics", &memory);
    assert_eq!(found.steps.len(), 1);
    assert_eq!(
        (found.steps[0].path.as_str(), found.steps[0].step),
        ("weights/last.pt", None)
    );
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
    let paths: Vec<_> = found
        .steps
        .iter()
        .map(|step| (step.path.as_str(), step.step, step.ranks))
        .collect();
    assert_eq!(
        paths,
        [
            ("checkpoint_2_5000-shard0.pt", Some(5000), Some(1)),
            ("checkpoint1-shard0.pt", Some(1), Some(2)),
            ("checkpoint_last-shard0.pt", None, Some(2)),
        ]
    );
}

/// Blind spots: what only some runs write is known from an earlier step, and the first has none.
#[test]
fn the_first_step_of_a_run_tells_less() {
    let hugging_face = [
        "checkpoint-5/trainer_state.json = {}",
        "checkpoint-5/model.safetensors",
        "checkpoint-5/optimizer.pt",
        "checkpoint-5/rng_state.pth",
    ];
    // Weights and state alone are what save_only_model leaves.
    killed_after_each_write(
        "hf-trainer",
        &[],
        &hugging_face,
        "checkpoint-5",
        &hugging_face[1..2],
    );
    let accelerate = [
        "checkpoints/checkpoint_0/model.safetensors",
        "checkpoints/checkpoint_0/optimizer.bin",
        "checkpoints/checkpoint_0/random_states_0.pkl",
        "checkpoints/checkpoint_0/random_states_1.pkl",
        "checkpoints/checkpoint_0/custom_checkpoint_0.pkl",
    ];
    killed_after_each_write(
        "accelerate",
        &[],
        &accelerate,
        "checkpoints/checkpoint_0",
        &accelerate[2..4],
    );
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
    killed_after_each_write(
        "areal",
        &[],
        &export,
        "actor/epoch0epochstep7globalstep7",
        &export[1..2],
    );
}

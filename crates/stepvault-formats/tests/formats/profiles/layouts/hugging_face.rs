//! Hugging Face's trainers, and those built on them.

use super::{complete, detected, killed_after_each_write, look};
use crate::directory::memory::Memory;

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
    // Rank 0 finishes before rank 1 has started: there is no barrier.
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
        ["checkpoint-is-incomplete.txt exists, which marks the step as incomplete"]
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
        ["pytorch_model_fsdp_0/.metadata does not exist yet"]
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

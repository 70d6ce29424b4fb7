//! Directories of trainers that no profile describes.

use super::{detected, look};
use crate::directory::memory::Memory;

/// Returns path, number and members of the steps that the detected profile finds, complete or not.
fn steps(lines: &[&str]) -> Vec<(String, Option<u64>, Vec<String>)> {
    let memory = Memory::new(lines);
    let found = look(&detected(&memory), &memory).steps;
    found.into_iter().map(|step| (step.path, step.step, step.members)).collect()
}

fn step(path: &str, number: u64, others: &[&str]) -> (String, Option<u64>, Vec<String>) {
    let mut members: Vec<String> = others.iter().map(|path| (*path).to_owned()).collect();
    members.push(path.to_owned());
    (path.to_owned(), Some(number), members)
}

#[test]
fn entries_of_one_number_are_one_step() {
    let gan = ["netD_epoch_1.pth", "netG_epoch_1.pth", "netD_epoch_2.pth", "netG_epoch_2.pth"];
    assert_eq!(
        steps(&gan),
        [
            step("netD_epoch_1.pth", 1, &["netG_epoch_1.pth"]),
            step("netD_epoch_2.pth", 2, &["netG_epoch_2.pth"])
        ]
    );
    assert_eq!(
        steps(&["model_10.bin", "optim_10.bin", "ema_10.bin"]),
        [step("model_10.bin", 10, &["ema_10.bin", "optim_10.bin"])]
    );
    assert_eq!(
        steps(&["ckpt_200_rank_0.pt", "ckpt_200_rank_1.pt"]),
        [step("ckpt_200_rank_0.pt", 200, &["ckpt_200_rank_1.pt"])]
    );
    assert_eq!(
        steps(&[
            "rl_model_400_steps.zip",
            "rl_model_replay_buffer_400_steps.pkl",
            "rl_model_vecnormalize_400_steps.pkl",
            "monitor.csv"
        ]),
        [step(
            "rl_model_400_steps.zip",
            400,
            &["rl_model_replay_buffer_400_steps.pkl", "rl_model_vecnormalize_400_steps.pkl"]
        )]
    );
}

#[test]
fn a_conversion_never_leads_a_step_that_can_be_resumed_from() {
    let conversion = [
        "step_200/model.pt",
        "step_200/optimizer.pt",
        "step_200_hf/model.safetensors = many more weights than there are in the other directory",
        "step_200_hf/config.json",
        "step_200.json",
        "step_200.log",
    ];
    assert_eq!(steps(&conversion), [step("step_200", 200, &["step_200.json", "step_200_hf"])]);
    let merged = [
        "checkpoint-200/model.safetensors",
        "checkpoint-200/trainer_state.json",
        "checkpoint-200-merged/model.safetensors",
    ];
    assert_eq!(steps(&merged), [step("checkpoint-200", 200, &["checkpoint-200-merged"])]);
    let ema = ["epoch=1-step=200.ckpt", "epoch=1-step=200-EMA.ckpt"];
    assert_eq!(steps(&ema), [step("epoch=1-step=200.ckpt", 200, &["epoch=1-step=200-EMA.ckpt"])]);
}

#[test]
fn any_extension_is_that_of_a_step_but_those_of_logs_and_texts() {
    for name in [
        "model_10.ubj",
        "model_epoch10.joblib",
        "catboost_iter_10.cbm",
        "model_10.onnx",
        "ckpt_10",
        "model_10.json",
    ] {
        assert_eq!(steps(&[name]), [step(name, 10, &[])], "{name}");
    }
    for name in [
        "metrics_10.json",
        "sample_10.png",
        "step_10.log",
        "events.out.tfevents.10",
        "notes_10.txt",
        "._model_10.pt",
    ] {
        assert_eq!(steps(&[name]), [], "{name}");
    }
    assert_eq!(steps(&["models/model_0.pth"]), [step("models/model_0.pth", 0, &[])]);
    assert_eq!(
        steps(&["model_0000004.pth", "last_checkpoint = model_0000004.pth", "metrics.json"]),
        [step("model_0000004.pth", 4, &["last_checkpoint"])]
    );
}

#[test]
fn names_that_count_something_else_are_no_steps() {
    for name in ["Dataset001", "fold_0", "trial_3", "version_0", "seed_42", "rank_1", "run_3", "exp_2"] {
        assert_eq!(steps(&[&format!("{name}/checkpoint_final.pth")]), [], "{name}");
    }
    // Something else is counted beside steps.
    assert_eq!(steps(&["step_5.pt", "vocab_32000.bin"]), [step("step_5.pt", 5, &[])]);
    assert_eq!(steps(&["phase_2/step_100.pt", "phase_2/step_200.pt"]), []);
    assert_eq!(steps(&["eval_200/results.json"]), []);
}

#[test]
fn a_step_waits_for_the_first_file_that_can_hold_state() {
    let memory = Memory::new(&["checkpoint-5/config.json", "checkpoint-5/generation_config.json"]);
    assert_eq!(detected(&memory), "generic");
    let found = look("generic", &memory);
    assert_eq!(found.steps[0].reasons(), ["it contains no file yet that can hold the state of a training"]);
}

#[test]
fn what_tools_leave_in_a_step_is_no_part_of_its_judgement() {
    let memory = Memory::new(&[
        "step_5/model.pt",
        "step_5/._model.pt.tmp",
        "step_5/.ipynb_checkpoints/model-checkpoint.tmp",
        "step_5/.DS_Store =",
    ]);
    let found = look("generic", &memory);
    assert!(found.steps[0].is_complete(), "{:?}", found.steps[0]);
    assert_eq!(found.steps[0].files, 4);
    let unfinished = Memory::new(&["step_5/model.pt", "step_5/.optimizer.pt.AbC123"]);
    assert!(!look("generic", &unfinished).steps[0].is_complete(), "rsync is writing it");
}

#[test]
fn names_that_only_look_like_a_frameworks_are_no_evidence() {
    for (line, path, number) in [
        ("checkpoint_epoch_3.pt", "checkpoint_epoch_3.pt", 3),
        ("checkpoint_step_3.pt", "checkpoint_step_3.pt", 3),
        ("checkpoint_3_rank_0.pt", "checkpoint_3_rank_0.pt", 3),
    ] {
        assert_eq!(steps(&[line, "checkpoint_best.pt"])[0], step(path, number, &[]));
        assert_eq!(detected(&Memory::new(&[line, "checkpoint_last.pt"])), "generic");
    }
    assert_eq!(detected(&Memory::new(&["checkpoint_1_500.pt"])), "fairseq");
}

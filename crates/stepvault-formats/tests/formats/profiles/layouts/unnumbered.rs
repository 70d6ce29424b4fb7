//! Checkpoints without a number in their names: each content is a step, whose number the content tells.

use stepvault_formats::find::{FoundStep, QuietRule};

use super::{detected, look};
use crate::directory::memory::Memory;
use crate::support::sample;
use crate::torch::archive::small_archive;

/// Returns a file of `torch.save` that holds a dictionary with these entries, as the text of a pickle.
fn torch(entries: &str) -> Vec<u8> {
    small_archive(format!("(d{entries}.").as_bytes()).finish(b"")
}

fn number(key: &str, number: i64) -> String {
    format!("V{key}\nI{number}\ns")
}

fn epoch(value: i64) -> Vec<u8> {
    torch(&number("epoch", value))
}

fn global_step(value: i64) -> Vec<u8> {
    torch(&(number("epoch", 1) + &number("global_step", value)))
}

/// Returns path, number, whether the path is rewritten, and the other members of the complete steps.
fn steps(name: &str, memory: &Memory) -> Vec<(String, Option<u64>, bool, Vec<String>)> {
    let steps = look(name, memory).steps.into_iter().filter(FoundStep::is_complete);
    steps
        .map(|step| {
            let others = step.members[1..].to_vec();
            (step.path, step.step, step.rewritten, others)
        })
        .collect()
}

fn rewritten(path: &str, step: Option<u64>, others: &[&str]) -> (String, Option<u64>, bool, Vec<String>) {
    let others = others.iter().map(|path| (*path).to_owned()).collect();
    (path.to_owned(), step, true, others)
}

#[test]
fn ultralytics_saves_last_and_best_until_its_last_write() {
    let mut memory = Memory::new(&["args.yaml"]);
    memory.write_bytes("weights/last.pt", &epoch(3));
    assert_eq!(detected(&memory), "ultralytics");
    assert_eq!(steps("ultralytics", &memory), [rewritten("weights/last.pt", Some(3), &[])]);
    memory.write_bytes("weights/best.pt", &epoch(3));
    let both = |step| rewritten("weights/last.pt", step, &["weights/best.pt"]);
    assert_eq!(steps("ultralytics", &memory), [both(Some(3))]);
    assert_eq!(look("ultralytics", &memory).steps[0].quiet_rule(), QuietRule::Briefly);
    // A save of the same epoch under its number: last.pt is a copy of it.
    memory.write_bytes("weights/epoch3.pt", &epoch(3));
    let numbered = ("weights/epoch3.pt".to_owned(), Some(3), false, Vec::new());
    assert_eq!(steps("ultralytics", &memory), std::slice::from_ref(&numbered));
    memory.write_bytes("weights/last.pt", &epoch(4));
    assert_eq!(steps("ultralytics", &memory), [numbered.clone(), both(Some(4))]);
    // The optimizer is removed at the end.
    memory.write_bytes("weights/last.pt", &epoch(-1));
    assert_eq!(steps("ultralytics", &memory), [numbered, both(None)]);
}

#[test]
fn lightning_names_without_a_step() {
    let mut memory = Memory::default();
    memory.write_bytes("checkpoints/last.ckpt", &global_step(40));
    assert_eq!(detected(&memory), "lightning");
    let last = |step| rewritten("checkpoints/last.ckpt", Some(step), &[]);
    assert_eq!(steps("lightning", &memory), [last(40)]);
    // Another save of the same state, with other bytes.
    let path = "checkpoints/epoch=1-step=40.ckpt";
    memory.write_bytes(path, &torch(&number("global_step", 40)));
    let numbered =
        |step: u64| (format!("checkpoints/epoch=1-step={step}.ckpt"), Some(step), false, Vec::new());
    assert_eq!(steps("lightning", &memory), [numbered(40)]);
    // One that is cut off is no copy to rely on.
    memory.write_bytes(path, &global_step(40)[..80]);
    assert_eq!(steps("lightning", &memory), [numbered(40), last(40)]);
    memory.write_bytes(path, &torch(&number("global_step", 40)));
    // The best is older than the last.
    memory.write_bytes("checkpoints/last.ckpt", &global_step(60));
    assert_eq!(steps("lightning", &memory), [numbered(40), last(60)]);

    // What a restore has moved aside, or is about to put in place.
    memory.write_bytes(".stepvault-restore/moved-aside/0001-last.ckpt", &global_step(80));
    memory.write_bytes("checkpoints/.stepvault/restore/1/data/last.ckpt", &global_step(80));
    assert_eq!(steps("lightning", &memory), [numbered(40), last(60)]);

    let mut named = Memory::default();
    let state = number("global_step", 7) + "Vpytorch-lightning_version\nV2.6\ns";
    named.write_bytes("model-v1.ckpt", &torch(&state));
    assert_eq!(detected(&named), "lightning");
    assert_eq!(steps("lightning", &named), [rewritten("model-v1.ckpt", Some(7), &[])]);

    let mut sharded = Memory::new(&["last.ckpt/__0_0.distcp", "last.ckpt/.metadata"]);
    assert_eq!(steps("lightning", &sharded), []);
    sharded.write_bytes("last.ckpt/meta.pt", &global_step(9));
    assert_eq!(steps("lightning", &sharded), [rewritten("last.ckpt", Some(9), &[])]);
    sharded.write("last.ckpt/__0_0.distcp = of the next save");
    assert_eq!(steps("lightning", &sharded), []);
}

#[test]
fn timm_keeps_the_last_epoch_when_it_is_not_among_the_best() {
    let mut memory = Memory::default();
    memory.write_bytes("last.pth.tar", &epoch(5));
    memory.write_bytes("model_best.pth.tar", &epoch(2));
    assert_eq!(detected(&memory), "timm");
    let last = |step| rewritten("last.pth.tar", Some(step), &["model_best.pth.tar"]);
    assert_eq!(steps("timm", &memory), [last(5)]);
    memory.write_bytes("checkpoint-5.pth.tar", &epoch(5));
    let numbered = ("checkpoint-5.pth.tar".to_owned(), Some(5), false, Vec::new());
    assert_eq!(steps("timm", &memory), std::slice::from_ref(&numbered));
    memory.write_bytes("last.pth.tar", &epoch(6));
    assert_eq!(steps("timm", &memory), [numbered, last(6)]);
}

#[test]
fn fairseq_with_nothing_but_the_last() {
    let state = |updates: i64| {
        let updates = number("num_updates", updates);
        torch(&format!("Voptimizer_history\n(l(d{}a(d{updates}as", number("num_updates", 1)))
    };
    let mut memory = Memory::default();
    memory.write_bytes("checkpoint_last.pt", &state(500));
    memory.write_bytes("checkpoint_best.pt", &state(400));
    assert_eq!(detected(&memory), "fairseq");
    let last = rewritten("checkpoint_last.pt", Some(500), &["checkpoint_best.pt"]);
    assert_eq!(steps("fairseq", &memory), [last]);
    memory.write_bytes("checkpoint_1_500.pt", &state(500));
    let numbered = ("checkpoint_1_500.pt".to_owned(), Some(500), false, Vec::new());
    assert_eq!(steps("fairseq", &memory), [numbered]);

    let mut shards = Memory::default();
    for rank in 0..2 {
        shards.write_bytes(&format!("checkpoint_last-shard{rank}.pt"), &state(500));
        shards.write_bytes(&format!("checkpoint_best-shard{rank}.pt"), &state(400));
    }
    let others = ["checkpoint_last-shard1.pt", "checkpoint_best-shard0.pt", "checkpoint_best-shard1.pt"];
    let both = rewritten("checkpoint_last-shard0.pt", Some(500), &others);
    assert_eq!(steps("fairseq", &shards), [both]);
}

#[test]
fn keras_writes_its_metadata_last() {
    let weights = sample("model.weights.h5");
    let mut memory = Memory::default();
    memory.write_bytes("backup/latest.weights.h5", &weights);
    assert_eq!(steps("keras", &memory), []);
    memory.write(r#"backup/training_metadata.json = {"epoch": 3, "batch": 0}"#);
    assert_eq!(detected(&memory), "keras");
    let backup = |step| rewritten("backup/latest.weights.h5", step, &["backup/training_metadata.json"]);
    assert_eq!(steps("keras", &memory), [backup(Some(3))]);
    // Another save has begun.
    memory.write_bytes("backup/_latest.weights.h5", &weights);
    memory.write_bytes("backup/latest.weights.h5", &weights);
    assert_eq!(steps("keras", &memory), []);
    // By batches, the epoch alone tells no step from the next.
    memory.write(r#"backup/training_metadata.json = {"epoch": 3, "batch": 200}"#);
    assert_eq!(steps("keras", &memory), [backup(None)]);
}

#[test]
fn one_file_of_an_unknown_trainer() {
    let mut memory = Memory::default();
    memory.write_bytes("checkpoint.pt", &torch(&number("step", 12)));
    memory.write_bytes("best.pt", &torch(&number("step", 10)));
    memory.write_bytes("model.pt", &torch(""));
    memory.write("train.log");
    assert_eq!(detected(&memory), "generic");
    // The others are created before it.
    let one = |step| rewritten("checkpoint.pt", step, &["best.pt", "checkpoint.pt"]);
    assert_eq!(steps("generic", &memory), [one(Some(12))]);
    let found = look("generic", &memory);
    assert_eq!(found.steps[0].members, ["model.pt", "best.pt", "checkpoint.pt"]);
    assert_eq!(found.steps[0].quiet_rule(), QuietRule::Briefly);
    // Counted anew in each epoch, perhaps.
    memory.write_bytes("checkpoint.pt", &torch(&(number("step", 12) + &number("epoch", 2))));
    assert_eq!(steps("generic", &memory), [one(None)]);
}

#[test]
fn a_file_without_a_number_beside_numbered_steps_is_a_step_unless_it_is_a_copy() {
    let numbered = |step: u64| (format!("ckpt_step_{step}.pt"), Some(step), false, Vec::new());
    let mut memory = Memory::default();
    memory.write_bytes("latest.pt", &torch(""));
    memory.write_bytes("vocabulary.bin", b"words");
    memory.write_bytes("ckpt_step_20.pt", &torch(&number("step", 20)));
    let with_latest = |step: u64| {
        let path = format!("ckpt_step_{step}.pt");
        (path.clone(), Some(step), false, vec![path])
    };
    assert_eq!(steps("generic", &memory), [with_latest(20)], "written just before");
    assert_eq!(look("generic", &memory).copies, Vec::<String>::new());
    // The same bytes, then the same number.
    memory.write_bytes("latest.pt", &torch(&number("step", 20)));
    assert_eq!(steps("generic", &memory), [numbered(20)]);
    assert_eq!(look("generic", &memory).copies, ["latest.pt"]);
    memory.write_bytes("latest.pt", &torch(&(number("loss", 3) + &number("step", 20))));
    assert_eq!(steps("generic", &memory), [with_latest(20)]);
    // A later state has the files of the newest step too.
    let latest = |step| rewritten("latest.pt", step, &["latest.pt"]);
    memory.write_bytes("latest.pt", &torch(&number("step", 21)));
    assert_eq!(steps("generic", &memory), [numbered(20), latest(Some(21))]);
    memory.write_bytes("latest.pt", &torch(""));
    assert_eq!(steps("generic", &memory), [numbered(20), latest(None)]);
    memory.write_bytes("ckpt_step_30.pt", &torch(""));
    assert_eq!(steps("generic", &memory), [numbered(20), numbered(30)], "a copy");
    memory.write_bytes("latest.pt", &torch(&number("loss", 1)));
    memory.write_bytes("ckpt_step_30.pt", &torch(""));
    assert_eq!(steps("generic", &memory), [numbered(20), with_latest(30)]);
    memory.write_bytes("best.pt", &torch(&number("loss", 2)));
    let found = look("generic", &memory);
    assert_eq!(found.steps[1].members, ["latest.pt", "best.pt", "ckpt_step_30.pt"]);
}

#[test]
fn a_directory_that_is_swapped_by_rename_is_a_step_each_time() {
    let mut memory = Memory::new(&["latest/model.pt", "latest/optimizer.pt", "latest/config.json"]);
    assert_eq!(steps("generic", &memory), [rewritten("latest", None, &[])]);
    memory.write("step_5/model.pt");
    memory.write("step_5/optimizer.pt");
    memory.write("step_5/config.json");
    assert_eq!(look("generic", &memory).copies, ["latest"], "the same contents");
    memory.write("latest/optimizer.pt = of the next step");
    let latest = rewritten("latest", None, &["latest"]);
    assert_eq!(steps("generic", &memory)[1], latest);
    assert_eq!(look("generic", &memory).steps[1].members, ["step_5", "latest"]);
}

#[test]
fn a_distributed_checkpoint_that_is_saved_to_one_id_is_a_step_each_time() {
    let memory = Memory::new(&["ckpt/__0_0.distcp", "ckpt/.metadata"]);
    assert_eq!(detected(&memory), "dcp");
    assert_eq!(steps("dcp", &memory), [rewritten("ckpt", None, &[])]);
}

//! Trainers on JAX.

use super::{complete, killed_after_each_write, look};
use crate::directory::memory::Memory;

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
    assert_eq!(found.steps[1].reasons(), ["it contains no files yet"]);
    // JAX's own rule is less careful.
    assert_eq!(complete("openpi-jax", &empty), ["5000"]);
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
    let writes = ["run/step-2/model/weight/.zarray", "run/step-2/model/weight/0", second.as_str()];
    killed_after_each_write("levanter", &before, &writes, "run/step-2", &[]);
}

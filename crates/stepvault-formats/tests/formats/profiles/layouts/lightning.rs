//! Lightning, and what is built on it.

use super::{complete, killed_after_each_write, look};
use crate::directory::memory::Memory;

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
    killed_after_each_write("lightning", &before, &writes, "checkpoints/epoch=0-step=20.ckpt", &[]);
}

#[test]
fn lightning_moved_from_another_filesystem() {
    let mut memory = Memory::new(&["checkpoints/epoch=0-step=10.ckpt", "checkpoints/epoch=0-step=20.ckpt ="]);
    assert_eq!(complete("lightning", &memory), ["checkpoints/epoch=0-step=10.ckpt"]);
    memory.write("checkpoints/last.ckpt = of another step");
    let found = look("lightning", &memory);
    assert_eq!(found.steps[1].reasons(), ["epoch=0-step=20.ckpt is empty (0 bytes)"]);
    // With its own bytes it is a step; its number is inside.
    assert_eq!((found.steps[2].path.as_str(), found.steps[2].step), ("checkpoints/last.ckpt", None));
}

#[test]
fn nemo() {
    let before =
        ["checkpoints/gpt--step=10-last/weights/.metadata", "checkpoints/gpt--step=10-last/context/io.json"];
    let writes = [
        "checkpoints/gpt--step=20-last-unfinished =",
        "checkpoints/gpt--step=20-last/weights/__0_0.distcp",
        "checkpoints/gpt--step=20-last/weights/.metadata",
        "checkpoints/gpt--step=20-last/context/io.json",
        "- checkpoints/gpt--step=20-last-unfinished",
    ];
    killed_after_each_write("nemo", &before, &writes, "checkpoints/gpt--step=20-last", &[]);
}

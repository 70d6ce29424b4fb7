//! A trainer that deletes its own old steps while they are taken over.

use std::collections::BTreeMap;
use std::time::Duration;

use stepvault_core::config::Completion;

use crate::harness::Node;
use crate::support::{files_below, write_files};

const STEPS: u64 = 30;
const KEPT: usize = 2;

/// As Orbax with `max_to_keep=2`, faster than anybody can follow: what reaches the remote is whole, the last steps reach
/// it, and nothing that the trainer deleted meanwhile harms the others.
#[tokio::test]
async fn whatever_is_taken_from_a_trainer_that_rotates_is_whole() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Auto(Duration::from_secs(1));
    options.agent.poll_interval = Duration::from_millis(50);
    let service = node.start(options);
    let mut saved = BTreeMap::new();
    let mut kept = Vec::new();
    for step in 1..=STEPS {
        let temporary = node.outputs().join(format!("{step}.orbax-checkpoint-tmp"));
        let files = [("state/_sharding", 0), ("state/_METADATA", 0), ("state/d/data", 40_000)];
        write_files(&temporary, &files, 0);
        for name in ["_sharding", "_METADATA"] {
            std::fs::write(temporary.join("state").join(name), format!("{{\"step\": {step}}}")).unwrap();
        }
        std::fs::write(temporary.join("state/d/data"), format!("{step:08}").repeat(5000)).unwrap();
        let path = node.outputs().join(step.to_string());
        std::fs::rename(temporary, &path).unwrap();
        saved.insert(step, files_below(&path));
        kept.push(path);
        if kept.len() > KEPT {
            let oldest = kept.remove(0);
            // The data first: what is left of it for a moment looks whole by its names.
            std::fs::remove_file(oldest.join("state/d/data")).unwrap();
            std::fs::remove_dir_all(oldest).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for step in [STEPS - 1, STEPS] {
        node.until_durable("disk", step).await;
    }
    let report = service.stop();
    assert!(report.is_durable() && report.sealed.total >= 2, "{report:?}");
    for sealed in &report.sealed.latest {
        assert_eq!(sealed.id.attempt.number(), 1, "{sealed:?}");
        let step = sealed.id.step.number();
        let copy = node.on_disk(&format!("{step:012}.a1/{step}"));
        assert_eq!(files_below(&copy), saved[&step], "{step}");
    }
}

/// Writes a step as Hugging Face's Trainer does, its state last.
pub(crate) fn write_trainer_step(node: &Node, step: u64) -> std::path::PathBuf {
    let path = node.outputs().join(format!("checkpoint-{step}"));
    std::fs::create_dir_all(&path).unwrap();
    let header = br#"{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let mut weights = u64::try_from(header.len()).unwrap().to_le_bytes().to_vec();
    weights.extend_from_slice(header);
    weights.extend_from_slice(&step.to_le_bytes()[..4]);
    std::fs::write(path.join("model.safetensors"), weights).unwrap();
    std::fs::write(path.join("trainer_state.json"), format!("{{\"global_step\": {step}}}")).unwrap();
    path
}

/// A trainer that saves and deletes faster than the quiet time would leave nothing to be sealed.
#[tokio::test]
async fn a_step_that_its_formats_prove_whole_need_not_be_quiet_for_long() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Auto(Duration::from_hours(1));
    let service = node.start(options);
    write_trainer_step(&node, 10);
    // Nothing proves yet that its save is over.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(node.recorder.lines_with("sealed: ").is_empty());
    // The trainer goes on to a later step, which has the same files.
    write_trainer_step(&node, 20);
    node.until_durable("disk", 10).await;
    node.until_durable("disk", 20).await;
    // One file is cut off: the next one has to be quiet for as long as any other.
    let torn = write_trainer_step(&node, 30);
    let weights = std::fs::read(torn.join("model.safetensors")).unwrap();
    std::fs::write(torn.join("model.safetensors"), &weights[..weights.len() - 1]).unwrap();
    // And one has files of an unknown format.
    let unknown = write_trainer_step(&node, 40);
    std::fs::write(unknown.join("optimizer.bin"), vec![7; 100_000]).unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let report = service.stop();
    assert_eq!(report.sealed.total, 2, "{report:?}");
}

#[tokio::test]
async fn a_trainer_that_deletes_its_steps_before_they_are_sealed_is_warned_of() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Quiet(Duration::from_hours(1));
    options.agent.poll_interval = Duration::from_millis(50);
    let service = node.start(options);
    let about = "the trainer deletes its steps before they are sealed";
    for step in 1..=2 {
        assert!(node.recorder.lines_with(about).is_empty());
        let path = node.save_small(step, 0);
        tokio::time::sleep(Duration::from_millis(2500)).await;
        std::fs::remove_dir_all(path).unwrap();
    }
    node.until_heard("2 vanished before they had been unchanged for 3600 s").await;
    service.stop();
}

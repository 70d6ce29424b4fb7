//! Steps that their trainer deletes while their quiet time passes.

use std::path::PathBuf;
use std::time::Duration;

use stepvault_agent::AgentOptions;
use stepvault_core::config::{Completion, LinkPolicy};

use crate::harness::Node;
use crate::rotation::write_trainer_step;

async fn quiet_options(node: &Node, quiet: Duration) -> AgentOptions {
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Auto(quiet);
    options
}

/// The early links of the vault.
fn staging(node: &Node) -> Vec<PathBuf> {
    let staging = std::fs::read_dir(node.vault_directory().join("staging"));
    staging.map_or(Vec::new(), |entries| entries.map(|entry| entry.unwrap().path()).collect())
}

#[tokio::test]
async fn every_whole_step_of_a_trainer_that_keeps_two_is_sealed() {
    let node = Node::new();
    let service = node.start(quiet_options(&node, Duration::from_mins(1)).await);
    for step in 1..=8 {
        write_trainer_step(&node, step * 10);
        if step > 2 {
            std::fs::remove_dir_all(node.outputs().join(format!("checkpoint-{}", step * 10 - 20))).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    for step in 1..=8 {
        node.until_durable("disk", step * 10).await;
    }
    let kept = node.recorder.lines_with("it is whole, and is sealed from links in the vault");
    assert!(!kept.is_empty());
    assert!(node.recorder.lines_with("the trainer deletes its steps before they are sealed").is_empty());
    let report = service.stop();
    assert_eq!((report.sealed.total, report.skipped.total), (8, 0), "{report:?}");
    assert_eq!(staging(&node), Vec::<PathBuf>::new());
    let step = node.on_disk("000000000010.a1/checkpoint-10/trainer_state.json");
    assert_eq!(std::fs::read_to_string(step).unwrap(), "{\"global_step\": 10}");
}

#[tokio::test]
async fn a_torn_step_is_not_sealed_from_its_links() {
    let node = Node::new();
    let service = node.start(quiet_options(&node, Duration::from_mins(1)).await);
    let torn = write_trainer_step(&node, 10);
    let weights = torn.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &whole[..whole.len() - 1]).unwrap();
    // A later save makes sure that this one is over: later by any clock of a filesystem.
    tokio::time::sleep(Duration::from_millis(50)).await;
    write_trainer_step(&node, 20);
    node.until("the links", || staging(&node).len() == 2).await;
    std::fs::remove_dir_all(torn).unwrap();
    write_trainer_step(&node, 30);
    node.until_durable("disk", 20).await;
    node.until_durable("disk", 30).await;
    assert_eq!(staging(&node), Vec::<PathBuf>::new());
    let report = service.stop();
    assert_eq!((report.sealed.total, report.skipped.total), (2, 1), "{report:?}");
    let reason = &report.skipped.latest[0].reason;
    assert!(reason.starts_with("it vanished before it was sealed ("), "{reason}");
    assert!(reason.contains("model.safetensors"), "{reason}");
}

/// What a trainer writes through a link is not what was judged.
#[tokio::test]
async fn a_step_that_is_rewritten_in_place_and_deleted_is_not_sealed() {
    let node = Node::new();
    let service = node.start(quiet_options(&node, Duration::from_mins(1)).await);
    let step = write_trainer_step(&node, 10);
    write_trainer_step(&node, 20);
    node.until("the links", || staging(&node).len() == 2).await;
    let weights = step.join("model.safetensors");
    let content = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, content).unwrap();
    std::fs::remove_dir_all(step).unwrap();
    write_trainer_step(&node, 30);
    node.until_durable("disk", 20).await;
    node.until_durable("disk", 30).await;
    let report = service.stop();
    assert_eq!((report.sealed.total, report.skipped.total), (2, 1), "{report:?}");
    assert_eq!(staging(&node), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn nothing_is_linked_that_must_be_copied_or_while_space_is_low() {
    for low in [false, true] {
        let node = Node::new();
        let mut options = quiet_options(&node, Duration::from_mins(1)).await;
        if low {
            options.local.limits.free_space_low_bytes = Some(u64::MAX);
        } else {
            options.local.links = LinkPolicy::Copy;
        }
        let service = node.start(options);
        let step = write_trainer_step(&node, 10);
        write_trainer_step(&node, 20);
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(staging(&node), Vec::<PathBuf>::new());
        std::fs::remove_dir_all(step).unwrap();
        write_trainer_step(&node, 30);
        node.until_durable("disk", 20).await;
        let report = service.stop();
        assert_eq!(report.skipped.total, 1, "{report:?}");
    }
}

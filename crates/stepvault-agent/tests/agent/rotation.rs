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
    options.runs[0].completion = Completion::Auto(Duration::from_secs(1));
    options.poll_interval = Duration::from_millis(50);
    let service = node.start(options);
    let mut saved = BTreeMap::new();
    let mut kept = Vec::new();
    for step in 1..=STEPS {
        let temporary = node.outputs().join(format!("{step}.orbax-checkpoint-tmp"));
        let files = [
            ("state/_sharding", 0),
            ("state/_METADATA", 0),
            ("state/d/data", 40_000),
        ];
        write_files(&temporary, &files, 0);
        for name in ["_sharding", "_METADATA"] {
            std::fs::write(
                temporary.join("state").join(name),
                format!("{{\"step\": {step}}}"),
            )
            .unwrap();
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

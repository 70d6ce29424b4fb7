//! Steps that the trainer does not survive, and histories of starts on remotes.

use std::collections::BTreeMap;

use stepvault_core::ids::{NodeName, Step};
use stepvault_core::starts::{Start, StartedProgram};
use stepvault_core::timestamp::Timestamp;
use stepvault_engine::node_records::{read_starts, write_starts};
use stepvault_engine::restore::{plan, restore};

use crate::harness::{Rig, id};

const FILES: &[(&str, usize)] = &[("model.bin", 4000)];
const WHY: &str = "restored 3 times, and the trainer crashed within 5 min each time (exit 1, exit 1, exit 1)";

/// Steps 100, 200 and 300 on a directory remote.
async fn rig() -> Rig {
    let rig = Rig::with_directory().await;
    for step in [100, 200, 300] {
        let source = rig.write_step(step, FILES, step, i64::try_from(step).unwrap());
        rig.push_durably(&source).await;
    }
    rig
}

fn skipped(skipped: &[stepvault_engine::restore::SkippedStep]) -> Vec<(u64, &str)> {
    skipped.iter().map(|step| (step.id.step.number(), step.reasons[0].as_str())).collect()
}

#[tokio::test]
async fn a_demoted_step_is_skipped_like_a_damaged_one_and_named() {
    let rig = rig().await;
    let mut request = rig.restore_request();
    request.demoted = BTreeMap::from([(id(1, 300), WHY.to_owned())]);
    let planned = plan(&rig.context(), &request).await.unwrap();
    assert_eq!(planned.id, id(1, 200));
    assert_eq!(skipped(&planned.skipped), [(300, WHY)]);
    let report = restore(&rig.context(), &request).await.unwrap();
    assert_eq!(report.plan.id, id(1, 200));
    assert_eq!(skipped(&report.plan.skipped), [(300, WHY)]);
    request.wanted.step = Some(Step::new(300).unwrap());
    let asked_for = restore(&rig.context(), &request).await.unwrap().plan;
    assert_eq!((asked_for.id, asked_for.skipped.len()), (id(1, 300), 0));
}

#[tokio::test]
async fn when_every_step_is_demoted_the_newest_valid_one_is_taken() {
    let mut rig = rig().await;
    rig.lose_node();
    let mut request = rig.restore_request();
    request.demoted = [100, 200, 300].map(|step| (id(1, step), WHY.to_owned())).into();
    let planned = plan(&rig.context(), &request).await.unwrap();
    assert_eq!(planned.id, id(1, 300));
    assert_eq!(skipped(&planned.skipped), [(200, WHY), (100, WHY)]);
    // And the next one when that is damaged.
    std::fs::write(rig.remote_root().join("grpo/checkpoints/000000000300.a1/step_300/model.bin"), "other")
        .unwrap();
    let planned = restore(&rig.context(), &request).await.unwrap().plan;
    assert_eq!(planned.id, id(1, 200));
    assert_eq!(planned.skipped.len(), 2);
    assert_eq!((planned.skipped[0].id, planned.skipped[1].id), (id(1, 100), id(1, 300)));
}

fn start(name: &str, node: &NodeName) -> Start {
    Start {
        id: name.to_owned(),
        who: StartedProgram::Trainer,
        node: node.clone(),
        started_at: Timestamp::from_seconds(5),
        launch: None,
        restored: None,
        process: None,
        trainer: None,
        end: None,
    }
}

#[tokio::test]
async fn histories_are_kept_for_each_node_and_deleted_by_nobody() {
    let rig = Rig::with_directory().await;
    let nodes = ["node-0", "node-1"].map(|name| NodeName::new(name).unwrap());
    let early = [start("early", &nodes[0])];
    assert!(write_starts(&rig.remotes, &nodes[0], &early).await.is_empty());
    assert!(read_starts(&rig.remotes).await.0.is_empty(), "no step is there yet");
    rig.push_durably(&rig.write_step(100, FILES, 1, 100)).await;
    for (number, node) in nodes.iter().enumerate() {
        for length in 1..=2 {
            let starts: Vec<Start> =
                (0..length).map(|index| start(&format!("{number} {index}"), node)).collect();
            assert!(write_starts(&rig.remotes, node, &starts).await.is_empty());
        }
    }
    for _ in 0..2 {
        let report = rig.gc_now().await;
        assert_eq!((report.marked.len(), report.removed.len()), (0, 0));
    }
    let (starts, faults) = read_starts(&rig.remotes).await;
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(starts.len(), 4);
    let record = rig.remote_root().join("grpo/checkpoints/.stepvault/starts/node-1.json");
    std::fs::write(&record, "{\"format\":1}").unwrap();
    let (starts, faults) = read_starts(&rig.remotes).await;
    assert_eq!(starts.len(), 2);
    assert!(faults[0].starts_with("cannot read the start history: "), "{faults:?}");
}

//! Two writers of one step on stores that write over what is there although they are told not to.

use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::ids::Attempt;
use stepvault_engine::push::CheckpointToSeal;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::{StrictS3, StrictS3Options};

use crate::harness::{Rig, asked, id, snapshot};

/// A file of two parts, and one of one.
const FILES: [(&str, usize); 2] = [("big", 12 << 20), ("small", 1000)];

/// A node is stopped before its last part; another saves the step under the same name, and it becomes durable. Then the
/// first one wakes up.
async fn a_late_writer_leaves_a_durable_step_alone(options: StrictS3Options) {
    let server = StrictS3::start_with(options);
    let (mut late, mut early) = (Rig::new(), Rig::new());
    late.add_patient_s3("ceph", &server, 30).await;
    early.add_s3("ceph", &server).await;
    let of_first = |rig: &Rig, seed: u64| {
        let source = rig.write_step(100, &FILES, seed, 1_000);
        CheckpointToSeal { attempt: Some(Attempt::FIRST), ..rig.request(&source) }
    };
    let stopped = FaultAction::Delay(Duration::from_secs(10));
    server.faults().inject("PUT", "partNumber=2", 1, stopped);
    let others = async {
        // The other file of the first one has arrived by then: it must not arrive after everything was removed.
        let has_small = || server.objects().with(|table| table.keys().any(|key| key.ends_with("/small")));
        while asked(server.faults(), "PUT", "partNumber=2") == 0 || !has_small() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The second one does not see what the first has begun.
        server.objects().with(|table| table.retain(|key, _| !key.contains("000000000100.a1")));
        early.push_as(of_first(&early, 2)).await.unwrap()
    };
    let (refused, report) = tokio::join!(late.push_as(of_first(&late, 1)), others);
    assert!(report.remotes[0].result.as_ref().unwrap().is_durable(), "{report:?}");
    let error = refused.unwrap().remotes.remove(0).result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let saved = snapshot(&early.outputs().join("step_100"));
    // From another node, which has nothing of its own.
    early.lose_node();
    let restored = early.restore().await.unwrap();
    assert_eq!(restored.plan.id, id(1, 100));
    assert_eq!(snapshot(&restored.plan.path), saved);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_conditions_at_completion() {
    a_late_writer_leaves_a_durable_step_alone(StrictS3Options {
        ignore_completion_conditions: true,
        ..StrictS3Options::default()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_all_conditions() {
    a_late_writer_leaves_a_durable_step_alone(StrictS3Options {
        ignore_create_only: true,
        ..StrictS3Options::default()
    })
    .await;
}

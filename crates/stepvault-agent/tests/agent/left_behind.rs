//! With little time the closest step is finished, and what is left is written down, said, and gone on with.

use std::time::{Duration, Instant};

use stepvault_agent::{StopReason, read_drain};
use stepvault_core::bandwidth::BandwidthLimit;
use stepvault_core::drain::DrainRecord;
use stepvault_core::ids::NodeName;
use stepvault_engine::node_records::drain_records;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id, run_name};
use crate::support::{committed, on_remote};

const PART_BYTES: usize = 8 << 20;
const PARTS: usize = 14;

fn left(record: &DrainRecord) -> Vec<(u64, &str)> {
    let steps = record.left.iter();
    steps.map(|left| (left.id.step.number(), left.remote.as_str())).collect()
}

#[tokio::test]
async fn the_closest_step_is_finished_and_the_rest_is_known_and_resumed() {
    let (node, server) = (Node::new(), StrictS3::start());
    let slow = node
        .s3_remote_with("s3", &server, 60, |settings| {
            settings.bandwidth_limit = BandwidthLimit::all_day(PART_BYTES as u64);
            settings.max_concurrent_requests = 2;
        })
        .await;
    node.save("step_2", &[("big.bin", PARTS * PART_BYTES)], 8);
    let service = node.start(node.options(vec![slow]));
    let stored = || {
        let pending = server.pending_uploads();
        pending.iter().map(|upload| upload.part_bytes).sum::<u64>()
    };
    node.until("parts of the newest step", || stored() >= 3 * PART_BYTES as u64).await;
    // Written before the other one, and seen after it. As long as there is time it waits.
    node.save_small(1, 500);
    node.until_heard("sealed: step 1 (attempt 1)").await;
    let deadline = Instant::now() + Duration::from_secs(8);
    service.ask_to_stop(StopReason::Signal, Some(deadline));
    let (report, ended_at) = service.ended_at();
    assert!(ended_at < deadline, "{:?} late", ended_at - deadline);
    let report = report.unwrap();
    let plain = node.s3_remote("s3", &server, 10).await;
    assert_eq!(committed(&plain).await, [id(1, 1)]);
    assert_eq!(report.left.not_durable.len(), 1, "{report:?}");
    let missing = report.left.not_durable[0].missing_bytes;
    assert!(missing > 0 && missing <= ((PARTS - 3) * PART_BYTES) as u64, "{missing}");
    let announced = node.recorder.lines_with("draining after a signal");
    assert_eq!(announced.len(), 1, "{announced:?}");
    assert!(
        announced[0].contains("step 1 (attempt 1) of grpo/checkpoints (1.3 KiB missing) will finish"),
        "{announced:?}"
    );

    let noted = read_drain(&node.vault(), &run_name()).unwrap().unwrap();
    assert_eq!(left(&noted), [(2, "s3")]);
    assert_eq!((noted.reason.as_str(), noted.left[0].missing_bytes), ("a signal", missing));
    let remote = on_remote(&plain);
    assert_eq!(drain_records(&remote).await.unwrap(), [noted]);

    // Another machine in this one's place learns of it from the store.
    let other = Node::new();
    let service = other.start(other.options(vec![plain.clone()]));
    other.until_heard("only that node's vault holds the missing data").await;
    service.stop();

    // The node itself says it, and goes on with the parts that are there.
    let report = node.once(node.options(vec![plain.clone()]));
    assert!(report.is_durable(), "{report:?}");
    assert_eq!(
        node.recorder
            .lines_with("left step 2 (attempt 1) with")
            .iter()
            .filter(|line| line.ends_with("uploading the missing data now"))
            .count(),
        1
    );
    assert!(!node.recorder.lines_with("reused on s3").is_empty());
    assert_eq!(committed(&plain).await, [id(1, 1), id(1, 2)]);

    // Nothing is missed any more, and nothing says so.
    let third = Node::new();
    let service = third.start(third.options(vec![plain.clone()]));
    third.save_small(3, 5);
    third.until_durable("s3", 3).await;
    service.stop();
    assert_eq!(third.recorder.lines_with("the drain of"), Vec::<String>::new());
}

#[tokio::test]
async fn each_remote_has_the_word_on_all_of_them() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remotes = node.disk_and_s3(&server, 60).await;
    server.faults().inject("PUT", "model.safetensors", u64::MAX, FaultAction::Hang);
    let service = node.start(node.options(remotes.clone()));
    node.save_small(7, 5);
    node.until_durable("disk", 7).await;
    let deadline = Instant::now() + Duration::from_secs(3);
    service.ask_to_stop(StopReason::Notice("a test".to_owned()), Some(deadline));
    let report = service.ended().unwrap();
    assert!(!report.is_durable());
    for remote in &remotes {
        let remote = on_remote(remote);
        let records = drain_records(&remote).await.unwrap();
        assert_eq!(left(&records[0]), [(7, "s3")], "{}", remote.name());
        assert_eq!(records[0].node, NodeName::new("node-0").unwrap());
    }
}

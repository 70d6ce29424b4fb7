//! `--once`: what is there goes out, and the service ends.

use std::time::Duration;

use stepvault_core::config::Completion;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id};
use crate::support::{committed, fail_all, sealed};

#[tokio::test]
async fn everything_there_goes_out_and_a_second_time_nothing_does() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remotes = node.disk_and_s3(&server, 5).await;
    let mut options = node.options(remotes.clone());
    options.runs[0].complete = Completion::Quiet(Duration::from_secs(1));
    for (step, age) in [(100, 300), (200, 200), (300, 100)] {
        node.save_small(step, age);
    }
    let report = node.once(options.clone());
    assert_eq!((report.sealed.total, report.uploaded.total), (3, 6));
    assert!(report.is_durable() && report.skipped.total == 0);
    for remote in &remotes {
        assert_eq!(committed(remote).await, [id(1, 100), id(1, 200), id(1, 300)]);
    }

    server.faults().clear_requests();
    let again = node.once(options.clone());
    assert_eq!((again.sealed.total, again.uploaded.total, again.skipped.total), (0, 0, 0), "{again:?}");
    assert!(again.is_durable());

    // A new node over the same directory, with nothing but the remotes to know from.
    std::fs::remove_dir_all(node.vault_directory()).unwrap();
    let fresh = node.once(options);
    assert_eq!((fresh.sealed.total, fresh.uploaded.total, fresh.skipped.total), (0, 0, 0), "{fresh:?}");
    assert_eq!(sealed(&node), []);
    let writes = server.faults().requests().into_iter().filter(|request| {
        let data = !request.path.contains(".stepvault");
        data && request.method != "GET" && request.method != "HEAD"
    });
    assert_eq!(writes.count(), 0);
}

#[tokio::test]
async fn a_remote_that_cannot_be_reached_is_given_up_and_named() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remotes = node.disk_and_s3(&server, 2).await;
    fail_all(&server, &FaultAction::refuse(503, "SlowDown"));
    node.save_small(100, 5);
    node.save_small(200, 4);
    let report = node.once(node.options(remotes));
    assert_eq!((report.sealed.total, report.uploaded.total), (2, 2));
    assert!(!report.is_durable());
    let missing: Vec<_> = report
        .left
        .not_durable
        .iter()
        .map(|step| (step.id, step.remote.as_str(), step.required, step.failed))
        .collect();
    assert_eq!(missing, [(id(1, 100), "s3", true, false), (id(1, 200), "s3", true, false)]);
    assert!(
        report.left.not_durable.iter().all(|step| step.reason.contains("asks to slow down")),
        "{:?}",
        report.left.not_durable
    );

    // It comes back, and the next time finds what waits in the vault.
    server.faults().clear();
    let remotes = node.disk_and_s3(&server, 5).await;
    let report = node.once(node.options(remotes));
    assert_eq!((report.sealed.total, report.uploaded.total), (0, 2));
    assert!(report.is_durable());
}

#[tokio::test]
async fn a_report_is_one_plain_document() {
    let node = Node::new();
    node.save_small(100, 5);
    let report = node.once(node.disk_options().await);
    let document = serde_json::to_value(&report).unwrap();
    assert_eq!(
        document["sealed"]["latest"][0],
        serde_json::json!({"run": "grpo/checkpoints", "attempt": 1, "step": 100})
    );
    assert_eq!(document["uploaded"]["latest"][0]["remote"], "disk");
    assert_eq!(document["not_durable"], serde_json::json!([]));
}

//! A remote in trouble: it holds up nobody else, and nothing is lost.

use std::time::{Duration, Instant};

use stepvault_agent::read_status_file;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id, run_name};
use crate::support::{committed, fail_all, keep_last};

#[tokio::test]
async fn while_one_remote_hangs_the_other_gets_every_step() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remotes = node.disk_and_s3(&server, 2).await;
    fail_all(&server, &FaultAction::Hang);
    let mut options = node.options(remotes);
    options.agent.drain_deadline = Duration::from_secs(1);
    let service = node.start(options);
    for step in 1..=3 {
        node.save_small(step, 10 - step);
        node.until_durable("disk", step).await;
    }
    node.until_heard("is not durable on s3").await;
    let report = service.stop();
    assert_eq!(report.uploaded.total, 3);
    assert_eq!(report.left.not_durable.len(), 3);
    assert!(report.left.not_durable.iter().all(|step| step.remote.as_str() == "s3" && !step.failed));
}

#[tokio::test]
async fn a_remote_that_comes_back_gets_what_waited_the_newest_first() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remotes = node.disk_and_s3(&server, 1).await;
    fail_all(&server, &FaultAction::refuse(503, "SlowDown"));
    let mut options = node.options(remotes.clone());
    options.upload.maximum_backlog_steps = 2;
    options.runs[0].keep_remote = keep_last(2);
    options.agent.retention_interval = Duration::from_mins(10);
    let service = node.start(options);
    for step in 1..=5 {
        node.save_small(step, 10 - step);
        node.until_durable("disk", step).await;
    }
    node.until_heard("skipped on s3: step 3 (attempt 1)").await;
    let state = read_status_file(&node.vault(), &run_name()).unwrap().unwrap();
    assert!(state.remotes.iter().any(|remote| remote.remote.as_str() == "s3"));
    server.faults().clear();
    node.until_durable("s3", 1).await;
    let report = service.stop();
    assert!(report.is_durable(), "{:?}", report.left.not_durable);
    let mut order = node.recorder.lines_with("durable on s3");
    order.retain(|line| line.starts_with("durable"));
    let expected: Vec<String> =
        [5, 4, 3, 2, 1].iter().map(|step| format!("durable on s3: step {step} (attempt 1)")).collect();
    assert_eq!(order, expected);
    let skipped = node.recorder.lines_with("skipped on s3: step 3");
    assert_eq!(skipped.len(), 1);
    assert!(
        skipped[0].contains(
            "steps wait for s3: this one is deferred because retention would remove it there (no rule keeps it)"
        ),
        "{}",
        skipped[0]
    );
}

/// A store that refuses too many requests is not sent the twenty of another probe when it comes back.
#[tokio::test]
async fn a_remote_that_was_out_is_recognised_and_not_probed_again() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remotes = vec![node.s3_remote("s3", &server, 1).await];
    let of = |key: &str| {
        let requests = server.faults().requests();
        requests.iter().filter(|request| request.path.contains(key)).count()
    };
    let service = node.start(node.options(remotes));
    node.save_small(1, 9);
    node.until_durable("s3", 1).await;
    let (probed, recognised) = (of("/probes/"), of("/vault.json"));
    assert!(probed > 0);
    fail_all(&server, &FaultAction::refuse(503, "SlowDown"));
    node.save_small(2, 8);
    node.until_heard("is not durable on s3").await;
    server.faults().clear();
    node.until_durable("s3", 2).await;
    service.stop();
    assert_eq!(of("/probes/"), probed);
    assert!(of("/vault.json") > recognised);
}

#[tokio::test]
async fn denied_is_tried_again_and_said_once() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remote = node.s3_remote("s3", &server, 2).await;
    server.faults().inject("PUT", "", u64::MAX, FaultAction::refuse(403, "AccessDenied"));
    let service = node.start(node.options(vec![remote.clone()]));
    node.save_small(1, 5);
    node.until_heard("is not durable on s3").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(node.recorder.lines_with("is not durable on s3").len(), 1);
    server.faults().clear();
    node.until_durable("s3", 1).await;
    assert!(service.stop().is_durable());
}

#[tokio::test]
async fn a_step_whose_sealed_files_were_changed_fails_alone_and_says_why() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remote = node.s3_remote("s3", &server, 1).await;
    fail_all(&server, &FaultAction::refuse(503, "SlowDown"));
    let mut options = node.options(vec![remote.clone()]);
    options.runs[0].watch = Some(node.outputs());
    let service = node.start(options);
    node.save_small(1, 9);
    node.save_small(2, 8);
    node.until_heard("sealed: step 2 (attempt 1)").await;
    let file =
        node.vault_directory().join("runs/grpo%2Fcheckpoints/steps/000000000001.a1/data/model.safetensors");
    node.until("the sealed file", || file.exists()).await;
    // A trainer that rewrites in place what it had finished, through the hard link that the vault holds.
    std::fs::write(&file, "other bytes").unwrap();
    server.faults().clear();
    node.until_durable("s3", 2).await;
    node.until_heard("step 1 (attempt 1) of grpo/checkpoints is not durable on s3").await;
    let report = service.stop();
    assert_eq!(committed(&remote).await, [id(1, 2)]);
    assert_eq!(report.left.not_durable.len(), 1, "{report:?}");
    let failed = &report.left.not_durable[0];
    assert!(failed.failed && failed.id == id(1, 1), "{failed:?}");
    let state = read_status_file(&node.vault(), &run_name()).unwrap().unwrap();
    assert_eq!(state.remotes[0].failed[0].id, id(1, 1));
    assert_eq!(state.remotes[0].failed[0].reason, failed.reason);
}

#[tokio::test]
async fn an_optional_remote_that_lacks_a_step_does_not_make_it_unsafe() {
    let (node, server) = (Node::new(), StrictS3::start());
    let mut optional = node.s3_remote("s3", &server, 1).await;
    let mut settings = (*optional.settings).clone();
    settings.required = false;
    optional.settings = std::sync::Arc::new(settings);
    server.faults().inject("PUT", "", u64::MAX, FaultAction::refuse(503, "SlowDown"));
    node.save_small(1, 5);
    let report = node.once(node.options(vec![node.directory_remote("disk").await, optional]));
    assert_eq!(report.left.not_durable.len(), 1);
    assert!(!report.left.not_durable[0].required && report.is_durable());
}

#[tokio::test]
async fn sealing_waits_for_a_silent_remote_once_and_not_for_long() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remotes = node.disk_and_s3(&server, 300).await;
    fail_all(&server, &FaultAction::Hang);
    let mut options = node.options(remotes);
    options.agent.drain_deadline = Duration::from_millis(500);
    let service = node.start(options);
    let begun = Instant::now();
    node.save_small(1, 5);
    node.until_durable("disk", 1).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let begun = Instant::now();
    node.save_small(2, 4);
    node.until_durable("disk", 2).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(service.stop().left.not_durable.len(), 2);
}

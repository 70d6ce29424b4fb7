//! Notices by fake metadata services on loopback, and by a file.

use std::time::{Duration, Instant};

use stepvault_agent::{AgentOptions, NoticeOptions, StopReason};
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::metadata::FakeMetadata;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id};
use crate::support::committed;

/// A notice as EC2 writes it, for a machine that goes in so many seconds.
fn interruption(seconds: i64) -> String {
    let now = jiff::Timestamp::now().as_second();
    let time = jiff::Timestamp::from_second(now + seconds).unwrap();
    format!("{{\"action\": \"terminate\", \"time\": \"{time}\"}}")
}

async fn with(node: &Node, notices: NoticeOptions) -> AgentOptions {
    let mut options = node.disk_options().await;
    options.notices = notices;
    options
}

fn ec2(service: &FakeMetadata) -> NoticeOptions {
    NoticeOptions { ec2_endpoint: Some(service.endpoint()), ..NoticeOptions::default() }
}

async fn until_asked(node: &Node, metadata: &FakeMetadata, path: &str) {
    let is_it = |request: &String| request.contains(path);
    node.until(path, || metadata.requests().iter().any(is_it)).await;
}

#[tokio::test]
async fn a_spot_notice_ends_the_service_before_its_time_and_a_last_save_is_taken() {
    let (node, metadata) = (Node::new(), FakeMetadata::ec2());
    let options = with(&node, ec2(&metadata)).await;
    let remote = options.remotes[0].clone();
    metadata.interrupt(interruption(8));
    let deadline = Instant::now() + Duration::from_secs(8);
    let service = node.start(options);
    until_asked(&node, &metadata, "instance-action").await;
    // The trainer has heard of it too.
    node.save_small(9, 1);
    let (report, ended_at) = service.ended_at();
    assert!(ended_at < deadline, "{:?} late", ended_at - deadline);
    assert!(report.unwrap().is_durable());
    assert_eq!(committed(&remote).await, [id(1, 9)]);
    assert_eq!(metadata.tokens_made(), 1);
}

#[tokio::test]
async fn a_token_that_is_void_is_replaced_and_the_notice_is_seen() {
    let (node, metadata) = (Node::new(), FakeMetadata::ec2());
    let service = node.start(with(&node, ec2(&metadata)).await);
    until_asked(&node, &metadata, "rebalance").await;
    metadata.expire_tokens();
    metadata.interrupt(interruption(30));
    node.until("a second token", || metadata.tokens_made() == 2).await;
    // Somebody who waits for the end: nothing is left to do.
    service.ask_to_stop(StopReason::Signal, None);
    assert!(service.ended().unwrap().is_durable());
}

#[tokio::test]
async fn a_machine_of_nobody_s_is_asked_once() {
    let (node, metadata) = (Node::new(), FakeMetadata::start());
    let notices = NoticeOptions { gce_endpoint: Some(metadata.endpoint()), ..ec2(&metadata) };
    let service = node.start(with(&node, notices).await);
    node.until("both questions", || metadata.requests().len() == 2).await;
    node.save_small(1, 5);
    node.until_durable("disk", 1).await;
    service.stop();
    let mut requests = metadata.requests();
    requests.sort();
    assert_eq!(requests, ["GET /computeMetadata/v1/instance/preempted", "PUT /latest/api/token"]);
    assert_eq!(node.recorder.lines_with("warning"), Vec::<String>::new());
}

#[tokio::test]
async fn silence_where_notices_are_expected_is_warned_of() {
    let (node, metadata) = (Node::new(), FakeMetadata::start());
    let notices = NoticeOptions { expected: true, gce_endpoint: Some(metadata.endpoint()), ..ec2(&metadata) };
    let service = node.start(with(&node, notices).await);
    node.until_heard("cannot detect spot notices: the EC2 metadata service refused a request").await;
    node.until_heard("cannot detect preemptions: cannot watch for preemptions").await;
    service.stop();
}

#[tokio::test]
async fn nothing_else_is_asked_because_a_service_says_so() {
    let (node, metadata, other) = (Node::new(), FakeMetadata::ec2(), FakeMetadata::ec2());
    other.interrupt(interruption(30));
    metadata.redirect_to(other.endpoint());
    let service = node.start(with(&node, ec2(&metadata)).await);
    node.until("the question", || !metadata.requests().is_empty()).await;
    node.save_small(1, 5);
    node.until_durable("disk", 1).await;
    service.stop();
    assert_eq!(other.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn a_recommendation_to_rebalance_is_warned_of_or_drains() {
    let (node, metadata) = (Node::new(), FakeMetadata::ec2());
    metadata.rebalance("{\"noticeTime\": \"2026-11-21T10:16:00Z\"}");
    let mut options = with(&node, ec2(&metadata)).await;
    let service = node.start(options.clone());
    node.until_heard("an EC2 rebalance recommendation (2026-11-21T10:16:00Z)").await;
    node.save_small(1, 5);
    node.until_durable("disk", 1).await;
    assert!(!service.has_ended());
    service.stop();

    options.notices.drains_on_rebalance = true;
    options.agent.drain_deadline = Duration::from_secs(2);
    assert!(node.start(options).ended().unwrap().is_durable());
}

#[tokio::test]
async fn a_preemption_is_learnt_of_while_the_question_hangs() {
    let (node, metadata, server) = (Node::new(), FakeMetadata::gce(), StrictS3::start());
    server.faults().inject("PUT", "model.safetensors", u64::MAX, FaultAction::Hang);
    let mut options = node.options(vec![node.s3_remote("s3", &server, 60).await]);
    options.notices.gce_endpoint = Some(metadata.endpoint());
    let service = node.start(options);
    node.save_small(1, 5);
    node.until_heard("sealed: step 1").await;
    node.until("the question that hangs", || {
        metadata
            .requests()
            .iter()
            .any(|request| request.ends_with("?wait_for_change=true&timeout_sec=60&last_etag=1a"))
    })
    .await;
    metadata.preempt();
    node.until_heard("draining after a Compute Engine preemption notice, uploads have 2").await;
    service.ask_to_stop(StopReason::Signal, Some(Instant::now() + Duration::from_secs(1)));
    assert!(!service.ended().unwrap().is_durable());
}

#[tokio::test]
async fn a_file_that_appears_drains_and_says_by_when() {
    let node = Node::new();
    let file = node.place.path().join("drain");
    let notices = NoticeOptions { drain_file: Some(file.clone()), ..NoticeOptions::default() };
    let options = with(&node, notices).await;
    // A leftover of another time.
    std::fs::write(&file, "1").unwrap();
    let service = node.start(options.clone());
    node.until_heard("existed before this start").await;
    node.save_small(1, 5);
    node.until_durable("disk", 1).await;
    assert!(!service.has_ended());
    std::fs::write(&file, "2\n").unwrap();
    assert!(service.ended().unwrap().is_durable());

    // What cannot be read is a notice all the same, with the configured time.
    std::fs::remove_file(&file).unwrap();
    let mut options = options;
    options.agent.drain_deadline = Duration::from_secs(2);
    let service = node.start(options);
    node.save_small(2, 5);
    node.until_durable("disk", 2).await;
    std::fs::write(&file, "as soon as possible").unwrap();
    assert!(service.ended().unwrap().is_durable());
    assert_eq!(node.recorder.lines_with("holds neither a future time nor a number of seconds").len(), 1);
}

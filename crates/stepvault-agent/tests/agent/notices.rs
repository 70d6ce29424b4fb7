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

fn azure(service: &FakeMetadata) -> NoticeOptions {
    NoticeOptions { azure_endpoint: Some(service.endpoint()), ..NoticeOptions::default() }
}

/// A time in the format of Azure's events, in so many seconds.
fn not_before(seconds: i64) -> String {
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
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
    assert_eq!(
        node.recorder.lines_with("received an EC2 spot notice (terminate): the machine goes").len(),
        1
    );
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
async fn a_preemption_by_azure_ends_the_service_before_its_time() {
    let (node, metadata) = (Node::new(), FakeMetadata::azure("gpu_0"));
    // Of another machine of the scale set, of another kind, and of this one.
    metadata.schedule("Preempt", &["gpu_1"], &not_before(2));
    metadata.schedule("Reboot", &["gpu_0"], &not_before(2));
    let service = node.start(with(&node, azure(&metadata)).await);
    until_asked(&node, &metadata, "scheduledevents").await;
    node.save_small(1, 5);
    node.until_durable("disk", 1).await;
    assert!(!service.has_ended());
    metadata.schedule("Preempt", &["gpu_0", "gpu_1"], &not_before(6));
    let deadline = Instant::now() + Duration::from_secs(6);
    node.until_heard("received an Azure preemption notice: the machine goes away in").await;
    // The trainer has heard of it too.
    node.save_small(9, 1);
    let (report, ended_at) = service.ended_at();
    assert!(ended_at < deadline, "{:?} late", ended_at - deadline);
    assert!(report.unwrap().is_durable());
    assert!(metadata.acknowledged().is_empty(), "it is not configured");
}

#[tokio::test]
async fn a_first_answer_of_azure_that_takes_long_blocks_nothing() {
    let (node, metadata) = (Node::new(), FakeMetadata::azure("gpu_0"));
    metadata.first_events_take(Duration::from_mins(2));
    let service = node.start(with(&node, azure(&metadata)).await);
    until_asked(&node, &metadata, "scheduledevents").await;
    node.save_small(1, 5);
    node.until_durable("disk", 1).await;
    service.stop();
    assert_eq!(node.recorder.lines_with("cannot detect"), Vec::<String>::new());
}

#[tokio::test]
async fn an_event_of_azure_is_acknowledged_after_the_drain_unless_something_is_left() {
    for is_left in [false, true] {
        let (node, metadata, server) = (Node::new(), FakeMetadata::azure("gpu_0"), StrictS3::start());
        let mut options = node.options(vec![node.s3_remote("s3", &server, 60).await]);
        options.notices = NoticeOptions { acknowledges: true, ..azure(&metadata) };
        if is_left {
            server.faults().inject("PUT", "model.safetensors", u64::MAX, FaultAction::Hang);
        }
        let service = node.start(options);
        node.save_small(1, 5);
        node.until_heard("sealed: step 1").await;
        let id = metadata.schedule("Terminate", &["gpu_0"], &not_before(300));
        node.until_heard("received an Azure termination notice").await;
        assert!(metadata.acknowledged().is_empty(), "the drain is not over");
        // The trainer has ended.
        service
            .ask_to_stop(StopReason::TrainerGone, is_left.then(|| Instant::now() + Duration::from_secs(1)));
        assert_eq!(service.ended().unwrap().is_durable(), !is_left);
        let acknowledged = if is_left { Vec::new() } else { vec![id] };
        assert_eq!(metadata.acknowledged(), acknowledged);
    }
}

#[tokio::test]
async fn an_event_of_azure_that_has_begun_leaves_the_configured_time() {
    let (node, metadata) = (Node::new(), FakeMetadata::azure("gpu_0"));
    metadata.schedule("Preempt", &["gpu_0"], "");
    let mut options = with(&node, azure(&metadata)).await;
    options.agent.drain_deadline = Duration::from_secs(2);
    node.save_small(1, 5);
    assert!(node.start(options).ended().unwrap().is_durable());
    assert_eq!(node.recorder.lines_with("it names no time, and agent.drain-deadline applies").len(), 1);
}

#[tokio::test]
async fn a_machine_of_nobody_s_is_asked_once() {
    let (node, metadata) = (Node::new(), FakeMetadata::start());
    let endpoint = || Some(metadata.endpoint());
    let notices = NoticeOptions { gce_endpoint: endpoint(), azure_endpoint: endpoint(), ..ec2(&metadata) };
    let service = node.start(with(&node, notices).await);
    node.until("all questions", || metadata.requests().len() == 3).await;
    node.save_small(1, 5);
    node.until_durable("disk", 1).await;
    service.stop();
    let mut requests = metadata.requests();
    requests.sort();
    assert_eq!(
        requests,
        [
            "GET /computeMetadata/v1/instance/preempted",
            "GET /metadata/instance/compute?api-version=2021-02-01",
            "PUT /latest/api/token"
        ]
    );
    assert_eq!(node.recorder.lines_with("warning"), Vec::<String>::new());
}

#[tokio::test]
async fn silence_where_notices_are_expected_is_warned_of() {
    let (node, metadata) = (Node::new(), FakeMetadata::start());
    let notices = NoticeOptions {
        expected: true,
        gce_endpoint: Some(metadata.endpoint()),
        azure_endpoint: Some(metadata.endpoint()),
        ..ec2(&metadata)
    };
    let service = node.start(with(&node, notices).await);
    node.until_heard("cannot detect spot notices: the EC2 metadata service refused a request").await;
    node.until_heard("cannot detect preemptions: cannot watch for preemptions").await;
    node.until_heard("cannot detect Azure's events: the Azure metadata service refused a request").await;
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
    node.until_heard("received a Compute Engine preemption notice: the machine goes away in 30 s").await;
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

//! Told to stop, it uploads what it can until the deadline, and says what is not durable.

use std::time::{Duration, Instant};

use stepvault_agent::control::DrainRequest;
use stepvault_core::config::Completion;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::network::Network;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id};
use crate::support::committed;

#[tokio::test]
async fn what_is_complete_by_then_goes_out_before_it_ends() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remote = node.s3_remote("s3", &server, 10).await;
    server.faults().inject("PUT", "model.safetensors", 2, FaultAction::Delay(Duration::from_millis(700)));
    node.save_small(1, 9);
    node.save_small(2, 8);
    let service = node.start(node.options(vec![remote.clone()]));
    node.until_heard("sealed: step 2 (attempt 1)").await;
    // The last look takes what no look has seen before.
    node.save_small(3, 1);
    let report = service.stop();
    assert!(report.is_durable(), "{:?}", report.left.not_durable);
    assert_eq!(committed(&remote).await, [id(1, 1), id(1, 2), id(1, 3)]);
}

#[tokio::test]
async fn the_deadline_holds_and_what_is_left_is_named() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remotes = node.disk_and_s3(&server, 60).await;
    server.faults().inject("PUT", "model.safetensors", u64::MAX, FaultAction::Delay(Duration::from_secs(30)));
    let mut options = node.options(remotes);
    options.agent.drain_deadline = Duration::from_secs(3);
    let service = node.start(options.clone());
    node.save_small(1, 5);
    node.until_durable("disk", 1).await;
    node.until_requested(&server, "model.safetensors").await;
    let begun = Instant::now();
    let report = service.stop();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(report.left.not_durable.len(), 1);
    let left = &report.left.not_durable[0];
    assert_eq!((left.id, left.remote.as_str(), left.failed), (id(1, 1), "s3", false));
    // The smaller file may be there or not.
    assert!((1000..=1300).contains(&left.missing_bytes), "{left:?}");
    assert_eq!(left.reason, "its upload was interrupted; the next start resumes it");
    server.faults().clear();
    let report = node.once(options);
    assert!(report.is_durable() && report.uploaded.total == 1);
}

#[tokio::test]
async fn over_a_slow_link_parts_are_whole_at_the_deadline() {
    const PART_BYTES: usize = 8 << 20;
    let (node, server) = (Node::new(), StrictS3::start());
    let address = server.endpoint().trim_start_matches("http://").parse().unwrap();
    let network = Network::to(address);
    let through = format!("http://{}", network.address());
    let slow = |settings: &mut RemoteSettings| {
        settings.endpoint = Some(through);
        settings.max_concurrent_requests = 16;
    };
    let remote = node.s3_remote_with("s3", &server, 60, slow).await;
    let mut options = node.options(vec![remote]);
    options.agent.drain_deadline = Duration::from_secs(12);
    let service = node.start(options);
    network.limit(Some(2 << 20), None);
    node.save("step_1", &[("model.safetensors", 16 * PART_BYTES)], 5);
    node.until_requested(&server, "model.safetensors").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let report = service.stop();
    // Of what the link carries in that time, 16 parts at once would finish none.
    assert_eq!(report.left.not_durable.len(), 1, "{report:?}");
    let missing = report.left.not_durable[0].missing_bytes;
    assert!(missing <= 15 * PART_BYTES as u64, "{missing}");
}

#[tokio::test]
async fn an_idle_service_ends_at_once() {
    let node = Node::new();
    let service = node.start(node.disk_options().await);
    node.until("the vault", || node.vault_directory().join("lock").exists()).await;
    let begun = Instant::now();
    assert!(service.stop().is_durable());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_save_that_ended_just_before_the_signal_is_sealed_when_it_is_quiet() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Quiet(Duration::from_secs(2));
    options.agent.drain_deadline = Duration::from_secs(20);
    let service = node.start(options);
    node.until("the vault", || node.vault_directory().join("lock").exists()).await;
    node.save_small(7, 0);
    let report = service.stop();
    assert!(report.is_durable(), "{report:?}");
    assert_eq!(report.uploaded.total, 1);
}

#[tokio::test]
async fn a_save_that_is_not_quiet_by_the_deadline_is_named_at_once_and_is_not_durable() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Quiet(Duration::from_hours(1));
    let service = node.start(options);
    node.until("the vault", || node.vault_directory().join("lock").exists()).await;
    node.save_small(7, 0);
    let begun = Instant::now();
    let report = service.stop();
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(!report.is_durable() && !report.is_safe_here());
    assert_eq!(report.left.unsealed.len(), 1, "{report:?}");
    let left = &report.left.unsealed[0];
    assert!(left.path.ends_with("step_7"), "{left:?}");
    assert!(left.reason.contains("must be unchanged for 3600 s"), "{left:?}");
}

#[tokio::test]
async fn a_client_that_says_that_the_trainer_has_ended_waits_for_no_quiet_time() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Quiet(Duration::from_hours(1));
    let (service, client) = node.start_controlled(options).await;
    node.save_small(7, 0);
    let request = DrainRequest { wait: true, trainer_ended: true, ..DrainRequest::default() };
    let answer = client.drain(&request, Duration::from_secs(30)).await.unwrap();
    assert_eq!((answer.ended, answer.durable), (true, Some(true)), "{answer:?}");
    assert_eq!(service.ended().unwrap().uploaded.total, 1);
}

#[tokio::test]
async fn a_single_round_after_the_trainers_end_waits_for_no_quiet_time() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Quiet(Duration::from_hours(1));
    options.lifecycle.trainer_ended = true;
    node.save_small(7, 0);
    let report = node.once(options);
    assert!(report.is_durable(), "{report:?}");
    assert_eq!(report.uploaded.total, 1);
}

//! Killed at any moment, it goes on where it was; and two never work on one vault.

use std::collections::BTreeMap;
use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_testkit::faults::{FaultAction, FaultRule};
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id};
use crate::support::{committed, files_below, text};

const PART_BYTES: usize = 8 << 20;

/// Bytes of parts by path and part number, over all times they were sent.
fn parts_sent(server: &StrictS3) -> BTreeMap<String, u64> {
    let mut parts = BTreeMap::new();
    for request in server.faults().requests() {
        let part_number = request.path.split(['?', '&']).find(|pair| pair.starts_with("partNumber="));
        if let (Some(part_number), false) = (part_number, request.path.contains(".stepvault")) {
            *parts.entry(part_number.to_owned()).or_default() += 1;
        }
    }
    parts
}

#[tokio::test]
async fn after_a_kill_in_the_middle_of_a_file_only_what_is_missing_is_sent_again() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remote = node.s3_remote("s3", &server, 30).await;
    // Three parts pass; the others hang until the kill.
    server.faults().add(FaultRule {
        method: Some("PUT".to_owned()),
        path_contains: "big.bin".to_owned(),
        skip: 3,
        times: u64::MAX,
        action: FaultAction::Hang,
    });
    let step = node.save("step_1", &[("big.bin", 6 * PART_BYTES), ("small.json", 50)], 5);
    let mut options = node.options(vec![remote.clone()]);
    options.agent.drain_deadline = Duration::from_secs(1);
    let service = node.start(options.clone());
    let stored = || server.pending_uploads().iter().map(|upload| upload.part_bytes).sum::<u64>();
    node.until("three parts to be stored", || stored() >= 3 * PART_BYTES as u64).await;
    // Acknowledged is journalled a moment later.
    tokio::time::sleep(Duration::from_millis(300)).await;
    service.kill();
    assert_eq!(committed(&remote).await, []);

    server.faults().clear();
    server.faults().clear_requests();
    let service = node.start(options);
    node.until_durable("s3", 1).await;
    let report = service.stop();
    assert_eq!((report.sealed.total, report.uploaded.total), (0, 1));
    assert_eq!(parts_sent(&server).len(), 3, "{:?}", parts_sent(&server));
    assert!(server.pending_uploads().is_empty());
    let stored =
        server.objects().body("bucket/prefix/grpo/checkpoints/000000000001.a1/step_1/big.bin").unwrap();
    assert_eq!(&stored[..], &std::fs::read(step.join("big.bin")).unwrap()[..]);
}

#[tokio::test]
async fn killed_over_and_over_at_any_moment_everything_becomes_durable_once() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    let mut sources = Vec::new();
    for step in 1..=6 {
        sources.push(node.save(
            &format!("step_{step}"),
            &[("model.bin", 3_000_000), ("a/b.json", 70)],
            100 - step,
        ));
        let service = node.start(node.options(vec![remote.clone()]));
        tokio::time::sleep(Duration::from_millis(17 * step * step)).await;
        service.kill();
    }
    let service = node.start(node.options(vec![remote.clone()]));
    node.until_durable("disk", 6).await;
    let report = service.stop();
    assert!(report.is_durable() && report.skipped.total == 0, "{report:?}");
    let all: Vec<_> = (1..=6).map(|step| id(1, step)).collect();
    assert_eq!(committed(&remote).await, all);
    for (step, source) in (1..).zip(sources) {
        let copy = node.on_disk(&format!("{step:012}.a1/step_{step}"));
        assert_eq!(files_below(&copy), files_below(&source));
    }
}

#[tokio::test]
async fn the_second_service_on_a_vault_is_refused() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    let service = node.start(node.options(vec![remote.clone()]));
    node.until("the vault", || node.vault_directory().join("lock").exists()).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let error = node.start(node.options(vec![remote])).ended().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    let expected = format!(
        "cannot lock the vault: {}/lock: process {} holds it | let it finish, or end it: the lock goes with it and \
         never needs to be removed by hand",
        node.vault_directory().display(),
        std::process::id()
    );
    assert_eq!(text(&error), expected);
    service.stop();
}

#[tokio::test]
async fn what_a_killed_process_left_in_the_vault_is_gone_after_a_start() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    node.once(node.options(vec![remote.clone()]));
    let half_made = node.vault_directory().join("staging/half-made");
    std::fs::create_dir_all(half_made.join("data")).unwrap();
    std::fs::write(half_made.join("data/model.bin"), "half").unwrap();
    node.once(node.options(vec![remote]));
    assert!(!half_made.exists());
}

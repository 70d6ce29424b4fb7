//! A node whose fellow nodes are late, or never come.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use stepvault_agent::{AgentOptions, AgentRemote};
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::{NodePlace, NodeSet, Writer, ranked};

use crate::harness::{Node, id, run_name};
use crate::support::committed;

/// A service on one of two nodes that share a remote.
fn options(node: &Node, rank: usize, remote: &AgentRemote, incomplete_after: Duration) -> AgentOptions {
    let mut options = node.options(vec![remote.clone()]);
    options.upload.incomplete_after = incomplete_after;
    // Nobody is waited for: an end that takes as long as this would be one that waits.
    options.agent.drain_deadline = Duration::from_mins(30);
    AgentOptions {
        writer: Writer {
            place: NodePlace::new(ranked(rank).unwrap(), NodeSet::counted(2).unwrap()).unwrap(),
            launch: Some(LaunchName::new("first").unwrap()),
            shared: false,
        },
        ..options
    }
}

/// What a rank of a node writes.
fn save(node: &Node, rank: usize, step: u64, age_seconds: u64) -> PathBuf {
    let file = format!("rank_{rank}.pt");
    node.save(&format!("step_{step}"), &[(&file, 1000)], age_seconds)
}

#[tokio::test]
async fn a_part_that_never_comes_is_named_and_holds_up_no_later_step() {
    let (near, far) = (Node::new(), Node::new());
    let remote = near.directory_remote("disk").await;
    let short = Duration::from_secs(1);
    save(&near, 0, 100, 9);
    let service = near.start(options(&near, 0, &remote, short));
    near.until_heard("it is incomplete: node-1 has not uploaded its part within 1 s").await;
    let warnings = near.recorder.lines_with("warning: ");
    assert!(warnings.iter().any(|line| line.contains("step 100 (attempt 1)")), "{warnings:?}");
    assert_eq!(committed(&remote).await, []);

    save(&near, 0, 200, 5);
    save(&far, 1, 200, 5);
    let late = far.start(options(&far, 1, &remote, short));
    near.until_durable("disk", 200).await;
    assert_eq!(committed(&remote).await, [id(1, 200)]);
    let report = service.stop();
    let [left] = report.left.not_durable.as_slice() else { panic!("{:?}", report.left.not_durable) };
    assert_eq!(
        (left.id, left.failed, left.reason.as_str()),
        (id(1, 100), false, "it is incomplete: node-1 has not uploaded its part within 1 s")
    );

    // The node that was away brings what it has.
    save(&far, 1, 100, 9);
    far.until_durable("disk", 100).await;
    assert!(late.stop().is_durable());
    assert_eq!(committed(&remote).await, [id(1, 100), id(1, 200)]);
    let report = near.once(options(&near, 0, &remote, short));
    assert!(report.is_durable(), "{:?}", report.left.not_durable);
    assert_eq!(report.sealed.total, 0);
}

#[tokio::test]
async fn a_directory_with_files_of_two_starts_is_warned_of_and_counts_as_not_durable() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    let half = save(&node, 0, 100, 9);
    let torn = node.outputs().join("tmp_step_100");
    std::fs::rename(&half, &torn).unwrap();
    let service = node.start(options(&node, 0, &remote, Duration::from_mins(30)));
    save(&node, 0, 50, 9);
    node.until_heard("sealed: step 50").await;
    std::fs::write(torn.join("rank_4.pt"), "of this start").unwrap();
    std::fs::rename(&torn, &half).unwrap();
    node.until_heard("warning: grpo/checkpoints: refusing to seal a checkpoint of two starts").await;
    let report = service.stop();
    let names: Vec<_> = report.left.unsealed.iter().map(|unsealed| &unsealed.path).collect();
    assert_eq!(names, [&half], "{report:?}");
    assert!(!report.is_safe_here());
}

#[tokio::test]
async fn an_end_does_not_wait_for_other_nodes() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    save(&node, 0, 100, 9);
    let options = options(&node, 0, &remote, Duration::from_mins(30));
    let patience = options.agent.drain_deadline;
    let service = node.start(options);
    until_part_is_uploaded(&node).await;
    let begun = Instant::now();
    let report = service.stop();
    assert!(begun.elapsed() < patience, "{:?}", begun.elapsed());
    let [left] = report.left.not_durable.as_slice() else { panic!("{:?}", report.left.not_durable) };
    assert_eq!(left.reason, "this node's part is uploaded, but the part of node-1 is still missing");
}

#[tokio::test]
async fn what_the_others_have_completed_meanwhile_is_found_at_the_end() {
    let (near, far) = (Node::new(), Node::new());
    let remote = near.directory_remote("disk").await;
    let long = Duration::from_mins(30);
    save(&near, 0, 100, 9);
    let service = near.start(options(&near, 0, &remote, long));
    until_part_is_uploaded(&near).await;
    save(&far, 1, 100, 9);
    assert!(far.once(options(&far, 1, &remote, long)).is_durable());
    let report = service.stop();
    assert!(report.is_durable(), "{:?}", report.left.not_durable);
}

async fn until_part_is_uploaded(node: &Node) {
    let run = node.remote_root("disk").join(run_name().as_str());
    let part = run.join(".stepvault/parts/000000000100.a1/node-0.json");
    node.until("the part to be uploaded", || part.exists()).await;
}

//! A selective remote gets its steps in the background, and no step waits for it to be durable.

use std::sync::Arc;

use stepvault_agent::{AgentOptions, AgentRemote};
use stepvault_core::RemoteSettings;
use stepvault_core::ids::RemoteName;
use stepvault_core::retention::{KeepRules, Selection};
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id};
use crate::support::{committed, fail_all, keep_last};

/// A service whose steps go to `hot`, which keeps the newest one, and every tenth from there to `cold`.
async fn options(node: &Node) -> (AgentOptions, AgentRemote, AgentRemote) {
    let cold = node.directory_remote("cold").await;
    options_with(node, cold).await
}

async fn options_with(node: &Node, mut cold: AgentRemote) -> (AgentOptions, AgentRemote, AgentRemote) {
    let hot = node.directory_remote("hot").await;
    let mut settings = RemoteSettings::clone(&cold.settings);
    settings.selection = Some(Selection {
        from: RemoteName::new("hot").unwrap(),
        rules: KeepRules { every_steps: Some(10), ..KeepRules::default() },
        includes_newest: false,
        after_seconds: 0,
    });
    cold.settings = Arc::new(settings);
    let mut options = node.options(vec![hot.clone(), cold.clone()]);
    options.selective = vec![options.remotes.pop().unwrap()];
    options.runs[0].keep_remote = keep_last(1);
    (options, hot, cold)
}

#[tokio::test]
async fn selected_steps_are_copied_in_the_background_and_removed_afterwards() {
    let node = Node::new();
    let (options, hot, cold) = options(&node).await;
    let service = node.start(options);
    for step in [10, 15, 20, 25] {
        node.save_small(step, 100 - step);
        node.until_durable("hot", step).await;
    }
    for step in [10, 20] {
        node.until_heard(&format!("copied step {step} (attempt 1) from hot to cold")).await;
        node.until_heard(&format!("removed from hot: step {step} (attempt 1)")).await;
    }
    let report = service.stop();
    assert!(report.is_durable(), "{report:?}");
    assert_eq!(report.uploaded.total, 4, "nothing is uploaded to the selective remote");
    assert_eq!(committed(&cold).await, [id(1, 10), id(1, 20)]);
    assert_eq!(committed(&hot).await, [id(1, 25)]);
}

#[tokio::test]
async fn a_single_round_copies_and_a_selective_remote_that_is_away_fails_none() {
    let node = Node::new();
    let (options, hot, cold) = options(&node).await;
    std::fs::write(node.remote_root("cold"), "no directory").unwrap();
    for step in [10, 15, 20] {
        node.save_small(step, 100 - step);
    }
    let report = node.once(options.clone());
    assert!(report.is_durable(), "{report:?}");
    assert_eq!(committed(&hot).await, [id(1, 10), id(1, 20)], "step 10 waits");
    std::fs::remove_file(node.remote_root("cold")).unwrap();
    node.once(options);
    assert_eq!(committed(&cold).await, [id(1, 10), id(1, 20)]);
    assert_eq!(committed(&hot).await, [id(1, 20)]);
}

#[tokio::test]
async fn a_selective_remote_that_hangs_holds_up_neither_uploads_nor_a_drain() {
    let (node, server) = (Node::new(), StrictS3::start());
    let cold = node.s3_remote("cold", &server, 60).await;
    let (options, hot, _) = options_with(&node, cold).await;
    fail_all(&server, &FaultAction::Hang);
    let service = node.start(options);
    node.save_small(10, 5);
    node.until_durable("hot", 10).await;
    node.until_requested(&server, ".stepvault").await;
    node.save_small(20, 4);
    node.until_durable("hot", 20).await;
    let report = service.stop();
    assert!(report.is_durable(), "{report:?}");
    assert_eq!(committed(&hot).await, [id(1, 10), id(1, 20)], "step 10 waits");
}

#[tokio::test]
async fn only_the_first_node_of_a_job_copies() {
    use stepvault_core::nodes::{NodePlace, NodeSet, Writer, ranked};
    let node = Node::new();
    let (mut options, _, cold) = options(&node).await;
    node.save_small(10, 5);
    node.once(options.clone());
    assert_eq!(committed(&cold).await, [id(1, 10)]);
    let place = NodePlace::new(ranked(1).unwrap(), NodeSet::counted(2).unwrap()).unwrap();
    options.writer = Writer { place, ..options.writer };
    node.save_small(20, 4);
    node.once(options);
    assert_eq!(committed(&cold).await, [id(1, 10)]);
}

//! Retention on both tiers, and what of it must never come back.

use std::time::Duration;

use stepvault_core::retention::LocalLimits;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id};
use crate::support::{committed, keep_last, on_remote, sealed, write_files};

#[tokio::test]
async fn both_tiers_keep_what_their_rules_say() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remotes = node.disk_and_s3(&server, 5).await;
    let mut options = node.options(remotes.clone());
    options.runs[0].keep_local = keep_last(1);
    options.runs[0].keep_remote = keep_last(2);
    let service = node.start(options);
    for step in 1..=4 {
        node.save_small(step, 10 - step);
        node.until_durable("s3", step).await;
        node.until_durable("disk", step).await;
    }
    for remote in ["disk", "s3"] {
        for step in [1, 2] {
            node.until_heard(&format!("removed from {remote}: step {step} (attempt 1)")).await;
        }
    }
    node.until_heard("removed from local: step 3 (attempt 1)").await;
    let report = service.stop();
    assert_eq!((report.evicted.total, report.pruned.total), (3, 4));
    assert_eq!(sealed(&node), [id(1, 4)]);
    for remote in &remotes {
        assert_eq!(committed(remote).await, [id(1, 3), id(1, 4)]);
    }
    assert!(report.is_durable() && report.skipped.total == 0, "{report:?}");
}

#[tokio::test]
async fn what_retention_removed_is_not_pushed_again_from_the_trainers_directory() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    let mut options = node.options(vec![remote.clone()]);
    options.runs[0].keep_local = keep_last(1);
    options.runs[0].keep_remote = keep_last(1);
    for step in 1..=3 {
        node.save_small(step, 10 - step);
        node.once(options.clone());
    }
    assert_eq!(committed(&remote).await, [id(1, 3)]);

    for fresh_vault in [false, true] {
        if fresh_vault {
            std::fs::remove_dir_all(node.vault_directory()).unwrap();
        }
        let report = node.once(options.clone());
        assert_eq!((report.sealed.total, report.uploaded.total), (0, 0), "{report:?}");
        assert_eq!(report.skipped.total, 2);
        let reason = &report.skipped.latest[0].reason;
        assert!(reason.contains("refusing to seal an old checkpoint"), "{reason}");
        assert!(reason.contains("step 1 (attempt 1) was removed by retention"), "{reason}");
        assert_eq!(committed(&remote).await, [id(1, 3)]);
    }
    assert!(node.recorder.lines_with("warning").is_empty(), "{:?}", node.recorder.lines_with("warning"));
}

#[tokio::test]
async fn a_run_that_goes_back_starts_its_second_attempt_with_its_second_save() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    let service = node.start(node.options(vec![remote.clone()]));
    for (step, age) in [(100, 50), (200, 40), (300, 30)] {
        node.save_small(step, age);
    }
    node.until_durable("disk", 300).await;
    let again = node.outputs().join("step_200");
    std::fs::remove_dir_all(&again).unwrap();
    let files = [("model.safetensors", 1100), ("optimizer/state.pt", 400)];
    node.save("step_200", &files, 5);
    // One save alone may be a download or a conversion.
    node.until_heard("durable on disk: step 200 (attempt 1, revision 2)").await;
    std::fs::remove_dir_all(node.outputs().join("step_300")).unwrap();
    node.save("step_300", &files, 5);
    node.until_heard("durable on disk: step 300 (attempt 2)").await;
    node.until_heard("attempt 2 begins with step 300: the agent saw the trainer save step 200").await;
    service.stop();
    let again = id(1, 200).next_revision().unwrap();
    assert_eq!(committed(&remote).await, [id(1, 100), id(1, 200), again, id(1, 300), id(2, 300)]);
}

#[tokio::test]
async fn steps_that_are_found_at_the_start_are_ordered_by_number_whatever_their_times() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    for (step, age) in [(100, 50), (300, 40), (200, 10)] {
        node.save_small(step, age);
    }
    node.once(node.options(vec![remote.clone()]));
    assert_eq!(committed(&remote).await, [id(1, 100), id(1, 200), id(1, 300)]);
}

#[tokio::test]
async fn an_old_step_that_the_trainer_takes_apart_is_no_new_save() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    let service = node.start(node.options(vec![remote.clone()]));
    let husk = node.save("global_step_1", &[("actor/model.pt", 500), ("data.pt", 20)], 50);
    node.save("global_step_2", &[("actor/model.pt", 500), ("data.pt", 20)], 40);
    node.until_durable("disk", 2).await;
    node.until_durable("disk", 1).await;
    std::fs::remove_dir_all(husk.join("actor")).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    service.stop();
    // And after a restart, by what the vault holds.
    let report = node.once(node.options(vec![remote.clone()]));
    assert_eq!(report.sealed.total, 0);
    assert_eq!(
        report.skipped.latest[0].reason,
        "its files differ from those sealed as step 1 (attempt 1), and none of them is newer: a process is deleting it"
    );
    assert_eq!(committed(&remote).await, [id(1, 1), id(1, 2)]);
}

#[tokio::test]
async fn a_step_that_gets_another_file_gets_a_revision() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    let service = node.start(node.options(vec![remote.clone()]));
    let step = node.save_small(1, 50);
    node.until_durable("disk", 1).await;
    write_files(&step, &[("late.json", 30)], 0);
    node.until_heard("durable on disk: step 1 (attempt 1, revision 2)").await;
    service.stop();
}

#[tokio::test]
async fn without_the_right_to_delete_it_warns_once_and_goes_on() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remote = node.s3_remote("s3", &server, 5).await;
    let denied = FaultAction::refuse(403, "AccessDenied");
    server.faults().inject("DELETE", "", u64::MAX, denied.clone());
    server.faults().inject("POST", "?delete", u64::MAX, denied);
    let mut options = node.options(vec![remote.clone()]);
    options.runs[0].keep_remote = keep_last(1);
    let service = node.start(options);
    for step in 1..=3 {
        node.save_small(step, 10 - step);
        node.until_durable("s3", step).await;
        // Also while nothing has to go yet: each lease that stays holds up the next prune.
        node.until_heard("retention cannot delete on it").await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let report = service.stop();
    assert!(report.is_durable() && report.pruned.total == 0);
    let warnings = node.recorder.lines_with("retention cannot delete on it");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("grpo/checkpoints, remote s3"), "{}", warnings[0]);
    assert_eq!(committed(&remote).await.len(), 3);
}

#[tokio::test]
async fn the_local_tier_keeps_to_its_byte_budget_over_all_runs() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    let mut options = node.options(vec![remote]);
    for step in 1..=4 {
        node.save_small(step, 10 - step);
        node.once(options.clone());
    }
    node.save_small(5, 5);
    options.local.limits = LocalLimits { maximum_bytes: Some(3000), ..LocalLimits::default() };
    let report = node.once(options);
    assert_eq!((report.sealed.total, report.evicted.total), (1, 3));
    assert_eq!(sealed(&node), [id(1, 4), id(1, 5)]);
}

#[tokio::test]
async fn a_pin_on_one_remote_holds_the_step_on_the_others() {
    let node = Node::new();
    let remotes = vec![node.directory_remote("disk").await, node.directory_remote("other").await];
    let mut options = node.options(remotes.clone());
    for step in 1..=2 {
        node.save_small(step, 10 - step);
    }
    node.once(options.clone());
    let other = on_remote(&remotes[1]);
    assert!(stepvault_engine::tier::catalog::pin(&other, id(1, 1), "paper").await.unwrap());
    node.save_small(3, 5);
    options.runs[0].keep_local = keep_last(1);
    options.runs[0].keep_remote = keep_last(1);
    let report = node.once(options);
    // Step 2 goes from both; the pinned one stays on both, and in the vault.
    assert_eq!((report.pruned.total, report.evicted.total), (2, 1), "{report:?}");
    for remote in &remotes {
        assert_eq!(committed(remote).await, [id(1, 1), id(1, 3)]);
    }
    assert_eq!(sealed(&node), [id(1, 1), id(1, 3)]);
}

#[tokio::test]
async fn a_step_whose_commit_is_gone_does_not_stop_the_eviction_of_others() {
    let node = Node::new();
    let remote = node.directory_remote("disk").await;
    let mut options = node.options(vec![remote.clone()]);
    for step in 1..=4 {
        node.save_small(step, 10 - step);
    }
    node.once(options.clone());
    let commits = node.on_disk(".stepvault/commits");
    std::fs::remove_file(commits.join("000000000001.a1.json")).unwrap();
    node.save_small(5, 5);
    options.local.limits = LocalLimits { maximum_bytes: Some(3000), ..LocalLimits::default() };
    let report = node.once(options);
    assert_eq!(report.evicted.total, 3, "{report:?}");
    // It is uploaded again; evicted it may be only then.
    assert_eq!(committed(&remote).await, (1..=5).map(|step| id(1, step)).collect::<Vec<_>>());
    assert_eq!(sealed(&node).last(), Some(&id(1, 5)));
}

//! When a step counts as finished, and what is left alone.

use std::time::Duration;

use stepvault_core::config::Completion;
use stepvault_core::path::RelativePath;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id};
use crate::support::{committed, files_below, write_files};

#[tokio::test]
async fn a_renamed_step_reaches_every_kind_of_remote_and_the_trainers_directory_stays_as_it_was() {
    let (node, s3, gcs) = (Node::new(), StrictS3::start(), StrictGcs::start());
    let remotes = vec![
        node.directory_remote("disk").await,
        node.s3_remote("s3", &s3, 5).await,
        node.gcs_remote("gcs", &gcs).await,
    ];
    let service = node.start(node.options(remotes.clone()));
    let step = node.save_small(100, 5);
    write_files(&node.outputs().join("step_200.tmp"), &[("model.pt", 10)], 5);
    write_files(&node.outputs().join("tensorboard_5"), &[("events", 10)], 5);
    let seen = node.seen_by_the_trainer();
    for remote in ["disk", "s3", "gcs"] {
        node.until_durable(remote, 100).await;
    }
    let report = service.stop();
    assert_eq!(node.seen_by_the_trainer(), seen);
    assert_eq!((report.sealed.total, report.uploaded.total), (1, 3));
    assert!(
        report.is_durable() && report.left.not_durable.is_empty() && report.skipped.total == 0,
        "{report:?}"
    );
    let copy = node.on_disk("000000000100.a1/step_100");
    assert_eq!(files_below(&copy), files_below(&step));
    for remote in &remotes {
        assert_eq!(committed(remote).await, [id(1, 100)]);
    }
}

#[tokio::test]
async fn a_directory_that_does_not_exist_yet_is_waited_for() {
    let node = Node::new();
    std::fs::remove_dir(node.outputs()).unwrap();
    let service = node.start(node.disk_options().await);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!node.outputs().exists());
    std::fs::create_dir(node.outputs()).unwrap();
    node.save_small(7, 1);
    node.until_durable("disk", 7).await;
    assert_eq!(service.stop().sealed.total, 1);
}

#[tokio::test]
async fn a_step_is_not_touched_before_its_marker_is_there() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Marker(RelativePath::new("trainer/.metadata").unwrap());
    let service = node.start(options);
    let step = node.outputs().join("step_3");
    write_files(&step, &[("trainer/__0_0.distcp", 500)], 1);
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert!(node.recorder.lines_with("sealed: ").is_empty());
    write_files(&step, &[("trainer/.metadata", 20)], 0);
    node.until_durable("disk", 3).await;
    let report = service.stop();
    assert_eq!((report.sealed.total, report.skipped.total), (1, 0));
}

#[tokio::test]
async fn what_lacks_its_marker_at_the_end_is_said() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Marker(RelativePath::new("done").unwrap());
    let step = node.save_small(3, 1);
    let report = node.once(options);
    assert_eq!(report.sealed.total, 0);
    let skipped = &report.skipped.latest[0];
    assert_eq!(
        (skipped.path.as_path(), skipped.reason.as_str()),
        (step.as_path(), "done does not exist yet")
    );
}

#[tokio::test]
async fn a_quiet_step_is_taken_and_one_that_is_being_written_is_not() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Quiet(Duration::from_secs(2));
    let service = node.start(options);
    let step = node.outputs().join("checkpoint-500");
    for file in 0..8 {
        write_files(&step, &[(&format!("shard-{file}.bin"), 100)], 0);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(node.recorder.lines_with("sealed: ").is_empty(), "after {file}");
    }
    node.until_durable("disk", 500).await;
    let report = service.stop();
    assert_eq!(report.sealed.total, 1);
    assert_eq!(files_below(&node.on_disk("000000000500.a1/checkpoint-500")).len(), 8);
}

#[tokio::test]
async fn old_times_alone_do_not_make_a_step_quiet() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Quiet(Duration::from_secs(2));
    // As a copy that keeps times would look while it is under way.
    node.save_small(5, 10_000);
    let service = node.start(options);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(node.recorder.lines_with("sealed: ").is_empty());
    node.until_heard("sealed: step 5 (attempt 1)").await;
    service.stop();
}

#[tokio::test]
async fn a_file_servers_clock_that_runs_ahead_does_not_stop_anything() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Quiet(Duration::from_secs(1));
    let step = node.save_small(5, 0);
    let ahead = std::time::SystemTime::now() + Duration::from_hours(1);
    std::fs::File::options()
        .write(true)
        .open(step.join("model.safetensors"))
        .unwrap()
        .set_modified(ahead)
        .unwrap();
    let report = node.once(options);
    assert_eq!((report.sealed.total, report.uploaded.total), (1, 1), "{report:?}");
}

#[tokio::test]
async fn single_files_are_steps_and_links_and_nameless_ones_are_not() {
    let node = Node::new();
    let mut options = node.disk_options().await;
    options.runs[0].pattern = Some("*.ckpt".to_owned());
    write_files(&node.outputs(), &[("epoch=1-step=500.ckpt", 800), ("best.ckpt", 20)], 3);
    std::os::unix::fs::symlink("epoch=1-step=500.ckpt", node.outputs().join("last-1.ckpt")).unwrap();
    let report = node.once(options);
    assert_eq!((report.sealed.total, report.sealed.latest[0].id), (1, id(1, 500)));
    assert_eq!(report.skipped.total, 1);
    assert!(report.skipped.latest[0].path.ends_with("best.ckpt"));
    assert_eq!(report.skipped.latest[0].reason, "its name contains no step number");
}

#[tokio::test]
async fn a_step_that_vanishes_while_it_is_taken_over_harms_no_other() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remote = node.s3_remote("s3", &server, 5).await;
    // The remote is asked what it has before anything is sealed: time enough to delete the step.
    let wait = stepvault_testkit::faults::FaultAction::Delay(Duration::from_millis(900));
    server.faults().inject("GET", "commits%2F", 2, wait);
    let service = node.start(node.options(vec![remote.clone()]));
    let step = node.save_small(1, 9);
    node.until("the remote to be asked", || {
        let requests = server.faults().requests();
        requests.iter().any(|request| format!("{request:?}").contains("commits%2F"))
    })
    .await;
    std::fs::remove_dir_all(step).unwrap();
    node.save_small(2, 8);
    node.until_durable("s3", 2).await;
    let report = service.stop();
    assert_eq!(committed(&remote).await, [id(1, 2)]);
    assert_eq!((report.sealed.total, report.skipped.total), (1, 1), "{report:?}");
    let reason = &report.skipped.latest[0].reason;
    assert!(reason.starts_with("it vanished before it was sealed ("), "{reason}");
    assert!(report.is_durable());
}

#[tokio::test]
async fn what_cannot_be_a_checkpoint_is_said_once_and_harms_no_other() {
    let node = Node::new();
    let odd = node.save_small(1, 9);
    make_fifo(&odd.join("pipe"));
    node.save_small(2, 8);
    let service = node.start(node.disk_options().await);
    node.until_durable("disk", 2).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let report = service.stop();
    let skipped: Vec<_> =
        report.skipped.latest.iter().filter(|entry| entry.path.ends_with("step_1")).collect();
    assert!(!skipped.is_empty() && skipped.len() <= 2, "{skipped:?}");
    assert!(skipped[0].reason.contains("pipe"), "{}", skipped[0].reason);
}

fn make_fifo(path: &std::path::Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

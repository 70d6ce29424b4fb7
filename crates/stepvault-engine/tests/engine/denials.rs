//! Records that a remote has and lists, and of which one answer says that they do not exist: nothing is deleted, used
//! again or left out for it.

use std::collections::BTreeSet;
use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::codec::FORMAT;
use stepvault_core::ids::StepId;
use stepvault_core::launch::LaunchName;
use stepvault_core::records::{Lease, Tombstone};
use stepvault_core::retired::RetiredSteps;
use stepvault_engine::push::PushReport;
use stepvault_engine::tier::removed::removal_record;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, id, in_launch, run_name, text};

/// The next read of such an object finds nothing.
fn deny_once(server: &StrictS3, path: &str) {
    server.faults().inject("GET", path, 1, FaultAction::refuse(404, "NoSuchKey"));
}

async fn leave_tombstone_of_gc(rig: &Rig, id: StepId) {
    let name = format!("step_{}", id.step);
    let tombstone = Tombstone { format: FORMAT, run: run_name(), id, name, by_gc: true };
    let remote = &rig.remotes[0];
    remote.create_record(&remote.keys.tombstone(id), &tombstone).await.unwrap();
}

/// S1: gc was interrupted before it could find that the step had been committed, and acknowledged, in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_prune_does_not_delete_the_step_whose_tombstone_it_was_to_remove() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(2).await;
    // The store tells times in whole seconds.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    leave_tombstone_of_gc(&rig, id(1, 1)).await;
    deny_once(&server, "/tombstones/0");
    let (error, _) = text(rig.prune(2).await);
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(rig.prune(2).await.unwrap().removed, []);
    assert_eq!(rig.committed().await, [id(1, 1), id(1, 2)]);
    assert_eq!(removal_record(&rig.remotes[0], id(1, 1)).await.unwrap(), None);
}

/// S7: two gc runs at once could delete what either has seen only once.
#[tokio::test(flavor = "multi_thread")]
async fn a_gc_does_not_begin_beside_another() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(1).await;
    let (remote, holder) = (&rig.remotes[0], "0".repeat(32));
    let lease = Lease {
        format: FORMAT,
        holder: holder.clone(),
        purpose: "prune".to_owned(),
        time_to_live_seconds: 120,
    };
    remote.create_record(&remote.keys.prune_lease(&holder), &lease).await.unwrap();
    deny_once(&server, &holder);
    for expected in [ErrorKind::Unreachable, ErrorKind::Held] {
        let (error, _) = text(rig.gc(Duration::ZERO).await);
        assert_eq!(error.kind(), expected, "{error}");
    }
}

/// S9: the name of the step is only in this record.
#[tokio::test(flavor = "multi_thread")]
async fn a_retired_step_is_not_uploaded_again() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(1).await;
    let remote = &rig.remotes[0];
    let retired = RetiredSteps::default().with(&run_name(), &BTreeSet::from([id(1, 100)]));
    remote.create_record(&remote.keys.retired(0), &retired).await.unwrap();
    deny_once(&server, "/retired/0");
    let error = removal_record(remote, id(1, 100)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(removal_record(remote, id(1, 100)).await.unwrap(), Some(remote.keys.retired(0)));
}

fn uploaded(report: &PushReport) -> StepId {
    for outcome in &report.remotes {
        outcome.result.as_ref().unwrap();
    }
    report.id
}

/// L4: retention has not removed the step, so that the checkpoint is not one that nobody wants any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_of_a_step_that_gc_removed_is_not_left_out() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(1).await;
    leave_tombstone_of_gc(&rig, id(1, 100)).await;
    let source = rig.write_step(100, &[("x", 100)], 100, 100_000);
    deny_once(&server, "/tombstones/0");
    let next = id(1, 100).next_revision().unwrap();
    assert_eq!(uploaded(&rig.push(&source).await.unwrap()), next);
}

/// S3: the nodes of a launch write one attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_launch_gets_no_second_attempt() {
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    let save = |rig: &Rig, step: u64| {
        let source = rig.write_step(step, &[("x", 100)], step, step as i64 * 1_000);
        let mut request = in_launch(rig.request(&source));
        request.current.writer.launch = Some(LaunchName::new("slurm:7").unwrap());
        request
    };
    assert_eq!(uploaded(&rig.push_as(save(&rig, 100)).await.unwrap()), id(1, 100));
    rig.lose_node();
    server.faults().clear_requests();
    deny_once(&server, "/launches/a1");
    assert_eq!(uploaded(&rig.push_as(save(&rig, 200)).await.unwrap()), id(1, 200));
    assert!(asked(server.faults(), "GET", "/launches/a1") > 0);
}

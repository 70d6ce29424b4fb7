//! A run that is followed from another machine.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use stepvault_core::{Error, ErrorKind, Result, StepId};
use stepvault_engine::follow::{
    DurableSteps, FollowRequest, FollowedStep, Unfollowed, durable_steps, restore_followed, unfollowed,
};
use stepvault_engine::restore::RestoreContext;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::follow_directory::FollowDirectory;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, cut_when, id, run_name};

const FILES: &[(&str, usize)] = &[("model.bin", 4000), ("state.json", 300)];

/// A follower's directory, on a machine without a vault.
struct Follower {
    place: tempfile::TempDir,
    context: RestoreContext,
}

impl Follower {
    fn of(rig: &Rig) -> Self {
        // Nothing remembers what the rig's own vault has seen.
        let fresh = rig.remotes.iter().zip(&rig.stores).map(|(remote, store)| {
            RunRemote::new(Arc::clone(store), Arc::clone(&remote.settings), run_name())
        });
        let context = RestoreContext { vault: None, remotes: fresh.collect(), ..rig.context() };
        Self { place: tempfile::tempdir().unwrap(), context }
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("followed")
    }

    fn open(&self) -> Arc<Mutex<FollowDirectory>> {
        Arc::new(Mutex::new(FollowDirectory::open(&self.path(), &run_name()).unwrap()))
    }

    async fn durable(&self) -> DurableSteps {
        durable_steps(&self.context.remotes, |_| true).await
    }

    async fn unfollowed(&self, id: StepId, error: &Error) -> Unfollowed {
        unfollowed(&self.context.remotes, id, error).await
    }

    async fn restore(&self, id: StepId) -> Result<FollowedStep> {
        let request = FollowRequest { run: run_name(), id, include: Vec::new(), thaw: None };
        restore_followed(&self.context, &self.open(), request).await
    }
}

#[tokio::test]
async fn a_step_is_durable_once_every_required_remote_has_it() {
    let mut rig = Rig::with_steps(1).await;
    let follower = Follower::of(&rig);
    let durable = follower.durable().await;
    assert_eq!(durable.ids, BTreeSet::from([id(1, 1)]));
    assert!(durable.unreachable.is_empty());
    rig.add_one_that_is_away("away").await;
    let with_both = Follower::of(&rig).durable().await;
    assert!(with_both.ids.is_empty(), "{with_both:?}");
    assert_eq!(with_both.unreachable.len(), 1);
    rig.tombstone(1).await;
    assert!(follower.durable().await.ids.is_empty());
}

#[tokio::test]
async fn without_a_newer_step_one_list_is_enough() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(2).await;
    let remotes = rig.context().remotes;
    durable_steps(&remotes, |_| true).await;
    server.faults().clear_requests();
    let durable = durable_steps(&remotes, |found| found > id(1, 2)).await;
    assert_eq!(durable.ids.len(), 2);
    assert_eq!(server.faults().requests().len(), 1, "{:?}", server.faults().requests());
}

#[tokio::test]
async fn a_restore_that_was_cut_off_is_continued_out_of_sight() {
    let server = StrictS3::start();
    let rig = Rig::with_patient_s3(&server, 30).await;
    rig.push_durably(&rig.write_step(1, FILES, 1, 1)).await;
    let follower = Follower::of(&rig);
    let faults = server.faults();
    faults.inject("GET", "state.json", u64::MAX, FaultAction::Hang);
    let hangs = || asked(faults, "GET", "state.json") > 0;
    cut_when(faults, Box::pin(follower.restore(id(1, 1))), hangs).await;
    faults.clear();
    assert!(!follower.path().join("000000000001.a1").exists());
    let restored = follower.restore(id(1, 1)).await.unwrap();
    assert_eq!(restored.path, follower.open().lock().path().join("000000000001.a1/step_1"));
    assert!(restored.path.join("model.bin").exists() && restored.report.is_some());
    // What is in its place is not fetched again.
    faults.clear_requests();
    let again = follower.restore(id(1, 1)).await.unwrap();
    assert!(again.report.is_none() && again.path == restored.path);
    assert_eq!(faults.requests().len(), 0);
}

#[tokio::test]
async fn a_step_that_is_pruned_meanwhile_is_removed_and_leaves_nothing() {
    let rig = Rig::with_steps(3).await;
    let follower = Follower::of(&rig);
    let first = id(1, 1);
    assert!(follower.durable().await.ids.contains(&first));
    rig.prune(2).await.unwrap();
    let error = follower.restore(first).await.unwrap_err();
    assert_eq!(follower.unfollowed(first, &error).await, Unfollowed::Removed, "{error}");
    assert_eq!(follower.unfollowed(id(1, 2), &error).await, Unfollowed::Unknown);
    assert!(!follower.path().join("000000000001.a1").exists());
}

#[tokio::test]
async fn a_step_that_is_pruned_while_its_bytes_are_fetched_is_final() {
    let rig = Rig::with_steps(1).await;
    let follower = Follower::of(&rig);
    // The pruner's tombstone was not there yet when the steps were listed.
    std::fs::remove_dir_all(rig.data_of(1)).unwrap();
    let error = follower.restore(id(1, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoneValid, "{error}");
    assert_eq!(follower.unfollowed(id(1, 1), &error).await, Unfollowed::Damaged);
    assert!(!follower.path().join("000000000001.a1").exists());
}

#[tokio::test]
async fn a_step_whose_filesystem_was_away_for_a_moment_is_tried_again() {
    let rig = Rig::with_steps(1).await;
    let follower = Follower::of(&rig);
    assert!(follower.durable().await.ids.contains(&id(1, 1)));
    let (mounted, away) = (rig.remote_root(), rig.directory.path().join("unmounted"));
    std::fs::rename(&mounted, &away).unwrap();
    std::fs::create_dir(&mounted).unwrap();
    let error = follower.restore(id(1, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(follower.unfollowed(id(1, 1), &error).await, Unfollowed::Unknown);
    // A process that has never seen it finds nothing, which proves nothing either.
    let error = Follower::of(&rig).restore(id(1, 1)).await.unwrap_err();
    assert_eq!(Follower::of(&rig).unfollowed(id(1, 1), &error).await, Unfollowed::Unknown, "{error}");
    std::fs::remove_dir(&mounted).unwrap();
    std::fs::rename(&away, &mounted).unwrap();
    follower.restore(id(1, 1)).await.unwrap();
}

#[tokio::test]
async fn a_remote_that_removed_a_step_does_not_make_those_that_have_it_give_it_up() {
    let mut rig = Rig::with_steps(1).await;
    let other = rig.directory.path().join("other");
    std::fs::create_dir(&other).unwrap();
    rig.add("other", &format!("file://{}", other.display()), |remote| remote.required = false, None).await;
    rig.push_durably(&rig.outputs().join("step_1")).await;
    rig.remotes.swap(0, 1);
    rig.stores.swap(0, 1);
    rig.tombstone(1).await;
    let follower = Follower::of(&rig);
    assert!(follower.durable().await.ids.contains(&id(1, 1)));
    let error = Error::new(ErrorKind::Unreachable, "no answer");
    assert_eq!(follower.unfollowed(id(1, 1), &error).await, Unfollowed::Unknown);
    follower.restore(id(1, 1)).await.unwrap();
}

#[tokio::test]
async fn credentials_that_may_only_read_suffice() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(1).await;
    for method in ["PUT", "POST", "DELETE"] {
        server.faults().inject(method, "", u64::MAX, FaultAction::refuse(403, "AccessDenied"));
    }
    let follower = Follower::of(&rig);
    assert_eq!(follower.durable().await.ids, BTreeSet::from([id(1, 1)]));
    follower.restore(id(1, 1)).await.unwrap();
    assert!(!rig.recorder.lines_with("restoring without a lease").is_empty());
}

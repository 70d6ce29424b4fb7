//! What cannot be read: a store that refuses to show it, and records that are no records.

use std::time::{Duration, SystemTime};

use stepvault_core::ErrorKind;
use stepvault_core::ids::NodeName;
use stepvault_core::path::RelativePath;
use stepvault_core::records::Tombstone;
use stepvault_core::retention::RefusalKind;
use stepvault_engine::gc::run_gc;
use stepvault_engine::push::identify_and_seal;
use stepvault_engine::restore::{RestoreRequest, plan};
use stepvault_engine::tier::leases::HeldLease;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::objects::StoredObject;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, id, run_name, text};

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_to_show_a_record_says_nothing_of_what_it_holds() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(3).await;
    let remote = rig.remotes[0].clone();
    // It leaves the record of a gc run.
    let report = rig.gc_now().await;
    assert!(report.pending_uploads_listed);
    let reader = HeldLease::on_step(&remote, id(1, 1)).await.unwrap();
    let stored = || {
        let keys = server.objects().keys();
        // The pruner's own comes and goes.
        keys.into_iter().filter(|key| !key.contains("/leases/")).collect::<Vec<_>>()
    };
    let before = stored();
    let node = NodeName::new("node-0").unwrap();
    let (commit, lease) = (remote.keys.commit(id(1, 2)), reader.key().to_owned());
    let of_gc = [commit.clone(), lease.clone(), remote.keys.part(id(1, 2), &node), remote.keys.gc_record()];
    let refuse = |key: &str| {
        let action = FaultAction::refuse(403, "AccessDenied");
        server.faults().clear();
        server.faults().inject("GET", key, u64::MAX, action);
    };
    for key in of_gc {
        refuse(&key);
        let (error, message) = text(rig.gc(Duration::ZERO).await);
        assert_eq!(error.kind(), ErrorKind::Denied, "{key}: {message}");
        assert_eq!(stored(), before, "{key}");
    }
    for key in [commit, lease] {
        refuse(&key);
        let (error, message) = text(rig.prune(1).await);
        assert_eq!(error.kind(), ErrorKind::Denied, "{key}: {message}");
        assert_eq!(stored(), before, "{key}");
    }
    server.faults().clear();
    reader.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_that_cannot_be_read_holds_as_long_as_any() {
    let rig = Rig::with_steps(3).await;
    rig.write_object(&rig.remotes[0].keys.lease(id(1, 1), "somebody"), b"{");
    let report = rig.prune(1).await.unwrap();
    assert_eq!(report.removed, [id(1, 2)]);
}

#[tokio::test]
async fn data_that_nobody_claimed_stays_and_a_claim_counts_even_if_it_cannot_be_read() {
    let rig = Rig::with_steps(3).await;
    let remote = &rig.remotes[0];
    let data = |step: u64| {
        let path = RelativePath::new("x").unwrap();
        remote.keys.data("last", id(1, step), &path).unwrap()
    };
    for step in [8, 9] {
        rig.write_object(&data(step), b"left");
    }
    rig.write_object(&remote.keys.claim(id(1, 9)), b"{");
    let mut foreign = 0;
    for _ in 0..3 {
        let report = rig.gc_now().await;
        foreign = report.foreign;
    }
    assert_eq!(foreign, 1);
    let is_there = |step| rig.remote_root().join(data(step)).exists();
    assert_eq!([8, 9].map(is_there), [true, false]);
}

#[tokio::test]
async fn gc_whose_record_cannot_be_read_waits_one_run_longer() {
    let rig = Rig::with_steps(3).await;
    let remote = &rig.remotes[0];
    let orphan = remote.keys.probe("0123456789abcdef0123456789abcdef-whole");
    rig.write_object(&orphan, b"left");
    assert_eq!(rig.gc_now().await.marked, std::slice::from_ref(&orphan));
    rig.write_object(&remote.keys.gc_record(), b"{");
    let report = rig.gc_now().await;
    assert_eq!((report.marked, report.removed), (vec![orphan.clone()], vec![]));
    assert_eq!(rig.gc_now().await.removed, [orphan]);
}

#[tokio::test]
async fn an_orphan_that_changed_between_two_gc_runs_is_another_one() {
    let rig = Rig::with_steps(3).await;
    let remote = &rig.remotes[0];
    let orphan = remote.keys.probe("0123456789abcdef0123456789abcdef-whole");
    for bytes in [b"one".as_slice(), b"another"] {
        rig.write_object(&orphan, bytes);
        let report = rig.gc_now().await;
        assert_eq!((report.marked, report.removed), (vec![orphan.clone()], vec![]));
    }
    let report = rig.gc_now().await;
    assert_eq!((report.removed, report.removed_bytes), (vec![orphan], 7));
}

#[tokio::test]
async fn gc_says_what_it_removed_and_what_was_too_young() {
    let rig = Rig::with_steps(3).await;
    let remote = &rig.remotes[0];
    // Left beside the files of a step that is committed.
    let stray = remote.keys.data("step_2", id(1, 2), &RelativePath::new("stray").unwrap()).unwrap();
    rig.write_object(&stray, b"stray");
    let hour = Duration::from_secs(3_600);
    let report = rig.gc(hour).await.unwrap();
    assert_eq!((report.young, report.marked.len()), (1, 0));
    assert_eq!(rig.gc_now().await.young, 0);
    let warnings = || rig.recorder.warnings.lock().unwrap().clone();
    assert!(warnings().is_empty(), "{:?}", warnings());
    assert_eq!(rig.gc_now().await.removed, [stray]);
    assert_eq!(warnings(), ["disk: removed 1 orphaned objects"]);
}

#[tokio::test]
async fn a_tombstone_that_cannot_be_read_stops_no_plan_that_deletes_nothing() {
    let rig = Rig::with_steps(3).await;
    let remote = &rig.remotes[0];
    rig.write_object(&remote.keys.commit(id(1, 1)), b"{");
    rig.write_object(&remote.keys.tombstone(id(1, 2)), b"{");
    let report = rig.prune(1).await.unwrap();
    let refusal = report.plan.refusal.unwrap();
    assert_eq!(refusal.kind, RefusalKind::UnreadableRecord, "{}", refusal.reason);
    assert!(report.removed.is_empty() && report.spared.is_empty());
}

/// An older step in its place would take the trainer back, though nothing is wrong with the newest.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_a_store_refuses_to_show_is_not_skipped_for_an_older_one() {
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    rig.push_steps(3).await;
    rig.lose_node();
    let node = NodeName::new("node-0").unwrap();
    let keys = rig.remotes[0].keys.clone();
    for key in [keys.commit(id(1, 3)), keys.part(id(1, 3), &node)] {
        for (status, code) in [(403, "AccessDenied"), (503, "SlowDown")] {
            let action = FaultAction::refuse(status, code);
            server.faults().inject("GET", &key, u64::MAX, action);
            let (error, message) = text(rig.restore().await);
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{key}: {message}");
            assert!(message.contains("step 3 (attempt 1) of run"), "{message}");
            let older = RestoreRequest { allow_older: true, ..rig.restore_request() };
            let planned = plan(&rig.context(), &older).await.unwrap();
            assert_eq!(planned.id, id(1, 2), "{key}");
            assert!(planned.skipped[0].unread, "{:?}", planned.skipped);
            server.faults().clear();
        }
    }
    assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 3));
}

/// The records can be read on one remote and not on the other, and the one that shows them has lost the bytes.
#[tokio::test(flavor = "multi_thread")]
async fn damage_on_one_remote_proves_nothing_of_another_that_cannot_be_read() {
    let server = StrictS3::start();
    let mut rig = Rig::with_directory().await;
    rig.add_s3("aws", &server).await;
    rig.push_steps(3).await;
    rig.lose_node();
    let keys = rig.remotes[1].keys.clone();
    let data = keys.data("step_3", id(1, 3), &RelativePath::new("x").unwrap()).unwrap();
    rig.write_object(&data, &[0; 100]);
    for key in [keys.commit(id(1, 3)), data] {
        server.faults().inject("GET", &key, u64::MAX, FaultAction::refuse(503, "SlowDown"));
        let (error, message) = text(rig.restore().await);
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{key}: {message}");
        server.faults().clear();
    }
    let restored = rig.restore().await.unwrap().plan;
    assert_eq!(restored.id, id(1, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_from_elsewhere_says_which_store_refused_to_show_the_step() {
    let server = StrictS3::start();
    let mut rig = Rig::with_directory().await;
    rig.add_s3("aws", &server).await;
    rig.push_steps(3).await;
    rig.lose_node();
    let action = FaultAction::refuse(403, "AccessDenied");
    let key = rig.remotes[1].keys.commit(id(1, 3));
    server.faults().inject("GET", &key, u64::MAX, action);
    let restored = rig.restore().await.unwrap().plan;
    assert_eq!(restored.id, id(1, 3));
    assert_eq!(restored.sources, [rig.remotes[0].tier.clone()]);
    let warnings = rig.recorder.warnings.lock().unwrap();
    let said = "step 3 (attempt 1) is not restored from a tier that cannot be read: ";
    assert!(
        warnings.iter().any(|warning| warning.starts_with(said) && warning.contains("s3://bucket")),
        "{warnings:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_that_a_store_refuses_to_show_ends_the_prune() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(3).await;
    let keys = &rig.remotes[0].keys;
    let at = |key: String| format!("bucket/pre fix/{key}");
    server.objects().with(|table| {
        // Neither is what its key says.
        let other = table[&at(keys.claim(id(1, 1)))].clone();
        table.insert(at(keys.commit(id(1, 1))), other.clone());
        // As one that a gc left that was interrupted.
        let modified = table[&at(keys.commit(id(1, 2)))].modified + Duration::from_hours(1);
        table.insert(at(keys.tombstone(id(1, 2))), StoredObject { modified, ..other });
    });
    let action = FaultAction::refuse(403, "AccessDenied");
    server.faults().inject("GET", &keys.tombstone(id(1, 2)), u64::MAX, action);
    let (error, message) = text(rig.prune(1).await);
    assert_eq!(error.kind(), ErrorKind::Denied, "{message}");
}

/// S8: without the whole list of steps there is no plan.
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_that_fails_ends_the_prune_and_deletes_nothing() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(3).await;
    let objects = || server.objects().with(|table| table.keys().cloned().collect::<Vec<_>>());
    let before = objects();
    let action = FaultAction::refuse(403, "AccessDenied");
    server.faults().inject("GET", "list-type=2", u64::MAX, action);
    let (error, message) = text(rig.prune(1).await);
    assert_eq!(error.kind(), ErrorKind::Denied, "{message}");
    // A lease on the run may come and go.
    let mut after = objects();
    after.retain(|key| !key.contains("/leases/"));
    assert_eq!(after, before);
    server.faults().clear();
    assert_eq!(rig.prune(1).await.unwrap().removed.len(), 2, "without the fault");
}

#[tokio::test]
async fn no_gc_goes_on_where_a_manifest_cannot_be_read() {
    let rig = Rig::with_steps(3).await;
    let remote = &rig.remotes[0];
    let node = NodeName::new("node-0").unwrap();
    rig.write_object(&remote.keys.part(id(1, 2), &node), b"{");
    let result = rig.gc(Duration::ZERO).await;
    let (error, message) = text(result);
    assert_eq!(error.kind(), ErrorKind::Refused, "{message}");
    assert!(message.starts_with("refusing gc: a record cannot be read"), "{message}");
}

#[tokio::test]
async fn only_a_gc_that_is_no_dry_run_takes_away_what_one_before_left() {
    let rig = Rig::with_steps(3).await;
    let remote = &rig.remotes[0];
    let left = Tombstone { format: 1, run: run_name(), id: id(1, 2), name: "step_2".to_owned(), by_gc: true };
    let grave = remote.keys.tombstone(id(1, 2));
    remote.create_record(&grave, &left).await.unwrap();
    let commit = rig.remote_root().join(remote.keys.commit(id(1, 2)));
    let file = std::fs::File::options().write(true).open(commit).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3_600)).unwrap();
    for (is_dry, stays) in [(true, true), (false, false)] {
        run_gc(remote, Duration::ZERO, is_dry, &rig.observer).await.unwrap();
        assert_eq!(rig.remote_root().join(&grave).exists(), stays);
    }
}

/// S1: what is durable is found so by who may only read, and nothing else is.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_may_only_read_is_told_whether_the_step_is_durable() {
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    rig.push_steps(1).await;
    rig.lose_node();
    let session = rig.upload_session().await;
    let mut sealed = Vec::new();
    for (step, source) in [
        (1, rig.write_step(1, &[("x", 100), ("y", 7)], 1, 1_000)),
        (2, rig.write_step(2, &[("x", 100)], 2, 2_000)),
    ] {
        identify_and_seal(&rig.vault, &[], rig.request(&source), &rig.observer).await.unwrap();
        sealed.push(rig.vault.step(&run_name(), id(1, step)).unwrap().unwrap());
    }
    let action = FaultAction::refuse(403, "AccessDenied");
    server.faults().inject("PUT", "", u64::MAX, action);
    assert!(session.upload(&sealed[0]).await.unwrap().is_durable());
    let (error, message) = text(session.upload(&sealed[1]).await);
    assert_eq!(error.kind(), ErrorKind::Denied, "{message}");
}

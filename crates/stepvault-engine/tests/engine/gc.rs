use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::codec::{FORMAT, encode};
use stepvault_core::records::Tombstone;
use stepvault_engine::gc::run_gc;
use stepvault_engine::push::identify_and_seal;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, cut_when, id, run_name, snapshot, text};

const NOW: Duration = Duration::ZERO;
const DAY: Duration = Duration::from_secs(86_400);

/// One committed step, and one whose push was cut off on a node that is gone.
async fn with_orphans(server: &StrictS3) -> Rig {
    let mut rig = Rig::with_s3(server).await;
    rig.push_durably(&rig.write_step(100, &[("a", 100)], 1, 1_000)).await;
    let source = rig.write_step(200, &[("a", 100), ("big", 30 << 20)], 2, 2_000);
    server.faults().inject("PUT", "partNumber=3", u64::MAX, FaultAction::Hang);
    let uploaded = || {
        let keys = server.objects().keys();
        keys.iter().any(|key| key.ends_with("000000000200.a1/step_200/a"))
            && asked(server.faults(), "PUT", "partNumber=3") > 0
    };
    cut_when(server.faults(), rig.push(&source), uploaded).await;
    server.faults().clear();
    rig.lose_node();
    rig
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_go_after_the_grace_period_and_two_gc_runs_and_nothing_else_does() {
    let server = StrictS3::start();
    let rig = with_orphans(&server).await;
    server.objects().with(|table| {
        let foreign = table.values().next().unwrap().clone();
        table.insert("bucket/pre fix/grpo/checkpoints/notes.txt".to_owned(), foreign.clone());
        // A probe whose clean-up was cut off.
        let probe =
            "bucket/pre fix/grpo/checkpoints/.stepvault/probes/0123456789abcdef0123456789abcdef-whole";
        table.insert(probe.to_owned(), foreign.clone());
        // The last word of a node that is gone.
        let drain = "bucket/pre fix/grpo/checkpoints/.stepvault/drains/node-9.json";
        table.insert(drain.to_owned(), foreign);
    });
    let young = rig.gc(DAY).await.unwrap();
    assert_eq!((young.marked.len(), young.removed.len(), young.aborted_uploads), (0, 0, 0));
    let first = rig.gc_now().await;
    assert_eq!((first.removed.len(), first.aborted_uploads, first.foreign), (0, 1, 1));
    let second = rig.gc_now().await;
    assert!(second.removed.iter().any(|key| key.ends_with("000000000200.a1/step_200/a")), "{second:?}");
    assert!(server.objects().keys().iter().any(|key| key.ends_with("notes.txt")));
    assert!(!server.objects().keys().iter().any(|key| key.contains("/probes/")));
    assert!(server.objects().keys().iter().any(|key| key.ends_with("/drains/node-9.json")));
    assert!(server.pending_uploads().is_empty());
    let third = rig.gc_now().await;
    assert_eq!((third.marked.len(), third.removed.len()), (0, 0), "{third:?}");
    assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 100));
}

/// A store that keeps a file of a committed step under another name, and one that has lost a file.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_of_a_step_whose_files_are_not_all_listed() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_durably(&rig.write_step(100, &[("a\\b.bin", 100), ("c", 100)], 1, 1_000)).await;
    // As if it had been renamed after the commit.
    server.objects().with(|table| {
        let keys = table.keys().filter(|key| key.contains("a\\b.bin"));
        for key in keys.cloned().collect::<Vec<_>>() {
            let object = table.remove(&key).unwrap();
            table.insert(key.replace('\\', "/"), object);
        }
    });
    let before = server.objects().keys().len();
    for _ in 0..3 {
        let report = rig.gc_now().await;
        assert_eq!(report.unlisted_steps, [id(1, 100)], "{report:?}");
        assert_eq!((report.marked.len(), report.removed.len()), (0, 0), "{report:?}");
    }
    // The record of the gc itself.
    assert_eq!(server.objects().keys().len(), before + 1);
}

/// Its writer found the tombstone and acknowledged nothing.
#[tokio::test]
async fn a_step_that_was_committed_after_gc_had_begun_to_delete_it_is_deleted_to_its_end() {
    let mut rig = Rig::with_directory().await;
    for step in [100, 200] {
        rig.push_durably(&rig.write_step(step, &[("a", 100)], step, 1_000)).await;
    }
    let tombstone = Tombstone {
        format: FORMAT,
        run: run_name(),
        id: id(1, 200),
        name: "step_200".to_owned(),
        by_gc: true,
    };
    let records = "grpo/checkpoints/.stepvault";
    let key = format!("{records}/tombstones/000000000200.a1.json");
    rig.write_object(&key, &encode(&tombstone).unwrap());
    let file = std::fs::File::options().append(true).open(rig.remote_root().join(key)).unwrap();
    file.set_modified(std::time::SystemTime::now() - DAY).unwrap();
    let part = format!("{records}/parts/000000000200.a1/node-0.json");
    std::fs::remove_file(rig.remote_root().join(part)).unwrap();
    rig.gc_now().await;
    let second = rig.gc_now().await;
    assert!(second.removed.iter().any(|key| key.ends_with("commits/000000000200.a1.json")), "{second:?}");
    assert!(!rig.data_of(200).exists());
    rig.lose_node();
    assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_marks_nothing_and_removes_nothing() {
    let server = StrictS3::start();
    let rig = with_orphans(&server).await;
    for _ in 0..3 {
        let report = run_gc(&rig.remotes[0], NOW, true, &rig.observer).await.unwrap();
        assert!(report.removed.is_empty());
        assert!(!report.marked.is_empty(), "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_while_a_record_cannot_be_read() {
    let rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(100, &[("a", 100)], 1, 1_000)).await;
    let commit = rig.remote_root().join("grpo/checkpoints/.stepvault/commits/000000000100.a1.json");
    std::fs::write(&commit, "{").unwrap();
    let before = snapshot(&rig.remote_root().join("grpo/checkpoints/000000000100.a1"));
    for _ in 0..2 {
        let (error, _) = text(rig.gc(NOW).await);
        assert_eq!(error.kind(), ErrorKind::Refused);
    }
    assert_eq!(snapshot(&rig.remote_root().join("grpo/checkpoints/000000000100.a1")), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_was_tombstoned_meanwhile_does_not_acknowledge() {
    let server = StrictS3::start();
    let mut rig = Rig::with_patient_s3(&server, 30).await;
    rig.push_durably(&rig.write_step(100, &[("a", 100)], 1, 1_000)).await;
    let source = rig.write_step(200, &[("a", 100)], 2, 2_000);
    // The writer stands still right before its part manifest while two gc runs pass over it.
    server.faults().inject("PUT", "parts/000000000200", 1, FaultAction::Delay(Duration::from_secs(6)));
    let slow = rig.push(&source);
    let gc_runs = async {
        let stands_still =
            || server.faults().requests().iter().any(|request| request.path.contains("parts/000000000200"));
        while !stands_still() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Stores tell times in whole seconds: what is younger than that is never old enough.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        for _ in 0..2 {
            rig.gc_now().await;
        }
    };
    let (report, ()) = tokio::join!(slow, gc_runs);
    let report = report.unwrap();
    let error = report.remotes[0].result.as_ref().expect_err("tombstoned");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert_eq!(rig.remotes.len(), 1);
    rig.lose_node();
    assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_step_that_was_removed_before_its_upload_a_claim_is_left_at_most_and_gc_removes_it() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_durably(&rig.write_step(100, &[("a", 100)], 1, 1_000)).await;
    let session = rig.upload_session().await;
    let source = rig.write_step(200, &[("a", 100)], 2, 2_000);
    identify_and_seal(&rig.vault, &[], rig.request(&source), &rig.observer).await.unwrap();
    let sealed = rig.vault.step(&run_name(), id(1, 200)).unwrap().unwrap();
    rig.tombstone(200).await;
    let (error, message) = text(session.upload(&sealed).await);
    assert_eq!(error.kind(), ErrorKind::Refused, "{message}");
    let keys = &rig.remotes[0].keys;
    let left = || {
        let mut left = server.objects().keys();
        left.retain(|key| key.contains("000000000200"));
        left
    };
    let ends = |key: String| move |found: &String| found.ends_with(&key);
    assert!(left().iter().any(ends(keys.claim(id(1, 200)))), "{:?}", left());
    assert_eq!(left().len(), 2, "{:?}", left());
    // Stores tell times in whole seconds: what is younger than that is never old enough.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    rig.gc_now().await;
    rig.gc_now().await;
    assert!(!left().iter().any(ends(keys.claim(id(1, 200)))), "{:?}", left());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_delete_it_says_so_though_nothing_has_to_go_yet() {
    let server = StrictS3::start();
    let rig = with_orphans(&server).await;
    let refused = FaultAction::refuse(403, "AccessDenied");
    server.faults().inject("DELETE", "", u64::MAX, refused.clone());
    server.faults().inject("POST", "?delete", u64::MAX, refused);
    let (error, message) = text(rig.gc(DAY).await);
    assert_eq!(error.kind(), ErrorKind::Denied, "{message}");
    assert!(message.contains("/leases/"), "{message}");
    // A dry run takes no lease, and needs no such right.
    run_gc(&rig.remotes[0], DAY, true, &rig.observer).await.unwrap();
}

use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::remote_settings::Transport;
use stepvault_engine::verify::{Depth, check_remote};
use stepvault_local::journal::read_state;
use stepvault_testkit::faults::{FaultAction, FaultRule};
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::{StrictS3, StrictS3Options};

use crate::harness::{Rig, asked, cut_when, id, run_name, snapshot, text};

const FILES: &[(&str, usize)] = &[("big.bin", 80 << 20), ("small.json", 100)];

fn part_bytes(server: &StrictS3) -> u64 {
    let uploads = server.faults().requests().into_iter();
    uploads
        .filter(|request| request.method == "PUT" && request.path.contains("partNumber"))
        .map(|request| request.body_bytes)
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_was_cut_off_sends_only_what_was_in_flight_again() {
    let server = StrictS3::start();
    let mut rig = Rig::with_patient_s3(&server, 30).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    // The sixth part hangs until the push is given up.
    server.faults().add(FaultRule {
        method: Some("PUT".to_owned()),
        path_contains: "big.bin".to_owned(),
        skip: 6,
        times: u64::MAX,
        action: FaultAction::Hang,
    });
    let acknowledged =
        || server.pending_uploads().iter().map(|upload| upload.part_numbers.len()).sum::<usize>();
    cut_when(server.faults(), rig.push(&source), || acknowledged() >= 5).await;
    let there = acknowledged() as u64;
    server.faults().clear();
    server.faults().clear_requests();
    rig.push_durably(&source).await;
    let sent = part_bytes(&server);
    assert!(sent <= (10 - there) * (8 << 20) + 1024, "{sent} bytes were sent again with {there} parts there");
    rig.lose_node();
    assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_whose_parts_had_all_arrived_is_completed_without_sending_one_again() {
    let server = StrictS3::start();
    let rig = Rig::with_patient_s3(&server, 30).await;
    let source = rig.write_step(100, &FILES[..1], 1, 1_000);
    server.faults().inject("POST", "big.bin?uploadId", u64::MAX, FaultAction::Hang);
    let completing = || asked(server.faults(), "POST", "big.bin?uploadId") > 0;
    cut_when(server.faults(), rig.push(&source), completing).await;
    server.faults().clear();
    server.faults().clear_requests();
    rig.push_durably(&source).await;
    assert_eq!(asked(server.faults(), "PUT", "big.bin"), 0);
    assert_eq!(asked(server.faults(), "POST", "big.bin?uploadId"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_the_store_has_forgotten_is_begun_again() {
    let server = StrictS3::start();
    let rig = Rig::with_patient_s3(&server, 30).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    server.faults().add(FaultRule {
        method: Some("PUT".to_owned()),
        path_contains: "big.bin".to_owned(),
        skip: 3,
        times: u64::MAX,
        action: FaultAction::Hang,
    });
    cut_when(server.faults(), rig.push(&source), || asked(server.faults(), "PUT", "partNumber") > 3).await;
    server.faults().clear();
    let store = &rig.remotes[0].store;
    for upload in store.pending_uploads("").await.unwrap() {
        store.abort_upload(&upload.key, &upload.upload).await.unwrap();
    }
    rig.push_durably(&source).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_the_commit_is_no_failure_and_no_second_commit() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    server.faults().inject("PUT", "commits/", 1, FaultAction::ApplyThenReset);
    server.faults().inject("POST", "uploadId", 1, FaultAction::ApplyThenReset);
    rig.push_durably(&rig.write_step(100, FILES, 1, 1_000)).await;
    let commits = server.objects().keys().into_iter().filter(|key| key.contains("/commits/")).count();
    assert_eq!(commits, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_503_passes() {
    let server = StrictS3::start();
    let rig = Rig::with_patient_s3(&server, 30).await;
    let storm =
        FaultAction::Refuse { status: 503, retry_after_seconds: Some(1), code: "SlowDown".to_owned() };
    server.faults().inject("PUT", "big.bin", 5, storm);
    rig.push_durably(&rig.write_step(100, FILES, 1, 1_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_remote_ends_in_time_and_leaves_the_step_staged() {
    // Not the port of a server that has stopped: another test's server may listen there by now.
    let mut rig = Rig::new();
    rig.add_one_that_is_away("aws").await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let report =
        tokio::time::timeout(Duration::from_secs(60), rig.push(&source)).await.expect("in time").unwrap();
    assert!(report.newly_sealed);
    let error = report.remotes[0].result.as_ref().expect_err("unreachable");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(rig.vault.step(&run_name(), id(1, 100)).unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_body_is_taken_up_where_it_broke() {
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let written = snapshot(&source);
    rig.push_durably(&source).await;
    rig.lose_node();
    server.faults().inject("GET", "big.bin", 6, FaultAction::CutBody { bytes: 3 << 20 });
    let restored = rig.restore().await.unwrap();
    assert_eq!(snapshot(&restored.plan.path), written);
    assert_eq!(*rig.recorder.moved.lock().unwrap() / (80 << 20), 2, "up once, down once: nothing came twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_restore_goes_on_where_it_was() {
    let server = StrictS3::start();
    let mut rig = Rig::with_patient_s3(&server, 30).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let written = snapshot(&source);
    rig.push_durably(&source).await;
    rig.lose_node();
    server.faults().add(FaultRule {
        method: Some("GET".to_owned()),
        path_contains: "big.bin".to_owned(),
        skip: 5,
        times: u64::MAX,
        action: FaultAction::Hang,
    });
    cut_when(server.faults(), Box::pin(rig.restore()), || asked(server.faults(), "GET", "big.bin") > 5).await;
    assert!(!rig.directory.path().join("restored/step_100").exists(), "whole or not at all");
    server.faults().clear();
    let restored = rig.restore().await.unwrap();
    assert!(restored.fetched.kept_bytes >= 3 * (8 << 20), "{:?}", restored.fetched);
    assert_eq!(snapshot(&restored.plan.path), written);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_takes_anything_is_read_back_and_found_out() {
    let options = StrictS3Options { accept_wrong_checksums: true, ..StrictS3Options::default() };
    let server = StrictS3::start_with(options);
    let rig = Rig::with_s3(&server).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    server.faults().clear_requests();
    rig.push_durably(&source).await;
    let read_back = server
        .faults()
        .requests()
        .into_iter()
        .filter(|request| request.method == "GET" && request.path.contains("big.bin"));
    assert!(read_back.count() > 0, "what such a store holds has to be read");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gcs_upload_that_was_cut_off_goes_on_by_parts() {
    goes_on_by_parts(Transport::Xml, "PUT", "big.bin").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_by_the_json_api_that_was_cut_off_goes_on_by_parts() {
    // The mark of the upload is one of the requests.
    goes_on_by_parts(Transport::Json, "POST", "big.bin%2Fjson-").await;
}

/// `method` and `path` are those of the requests that send a part.
async fn goes_on_by_parts(transport: Transport, method: &str, path: &str) {
    let server = StrictGcs::start();
    let mut rig = Rig::new();
    rig.add_gcs_over(transport, "google", &server).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    server.faults().add(FaultRule {
        method: Some(method.to_owned()),
        path_contains: path.to_owned(),
        skip: 6,
        times: u64::MAX,
        action: FaultAction::Hang,
    });
    let stored = || {
        let uploads = server.pending_uploads();
        let in_uploads: u64 = uploads.iter().map(|upload| upload.stored_bytes).sum();
        let in_objects: u64 = server.objects().with(|objects| {
            let temporary = objects.iter().filter(|(key, _)| key.contains(".stepvault-uploads"));
            temporary.map(|(_, object)| object.body.len() as u64).sum()
        });
        (in_uploads + in_objects) / (8 << 20)
    };
    cut_when(server.faults(), rig.push(&source), || stored() >= 5).await;
    let there = stored();
    server.faults().clear();
    server.faults().clear_requests();
    rig.push_durably(&source).await;
    let requests = server.faults().requests();
    let parts = requests.iter().filter(|request| request.method == method && request.path.contains(path));
    let again: u64 = parts.map(|request| request.body_bytes).sum();
    assert!(
        again <= (10 - there) * (8 << 20) + 16 * 1024,
        "{again} bytes were sent again with {there} parts there"
    );
    assert_eq!(stored(), 0, "nothing is left of the upload");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_rewritten_in_place_fails_its_step_loudly() {
    let mut rig = Rig::with_directory().await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let request = rig.request(&source);
    let placed =
        stepvault_engine::push::identify_and_seal(&rig.vault, &[], request, &rig.observer).await.unwrap();
    drop(placed);
    // Through the hard link, or not at all where the file system made a true copy.
    std::fs::write(source.join("big.bin"), crate::harness::bytes(99, 80 << 20)).unwrap();
    let sealed = rig.vault.step(&run_name(), id(1, 100)).unwrap().unwrap();
    let session = rig.upload_session().await;
    if let Err(error) = session.upload(&sealed).await {
        assert_eq!(error.kind(), ErrorKind::SourceChanged, "{error}");
        return;
    }
    rig.lose_node();
    let restored = rig.restore().await.unwrap();
    let kept = std::fs::read(restored.plan.path.join("big.bin")).unwrap();
    assert_eq!(kept, crate::harness::bytes(1 ^ (80 << 20), 80 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_vault_at_the_same_place_is_refused() {
    let rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(100, &[("a", 10)], 1, 1_000)).await;
    std::fs::remove_dir_all(rig.remote_root()).unwrap();
    let mut other = Rig::new();
    let url = format!("file://{}", rig.remote_root().display());
    other.add("disk", &url, |_| {}, None).await;
    other.push_durably(&other.write_step(100, &[("a", 10)], 2, 1_000)).await;
    let report = rig.push(&rig.write_step(200, &[("a", 10)], 3, 2_000)).await.unwrap();
    let (error, message) = text(report.remotes.into_iter().next().unwrap().result);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(message.contains("a different archive"), "{message}");
}

/// A record whose body broke off ended the whole push, though every request of it is safe to repeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_whose_body_breaks_off_is_read_again() {
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    let files = &[("model.bin", 300_000)];
    rig.push_durably(&rig.write_step(100, files, 1, 1_000)).await;
    let cut = |path: &str, bytes: usize| {
        server.faults().inject("GET", path, 2, FaultAction::CutBody { bytes });
    };
    for record in ["vault.json", "parts/", "commits/"] {
        cut(record, 20);
    }
    rig.push_durably(&rig.write_step(200, files, 2, 2_000)).await;
    server.faults().clear();
    for record in ["parts/", "commits/"] {
        cut(record, 20);
    }
    rig.lose_node();
    assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 200));
    server.faults().clear();
    cut("model.bin", 100_000);
    let health = check_remote(&rig.remotes[0], id(1, 200), Depth::Deep, &rig.observer).await.unwrap();
    assert!(health.is_sound(), "{health:?}");
}

/// An upload whose small file is done, and recorded as done, and whose big one hangs.
async fn cut_after_the_small_file(server: &StrictS3) -> (Rig, std::path::PathBuf) {
    let rig = Rig::with_patient_s3(server, 30).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    // Two of its parts: if all of them hung, the small file could wait for their requests.
    server.faults().inject("PUT", "big.bin", 2, FaultAction::Hang);
    // The object exists before its answer has arrived and is recorded.
    let remote = &rig.remotes[0].settings.name;
    let small_is_recorded = || {
        let state = read_state(&rig.vault, &run_name(), id(1, 100), remote);
        state.is_ok_and(|state| {
            let mut files = state.files.iter();
            files.any(|(path, progress)| path.as_str() == "small.json" && progress.done.is_some())
        })
    };
    cut_when(server.faults(), rig.push(&source), small_is_recorded).await;
    server.faults().clear();
    server.faults().clear_requests();
    (rig, source)
}

fn key_of(server: &StrictS3, name: &str) -> String {
    let keys = server.objects().keys();
    keys.into_iter().find(|key| key.ends_with(name)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lifecycle_rule_took_from_a_cut_off_upload_is_sent_again() {
    let server = StrictS3::start();
    let (rig, source) = cut_after_the_small_file(&server).await;
    assert!(server.objects().remove(&key_of(&server, "small.json")));
    rig.push_durably(&source).await;
    let health = check_remote(&rig.remotes[0], id(1, 100), Depth::Checksums, &rig.observer).await.unwrap();
    assert!(health.is_sound(), "{health:?}");
    assert_eq!(asked(server.faults(), "PUT", "small.json"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_another_size_is_left_alone_and_the_step_gets_another_revision() {
    let server = StrictS3::start();
    let (rig, source) = cut_after_the_small_file(&server).await;
    let key = key_of(&server, "small.json");
    assert!(server.objects().truncate(&key, 10));
    let report = rig.push_durably(&source).await;
    assert_eq!(report.id.revision.number(), 2);
    let is_commit_of_first = |key: &String| key.contains("/commits/") && key.ends_with(".a1.json");
    assert!(!server.objects().keys().iter().any(is_commit_of_first));
    assert_eq!(server.objects().body(&key).unwrap().len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_files_vanish_again_and_again_ends_without_a_commit() {
    let server = StrictS3::start();
    let (rig, source) = cut_after_the_small_file(&server).await;
    // What is sent has vanished before the answer comes.
    let slowly = FaultAction::ApplyThenDelay(Duration::from_millis(300));
    server.faults().inject("PUT", "small.json", u64::MAX, slowly);
    let objects = server.objects().clone();
    let key = key_of(&server, "small.json");
    let cleaner = tokio::spawn(async move {
        loop {
            objects.remove(&key);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let report = rig.push(&source).await.unwrap();
    cleaner.abort();
    let (error, message) = text(report.remotes.into_iter().next().unwrap().result);
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(message.contains("each time they are listed"), "{message}");
    assert_eq!(asked(server.faults(), "PUT", "commits/"), 0);
    assert_eq!(asked(server.faults(), "PUT", "small.json"), 2, "it is sent a bounded number of times");
}

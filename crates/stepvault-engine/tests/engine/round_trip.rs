use stepvault_core::ErrorKind;
use stepvault_core::remote_settings::Transport;
use stepvault_engine::upload::Uploaded;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, id, run_name, snapshot, text};

const FILES: &[(&str, usize)] = &[
    ("trainer/.metadata", 3_000),
    ("trainer/__0_0.distcp", 21 << 20),
    ("orchestrator/progress.pt", 0),
    ("odd name ü #%?+.json", 17),
];

async fn round_trip(mut rig: Rig) {
    let source = rig.write_step(100, FILES, 1, 1_000);
    let written = snapshot(&source);
    let report = rig.push_durably(&source).await;
    assert_eq!((report.id, report.file_count, report.newly_sealed), (id(1, 100), 4, true));
    rig.lose_node();
    let restored = rig.restore().await.unwrap();
    assert_eq!(restored.plan.id, id(1, 100));
    assert_eq!(restored.plan.data_bytes(), 3_000 + (21 << 20) + 17);
    assert_eq!(snapshot(&restored.plan.path), written);
    assert!(restored.plan.path.ends_with("restored/step_100"));
    let again = rig.restore().await.unwrap();
    assert!(again.already_there);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_directory() {
    round_trip(Rig::with_directory().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_s3() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    round_trip(rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_gcs() {
    let server = StrictGcs::start();
    let mut rig = Rig::new();
    rig.add_gcs("google", &server).await;
    round_trip(rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_gcs_by_the_json_api() {
    let server = StrictGcs::start();
    let mut rig = Rig::new();
    rig.add_gcs_over(Transport::Json, "google", &server).await;
    round_trip(rig).await;
    let requests = server.faults().requests();
    let others = requests.iter().filter(|request| !request.path.contains("/storage/v1/"));
    assert_eq!(others.count(), 0, "nothing goes through the XML API");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_memory() {
    let mut rig = Rig::new();
    rig.add("ram", "memory://round-trip", |_| {}, None).await;
    round_trip(rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn to_two_remotes_at_once_and_back_from_the_one_that_is_left() {
    let (s3, gcs) = (StrictS3::start(), StrictGcs::start());
    let mut rig = Rig::new();
    rig.add_s3("aws", &s3).await;
    rig.add_gcs("google", &gcs).await;
    let source = rig.write_step(7, FILES, 2, 1_000);
    let written = snapshot(&source);
    assert_eq!(rig.push_durably(&source).await.remotes.len(), 2);
    rig.lose_node();
    drop(s3);
    let restored = rig.restore().await.unwrap();
    assert_eq!(snapshot(&restored.plan.path), written);
    assert_eq!(restored.plan.unreachable.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_part_on_one_remote_comes_from_the_other() {
    let (s3, gcs) = (StrictS3::start(), StrictGcs::start());
    let mut rig = Rig::new();
    rig.add_s3("aws", &s3).await;
    rig.add_gcs("google", &gcs).await;
    let source = rig.write_step(7, FILES, 2, 1_000);
    let written = snapshot(&source);
    rig.push_durably(&source).await;
    rig.lose_node();
    let key = s3.objects().keys().into_iter().find(|key| key.ends_with("distcp")).unwrap();
    assert!(s3.objects().flip_bit(&key, 9 << 20));
    let restored = rig.restore().await.unwrap();
    assert_eq!(snapshot(&restored.plan.path), written);
    let from_google: u64 = restored
        .fetched
        .bytes_by_tier
        .iter()
        .filter(|(tier, _)| tier.to_string() == "google")
        .map(|(_, bytes)| *bytes)
        .sum();
    assert_eq!(from_google, 8 << 20, "just the damaged part");
}

/// L4: one response proves no damage.
#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_was_damaged_on_the_way_is_read_again() {
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    rig.push_steps(2).await;
    rig.lose_node();
    server.faults().inject("GET", "step_2/x", 1, FaultAction::FlipBit);
    let restored = rig.restore().await.unwrap();
    assert_eq!((restored.plan.id, restored.plan.skipped.len()), (id(1, 2), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn local_copies_come_first_and_cost_the_remote_nothing() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let written = snapshot(&source);
    rig.push_durably(&source).await;
    server.faults().clear_requests();
    let restored = rig.restore().await.unwrap();
    assert_eq!(snapshot(&restored.plan.path), written);
    let data_reads = server.faults().requests().into_iter().filter(|request| {
        request.method == "GET" && !request.path.contains(".stepvault") && !request.path.contains("list-type")
    });
    assert_eq!(data_reads.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn pushing_again_sends_nothing() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    rig.push_durably(&source).await;
    server.faults().clear_requests();
    let report = rig.push_durably(&source).await;
    assert!(!report.newly_sealed);
    assert_eq!(*report.remotes[0].result.as_ref().unwrap(), Uploaded::AlreadyDurable);
    let data = server
        .faults()
        .requests()
        .into_iter()
        .filter(|request| request.method == "PUT" && request.path.contains("step_100"));
    assert_eq!(data.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_file_is_a_checkpoint_too() {
    let mut rig = Rig::with_directory().await;
    let file = rig.write_step(5, &[("epoch=1-step=5.ckpt", 100_000)], 3, 1_000).join("epoch=1-step=5.ckpt");
    rig.push_durably(&file).await;
    rig.lose_node();
    let restored = rig.restore().await.unwrap();
    assert!(restored.plan.path.ends_with("restored/epoch=1-step=5.ckpt"));
    assert_eq!(std::fs::read(&restored.plan.path).unwrap(), crate::harness::bytes(3 ^ 100_000, 100_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn include_takes_some_files_and_names_what_there_is_when_none_match() {
    let mut rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(100, FILES, 1, 1_000)).await;
    rig.lose_node();
    let mut request = rig.restore_request();
    request.include = vec!["*.safetensors".to_owned()];
    let (error, message) = text(stepvault_engine::restore::restore(&rig.context(), &request).await);
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(message.contains("trainer/.metadata"), "{message}");
    request.include = vec!["trainer/*".to_owned()];
    let restored = stepvault_engine::restore::restore(&rig.context(), &request).await.unwrap();
    let files: Vec<_> =
        snapshot(&restored.plan.path).into_keys().map(|path| path.display().to_string()).collect();
    assert_eq!(files, ["trainer", "trainer/.metadata", "trainer/__0_0.distcp"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_existing_target_is_refused_until_it_may_be_replaced() {
    let mut rig = Rig::with_directory().await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let written = snapshot(&source);
    rig.push_durably(&source).await;
    rig.lose_node();
    let target = rig.directory.path().join("restored/step_100");
    std::fs::create_dir_all(&target).unwrap();
    std::fs::write(target.join("mine.txt"), "mine").unwrap();
    let (error, message) = text(rig.restore().await);
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(message.contains("the target exists and differs from the step"), "{message}");
    assert_eq!(std::fs::read(target.join("mine.txt")).unwrap(), b"mine");
    let mut request = rig.restore_request();
    request.existing = stepvault_local::staging::Existing::Replace;
    stepvault_engine::restore::restore(&rig.context(), &request).await.unwrap();
    assert_eq!(snapshot(&target), written);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_the_step_in_its_place_is_completed() {
    let mut rig = Rig::with_directory().await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let written = snapshot(&source);
    rig.push_durably(&source).await;
    rig.lose_node();
    let mut request = rig.restore_request();
    request.include = vec!["trainer/*".to_owned()];
    stepvault_engine::restore::restore(&rig.context(), &request).await.unwrap();
    let target = rig.directory.path().join("restored/step_100");
    let some = target.join("trainer/.metadata");
    let right = std::fs::read(&some).unwrap();
    std::fs::write(&some, "other").unwrap();
    let (error, _) = text(rig.restore().await);
    assert_eq!(error.kind(), ErrorKind::Conflict, "other bytes are no part of it");
    std::fs::write(&some, right).unwrap();
    let restored = rig.restore().await.unwrap();
    assert!(!restored.already_there);
    assert_eq!(snapshot(&target), written);
}

/// What the vault remembers of a store is a convenience: a full disk, on which it cannot be written, needs its steps
/// uploaded all the more.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_remembered_of_a_store_stops_no_upload() {
    let rig = Rig::with_directory().await;
    let first = rig.write_step(1, &[("x", 10)], 1, 1_800_000_000);
    rig.push_durably(&first).await;
    let keys = rig.vault.note_keys(&run_name()).unwrap();
    let key = keys.iter().find(|key| key.starts_with("guarantees-")).unwrap();
    let tree = stepvault_local::tree::scan(rig.vault.root()).unwrap();
    let note = tree.files.iter().find(|file| file.path.as_str().ends_with(key.as_str()));
    let note = rig.vault.root().join(note.unwrap().path.as_str());
    std::fs::remove_file(&note).unwrap();
    std::fs::create_dir(&note).unwrap();
    let second = rig.write_step(2, &[("x", 10)], 2, 1_800_000_100);
    rig.push_durably(&second).await;
}

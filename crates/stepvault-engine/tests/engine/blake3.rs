//! Steps with BLAKE3 digests: S3 checks the CRC-64/NVME of each part and each object, Google Cloud Storage the CRC-32C, and a
//! restore the digests themselves.

use stepvault_core::ErrorKind;
use stepvault_core::codec::decode;
use stepvault_core::commit::Commit;
use stepvault_core::digest::DigestAlgorithm::{Blake3, Sha256};
use stepvault_core::manifest::PartManifest;
use stepvault_engine::push::identify_and_seal;
use stepvault_engine::upload::UploadSession;
use stepvault_testkit::faults::{FaultAction, FaultRule, Faults};
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::{StrictS3, StrictS3Options};

use crate::harness::{Rig, asked, cut_when, id, run_name, snapshot, text};

/// One file of three parts, one of one part, and an empty one.
const FILES: &[(&str, usize)] = &[("model.bin", (16 << 20) + 5), ("state.json", 300), ("empty", 0)];

async fn on_s3(options: StrictS3Options) -> (StrictS3, Rig) {
    let server = StrictS3::start_with(options);
    let rig = Rig { digest: Blake3, ..Rig::with_patient_s3(&server, 30).await };
    (server, rig)
}

/// Restores on a new node, and compares with what was saved.
async fn assert_restores(rig: &mut Rig, step: u64) {
    let written = snapshot(&rig.outputs().join(format!("step_{step}")));
    rig.assert_restores(step, &written).await;
}

/// How often data of a step was read.
fn reads(faults: &Faults) -> usize {
    asked(faults, "GET", "step_100/")
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_proves_them_and_they_are_named_in_manifest_and_commit() {
    let (server, mut rig) = on_s3(StrictS3Options::default()).await;
    rig.push_durably(&rig.write_step(100, FILES, 1, 1_000)).await;
    assert_eq!(reads(server.faults()), 0, "the store's checks are proof enough");
    let place = "bucket/pre fix/grpo/checkpoints";
    let data = |name: &str| format!("{place}/000000000100.a1/step_100/{name}");
    server.objects().with(|objects| {
        for (name, _) in FILES {
            let checksums: Vec<&String> = objects[&data(name)].checksums.keys().collect();
            assert_eq!(checksums, ["crc64nvme"], "{name}");
        }
    });
    let record = |kind: &str| {
        let keys = server.objects().keys();
        let key = keys.iter().find(|key| key.contains(kind)).expect("a record");
        server.objects().body(key).unwrap()
    };
    let commit: Commit = decode(&record("/commits/"), "commit").unwrap();
    assert_eq!(commit.parts[0].digest, Blake3);
    let manifest: PartManifest = decode(&record("/parts/"), "part").unwrap();
    assert_eq!(manifest.digest, Blake3);
    assert_restores(&mut rig, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unchanged_files_and_parts_are_copied_with_their_checksums() {
    let (server, mut rig) = on_s3(StrictS3Options::default()).await;
    rig.push_durably(&rig.write_step(100, FILES, 1, 1_000)).await;
    let source = rig.write_step(200, FILES, 1, 2_000);
    // Another first part; the others are those of the step before.
    let model = source.join("model.bin");
    let modified = std::fs::metadata(&model).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&model).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&model, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&model).unwrap();
    file.set_modified(modified).unwrap();
    let report = rig.push_durably(&source).await;
    assert_eq!(report.remotes[0].copied_bytes, (8 << 20) + 5 + 300);
    assert_eq!(reads(server.faults()), 0);
    assert_restores(&mut rig, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_was_cut_off_resumes_its_upload() {
    let (server, mut rig) = on_s3(StrictS3Options::default()).await;
    let files = &[("model.bin", 5 * (8 << 20))];
    let source = rig.write_step(100, files, 1, 1_000);
    server.faults().add(FaultRule {
        method: Some("PUT".to_owned()),
        path_contains: "model.bin".to_owned(),
        skip: 3,
        times: u64::MAX,
        action: FaultAction::Hang,
    });
    let acknowledged = || {
        let uploads = server.pending_uploads();
        uploads.iter().map(|upload| upload.part_numbers.len()).sum::<usize>()
    };
    cut_when(server.faults(), rig.push(&source), || acknowledged() >= 3).await;
    server.faults().clear();
    server.faults().clear_requests();
    rig.push_durably(&source).await;
    assert_eq!(asked(server.faults(), "PUT", "partNumber"), 2);
    assert_restores(&mut rig, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_checks_nothing_is_read_back() {
    for options in [
        StrictS3Options { accept_wrong_checksums: true, ..StrictS3Options::default() },
        StrictS3Options { no_checksum_answers: true, ..StrictS3Options::default() },
        StrictS3Options { refuse_checksums: true, ..StrictS3Options::default() },
    ] {
        let what = format!("{options:?}");
        let (server, mut rig) = on_s3(options).await;
        rig.push_durably(&rig.write_step(100, FILES, 1, 1_000)).await;
        assert!(reads(server.faults()) >= 2, "{what}");
        assert_restores(&mut rig, 100).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gcs_and_directories_hold_them() {
    let server = StrictGcs::start();
    let mut rig = Rig { digest: Blake3, ..Rig::with_directory().await };
    rig.add_gcs("google", &server).await;
    rig.push_durably(&rig.write_step(100, FILES, 1, 1_000)).await;
    assert_eq!(reads(server.faults()), 0);
    assert_restores(&mut rig, 100).await;
    let google = rig.remotes.pop();
    rig.remotes = google.into_iter().collect();
    let _ = std::fs::remove_dir_all(rig.directory.path().join("restored"));
    assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_found_in_every_part() {
    let (server, rig) = on_s3(StrictS3Options::default()).await;
    rig.push_durably(&rig.write_step(100, FILES, 1, 1_000)).await;
    let rig = {
        let mut lost = rig;
        lost.lose_node();
        lost
    };
    let key = "bucket/pre fix/grpo/checkpoints/000000000100.a1/step_100/model.bin";
    for offset in [0, 8 << 20, (16 << 20) + 4] {
        assert!(server.objects().flip_bit(key, offset));
        let _ = std::fs::remove_dir_all(rig.directory.path().join("restored"));
        let (error, said) = text(rig.restore().await);
        assert_eq!(error.kind(), ErrorKind::NoneValid, "{said}");
        assert!(server.objects().flip_bit(key, offset));
    }
    rig.restore().await.unwrap();
}

/// The run's algorithm was changed while the step waited.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_for_another_algorithm_reads_back_what_it_has_not_probed() {
    for (sealed_by, opened_for) in [(Blake3, Sha256), (Sha256, Blake3)] {
        let (server, mut rig) = on_s3(StrictS3Options::default()).await;
        rig.digest = sealed_by;
        let request = rig.request(&rig.write_step(100, FILES, 1, 1_000));
        let placed = identify_and_seal(&rig.vault, &[], request, &rig.observer).await;
        placed.unwrap();
        let step = rig.vault.step(&run_name(), id(1, 100)).unwrap().unwrap();
        assert_eq!(step.record().digest, sealed_by);
        let (remote, vault) = (rig.remotes[0].clone(), rig.vault.clone());
        let (budget, observer) = (rig.budget.clone(), rig.observer.clone());
        let session = UploadSession::open(remote, vault, budget, observer, opened_for).await;
        assert!(session.unwrap().upload(&step).await.unwrap().is_durable());
        // Of a file of one part, the probe for BLAKE3 has checked the SHA-256 too.
        assert!(reads(server.faults()) >= 1, "{sealed_by} by {opened_for}");
        assert_restores(&mut rig, 100).await;
    }
}

/// A step may be sealed again by another algorithm: it shares no digest with the first.
#[tokio::test(flavor = "multi_thread")]
async fn both_algorithms_lie_side_by_side_in_one_run() {
    let (_server, mut rig) = on_s3(StrictS3Options::default()).await;
    rig.push_durably(&rig.write_step(100, FILES, 1, 1_000)).await;
    rig.digest = Sha256;
    rig.push_durably(&rig.write_step(200, FILES, 1, 2_000)).await;
    rig.digest = Blake3;
    rig.push_durably(&rig.write_step(300, FILES, 1, 3_000)).await;
    assert_eq!(rig.committed().await, [id(1, 100), id(1, 200), id(1, 300)]);
    assert_restores(&mut rig, 300).await;
}

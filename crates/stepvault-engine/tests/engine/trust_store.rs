//! Steps that are imported with the checksums of their store: no byte is read before a restore, which proves all of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::digest::{Crc32c, DigestAlgorithm, PartDigest};
use stepvault_core::manifest::PartManifest;
use stepvault_core::remote_settings::ReadBack;
use stepvault_core::{ErrorKind, Result};
use stepvault_engine::import::{
    ImportOutcome, ImportPlan, ImportRequest, Imports, StepToImport, import_steps, plan_import,
};
use stepvault_engine::prune::prune_remote;
use stepvault_engine::restore::{RestoreRequest, Target, restore};
use stepvault_engine::tier::catalog::{read_commit, read_manifests};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::verify::{Depth, StepHealth, check_remote};
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::objects::Objects;
use stepvault_testkit::s3::{StrictS3, StrictS3Options};
use stepvault_testkit::stores::File;

use crate::copying::copy;
use crate::harness::{Rig, asked, id, run_name, text};
use crate::import::{OLD, contents, now, request, restored};

/// Of two parts, of one, and of no byte.
const FILES: [(&str, usize); 3] = [("big.dat", (8 << 20) + 5), ("sub/small.dat", 70_000), ("empty.dat", 0)];
const STEP: u64 = 10;

/// Writes a step as a tool does that gives no SHA-256: S3 keeps a CRC-64/NVME then, and Google Cloud Storage a CRC-32C.
async fn write_objects(rig: &Rig, step: u64, algorithm: DigestAlgorithm) {
    let (root, store) = (rig.write_step(step, &FILES, step, 1_000), &*rig.stores[0]);
    for (seed, (path, size)) in (0..).zip(FILES) {
        let (key, file) = (format!("{OLD}/step_{step}/{path}"), File::by(algorithm, size, step + seed));
        std::fs::write(root.join(path), &file.bytes).unwrap();
        match &file.parts[..] {
            [(bytes, digest)] => drop(store.create(&key, bytes.clone().into(), digest).await.unwrap()),
            _ => drop(file.upload(store, &key).await.unwrap()),
        }
    }
}

/// What the tool wrote.
fn original(rig: &Rig, step: u64) -> PathBuf {
    rig.outputs().join(format!("step_{step}"))
}

fn trusting(rig: &Rig) -> ImportRequest {
    ImportRequest { trusts_store: true, ..request(rig, OLD) }
}

async fn carry_out(rig: &Rig, steps: &[StepToImport]) -> Result<()> {
    let imports = Imports {
        remote: &rig.remotes[0],
        vault: Some(&rig.vault),
        digest: Some(rig.digest),
        observer: &rig.observer,
    };
    for (_, outcome) in import_steps(&imports, steps).await? {
        assert_eq!(outcome?, ImportOutcome::Imported);
    }
    Ok(())
}

async fn imported(rig: &Rig) -> ImportPlan {
    let plan = plan_import(&trusting(rig), now()).await.unwrap();
    carry_out(rig, &plan.steps).await.unwrap();
    plan
}

async fn on_s3(server: &StrictS3) -> Rig {
    let rig = Rig::with_s3(server).await;
    write_objects(&rig, STEP, DigestAlgorithm::Blake3).await;
    rig
}

async fn on_gcs(server: &StrictGcs) -> Rig {
    let mut rig = Rig::new();
    rig.add_gcs("google", server).await;
    write_objects(&rig, STEP, DigestAlgorithm::Sha256).await;
    rig
}

async fn health(remote: &RunRemote, rig: &Rig, depth: Depth) -> StepHealth {
    check_remote(remote, id(1, STEP), depth, &rig.observer).await.unwrap()
}

async fn manifest(remote: &RunRemote) -> PartManifest {
    let commit = read_commit(remote, id(1, STEP)).await.unwrap();
    read_manifests(remote, &commit).await.unwrap().pop().unwrap()
}

/// The key of an object of the step on a server.
fn stored_key(objects: &Objects, path: &str) -> String {
    let is_it = |key: &String| key.ends_with(&format!("{OLD}/step_{STEP}/{path}"));
    objects.keys().into_iter().find(is_it).unwrap()
}

async fn is_restored(rig: &Rig, into: &Path) {
    assert!(contents(&restored(rig, STEP, into).await) == contents(&original(rig, STEP)));
}

async fn is_trusted_and_restored(rig: &Rig, checksum: &str) {
    let plan = imported(rig).await;
    let bytes: u64 = FILES.iter().map(|(_, bytes)| *bytes as u64).sum();
    let step = &plan.steps[0];
    assert_eq!((step.read_bytes(), step.trusted_bytes(), step.trusted_files()), (0, bytes, 3));
    let manifest = manifest(&rig.remotes[0]).await;
    for file in &manifest.files {
        let trusted = file.trusted_checksum().unwrap().to_string();
        assert!(trusted.starts_with(checksum), "{trusted}");
        assert_eq!(file.digest(), None);
    }
    for (depth, read_bytes) in [(Depth::Checksums, 0), (Depth::Deep, bytes)] {
        let health = health(&rig.remotes[0], rig, depth).await;
        assert_eq!((health.faults.as_slice(), health.proved_files), (&[][..], 3));
        assert_eq!((health.unproved_files, health.read_bytes), (0, read_bytes));
    }
    let into = rig.directory.path().join("restored");
    is_restored(rig, &into).await;
    // What is there is compared by the checksum, and not read again.
    is_restored(rig, &into).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_reads_no_object_of_s3_with_a_checksum_of_the_whole() {
    let server = StrictS3::start();
    let rig = on_s3(&server).await;
    let read = || FILES.iter().map(|(path, _)| asked(server.faults(), "GET", path)).sum::<usize>();
    let plan = plan_import(&trusting(&rig), now()).await.unwrap();
    // The heads of the files tell whether the step is complete.
    let judged = read();
    carry_out(&rig, &plan.steps).await.unwrap();
    assert_eq!(read(), judged);
    let remote = &rig.remotes[0];
    prune_remote(&rig.remote_prune(1)).await.unwrap();
    assert_eq!(read(), judged, "a prune proves the step by the store's checksum");
    for key in [remote.keys.commit(id(1, STEP)), remote.keys.part(id(1, STEP), &manifest(remote).await.node)]
    {
        let record = remote.read_small(&key).await.unwrap().unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        assert_eq!(record["format"], 3, "a program that knows format 2 refuses {key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_on_s3_is_restored_and_proved_by_its_checksums() {
    let server = StrictS3::start();
    is_trusted_and_restored(&on_s3(&server).await, "crc64nvme ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_on_gcs_is_restored_and_proved_by_its_checksums() {
    let server = StrictGcs::start();
    is_trusted_and_restored(&on_gcs(&server).await, "crc32c ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_object_is_found_by_a_restore_and_a_deep_verification() {
    for (path, byte) in [("big.dat", 3), ("big.dat", 8 << 20), ("sub/small.dat", 69_999)] {
        let server = StrictS3::start();
        let rig = on_s3(&server).await;
        imported(&rig).await;
        assert!(server.objects().flip_bit(&stored_key(server.objects(), path), byte));
        let remote = &rig.remotes[0];
        assert!(
            health(remote, &rig, Depth::Checksums).await.is_sound(),
            "the store reports the old checksum"
        );
        let health = health(remote, &rig, Depth::Deep).await;
        assert_eq!((health.faults.len(), health.proved_files), (1, 2), "{health:?}");
        assert!(health.faults[0].starts_with(path), "{health:?}");
        let into = rig.directory.path().join("restored");
        let request = RestoreRequest::newest(run_name(), Target::Into(into.clone()));
        let (error, message) = text(restore(&rig.context(), &request).await);
        assert!(message.contains(path) && message.contains("crc64nvme"), "{:?}: {message}", error.kind());
        assert!(!into.join(format!("step_{STEP}")).exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_was_replaced_is_found_without_a_read() {
    let s3 = StrictS3::start();
    let gcs = StrictGcs::start();
    for (rig, algorithm) in
        [(on_s3(&s3).await, DigestAlgorithm::Blake3), (on_gcs(&gcs).await, DigestAlgorithm::Sha256)]
    {
        imported(&rig).await;
        let key = format!("{OLD}/step_{STEP}/sub/small.dat");
        rig.stores[0].delete(std::slice::from_ref(&key)).await.unwrap();
        let (bytes, digest) = File::by(algorithm, 70_000, 999).parts.remove(0);
        rig.stores[0].create(&key, bytes.into(), &digest).await.unwrap();
        let health = health(&rig.remotes[0], &rig, Depth::Checksums).await;
        assert_eq!(health.faults, ["sub/small.dat: the store's checksum differs from the recorded one"]);
    }
}

/// S3 keeps what its writer chose; only a CRC of the whole object can be compared with ranges of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_without_a_usable_checksum_is_read() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    write_objects(&rig, STEP, DigestAlgorithm::Sha256).await;
    let plan = plan_import(&trusting(&rig), now()).await.unwrap();
    let all: u64 = FILES.iter().map(|(_, bytes)| *bytes as u64).sum();
    assert_eq!((plan.steps[0].read_bytes(), plan.steps[0].trusted_files()), (all, 0));
    // Another program gave a CRC-32C for one object, and one over those of the parts for another.
    server.objects().with(|objects| {
        for (key, object) in objects.iter_mut().filter(|(key, _)| key.contains(OLD)) {
            let crc32c = Crc32c::of(&object.body).to_base64();
            let parts = if key.ends_with("big.dat") { "-2" } else { "" };
            if !key.ends_with("empty.dat") {
                object.checksums = [("crc32c".to_owned(), format!("{crc32c}{parts}"))].into();
            }
        }
    });
    let plan = imported(&rig).await;
    assert_eq!((plan.steps[0].trusted_bytes(), plan.steps[0].trusted_files()), (70_000, 1));
    let manifest = manifest(&rig.remotes[0]).await;
    let trusted: Vec<&str> = manifest
        .files
        .iter()
        .filter(|file| file.digests().is_none())
        .map(|file| file.path.as_str())
        .collect();
    assert_eq!((trusted, manifest.digest), (vec!["sub/small.dat"], DigestAlgorithm::Sha256));
    let health = health(&rig.remotes[0], &rig, Depth::Deep).await;
    assert_eq!((health.faults.as_slice(), health.proved_files), (&[][..], 3));
    is_restored(&rig, &rig.directory.path().join("restored")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_checksums_of_its_own_is_refused() {
    let rig = Rig::with_directory().await;
    write_objects(&rig, STEP, DigestAlgorithm::Sha256).await;
    let (error, message) = text(plan_import(&trusting(&rig), now()).await);
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(message.ends_with("a directory keeps none"), "{message}");
    assert!(error.hint_text().unwrap().contains("without --trust-store"));
    let server = StrictS3::start();
    let mut rig = on_s3(&server).await;
    let mut settings = (*rig.remotes[0].settings).clone();
    settings.read_back = ReadBack::Always;
    rig.remotes[0].settings = Arc::new(settings);
    let (_, message) = text(plan_import(&trusting(&rig), now()).await);
    assert!(message.contains("read-back"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_accepts_wrong_checksums_is_not_trusted() {
    let options = StrictS3Options { accept_wrong_checksums: true, ..StrictS3Options::default() };
    let server = StrictS3::start_with(options);
    let rig = on_s3(&server).await;
    let plan = plan_import(&trusting(&rig), now()).await.unwrap();
    assert_eq!(plan.steps[0].trusted_files(), 3);
    let (error, message) = text(carry_out(&rig, &plan.steps).await);
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(message.contains("a probe found"), "{message}");
    assert_eq!(rig.committed().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_was_replaced_since_the_plan_fails_its_step() {
    let server = StrictS3::start();
    let rig = on_s3(&server).await;
    let plan = plan_import(&trusting(&rig), now()).await.unwrap();
    let key = format!("{OLD}/step_{STEP}/sub/small.dat");
    rig.stores[0].delete(std::slice::from_ref(&key)).await.unwrap();
    let (bytes, digest) = File::by(DigestAlgorithm::Blake3, 70_000, 999).parts.remove(0);
    rig.stores[0].create(&key, bytes.into(), &digest).await.unwrap();
    let (error, message) = text(carry_out(&rig, &plan.steps).await);
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(message.contains("its objects changed since they were checked"), "{message}");
    assert_eq!(rig.committed().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_import_that_reads_leaves_the_step_as_it_is() {
    let server = StrictGcs::start();
    let rig = on_gcs(&server).await;
    imported(&rig).await;
    let plan = plan_import(&request(&rig, OLD), now()).await.unwrap();
    assert_eq!((plan.steps.len(), plan.known.len()), (0, 1));
    assert_eq!(plan.warnings, ["1 step imported with --trust-store before: left as it is, and not read"]);
    let plan = plan_import(&trusting(&rig), now()).await.unwrap();
    assert_eq!(plan.warnings, Vec::<String>::new());
}

/// Imports the step, cut off before its commit.
async fn cut_off(rig: &Rig, server: &StrictS3, request: &ImportRequest) {
    server.faults().inject("PUT", "/commits/", u64::MAX, FaultAction::refuse(403, "AccessDenied"));
    let plan = plan_import(request, now()).await.unwrap();
    carry_out(rig, &plan.steps).await.unwrap_err();
    server.faults().clear();
    assert_eq!(rig.committed().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_was_cut_off_is_finished_as_it_was_begun() {
    for (first, digest) in [(false, DigestAlgorithm::Sha256), (true, DigestAlgorithm::Blake3)] {
        let server = StrictS3::start();
        let rig = on_s3(&server).await;
        let of = |trusts_store| ImportRequest { trusts_store, ..request(&rig, OLD) };
        cut_off(&rig, &server, &of(first)).await;
        let again = plan_import(&of(!first), now()).await.unwrap();
        let result = carry_out(&rig, &again.steps).await;
        if first {
            // It would have to read what the other one took from the store.
            let (error, message) = text(result);
            assert_eq!(error.kind(), ErrorKind::Conflict);
            assert!(message.contains("an import with --trust-store has begun it"), "{message}");
            assert!(error.hint_text().unwrap().contains("with --trust-store"));
            assert_eq!(rig.committed().await, []);
            imported(&rig).await;
        } else {
            result.unwrap();
        }
        let found = manifest(&rig.remotes[0]).await;
        assert_eq!((found.trusted_files(), found.digest), (if first { 3 } else { 0 }, digest));
        assert!(health(&rig.remotes[0], &rig, Depth::Deep).await.is_sound());
        let target = tempfile::tempdir().unwrap();
        is_restored(&rig, target.path()).await;
    }
}

/// A checksum does not tell apart what a trainer has saved: a save with the very bytes is stored.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_takes_no_checksum_for_its_files() {
    let server = StrictS3::start();
    let mut rig = on_s3(&server).await;
    // So that all that could tell equal files apart is what the records have.
    rig.digest = DigestAlgorithm::Blake3;
    imported(&rig).await;
    let report = rig.push_durably(&original(&rig, STEP)).await;
    assert_eq!((report.id, report.remotes[0].copied_bytes), (id(1, STEP).next_revision().unwrap(), 0));
}

async fn is_copied(rig: &Rig, target: &Rig) {
    let report = copy(rig, target).await;
    report.steps[0].result.as_ref().unwrap();
    let remote = &target.remotes[0];
    let copy = read_commit(remote, id(1, STEP)).await.unwrap();
    assert_eq!((copy.format, copy.trusted_files(), copy.is_imported()), (1, 0, false));
    for file in &manifest(remote).await.files {
        let path = original(rig, STEP).join(file.path.as_str());
        let bytes = std::fs::read(path).unwrap();
        let parts =
            bytes.chunks(8 << 20).map(|part| PartDigest::by(file.algorithm(), part)).collect::<Vec<_>>();
        assert!(bytes.is_empty() || file.first_difference(&parts).is_none(), "{}", file.path);
    }
    let health = health(remote, target, Depth::Deep).await;
    assert_eq!((health.faults.as_slice(), health.proved_files), (&[][..], 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_digests_of_the_bytes_that_it_read() {
    let (s3, gcs) = (StrictS3::start(), StrictGcs::start());
    for rig in [on_s3(&s3).await, on_gcs(&gcs).await] {
        imported(&rig).await;
        let target = Rig::with_directory().await;
        is_copied(&rig, &target).await;
        // A second one finds it there, and reads nothing.
        let read = asked(s3.faults(), "GET", "big.dat");
        is_copied(&rig, &target).await;
        assert_eq!(asked(s3.faults(), "GET", "big.dat"), read);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_on_from_a_machine_that_has_no_journal() {
    let (s3, other) = (StrictS3::start(), StrictS3::start());
    let rig = on_s3(&s3).await;
    imported(&rig).await;
    let target = Rig::with_s3(&other).await;
    other.faults().inject("PUT", ".stepvault/parts", u64::MAX, FaultAction::refuse(403, "AccessDenied"));
    let report = copy(&rig, &target).await;
    assert!(report.steps[0].result.is_err());
    assert_eq!(target.committed().await, []);
    other.faults().clear();
    let read = asked(s3.faults(), "GET", "big.dat");
    let another = Rig::with_s3(&other).await;
    is_copied(&rig, &another).await;
    assert_eq!(asked(s3.faults(), "GET", "big.dat"), read, "what is there is compared");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_source_is_not_copied() {
    for path in ["big.dat", "sub/small.dat"] {
        let server = StrictS3::start();
        let rig = on_s3(&server).await;
        imported(&rig).await;
        assert!(server.objects().flip_bit(&stored_key(server.objects(), path), 5));
        let target = Rig::with_directory().await;
        let report = copy(&rig, &target).await;
        let (error, message) = text(report.steps.into_iter().next().unwrap().result);
        assert_eq!(error.kind(), ErrorKind::Damaged, "{message}");
        assert!(message.contains(path), "{message}");
        assert_eq!(target.committed().await, []);
    }
}

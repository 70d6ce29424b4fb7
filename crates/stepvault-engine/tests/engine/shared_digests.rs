//! A step's bytes are hashed once for all remotes, and what each remote stores is still held against that digest.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::ids::StepId;
use stepvault_core::path::RelativePath;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_engine::push::identify_and_seal;
use stepvault_engine::upload::{SharedDigests, UploadSession, Uploaded};
use stepvault_local::sealed::SealedStep;
use stepvault_remote::s3::StaticKeys;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, id, run_name};

const PART_BYTES: usize = 8 << 20;

/// Adds a server under another URL than the first.
async fn add_second(rig: &mut Rig, server: &StrictS3) {
    server.create_bucket("bucket");
    let keys =
        StaticKeys { access_key: server.access_key().to_owned(), secret_key: server.secret_key().to_owned() };
    let adjust = |settings: &mut RemoteSettings| settings.endpoint = Some(server.endpoint());
    rig.add("second", "s3://bucket/second", adjust, Some(keys)).await;
}

async fn session(rig: &Rig, remote: usize, digests: &SharedDigests) -> UploadSession {
    let (remote, observer) = (rig.remotes[remote].clone(), rig.observer.clone());
    let session = UploadSession::open(remote, rig.vault.clone(), rig.budget.clone(), observer, rig.digest);
    session.await.unwrap().with_digests(digests)
}

async fn sealed(rig: &Rig, step: u64, size: usize) -> SealedStep {
    let source = rig.write_step(step, &[("big.bin", size), ("small", 10)], step, 1_000);
    identify_and_seal(&rig.vault, &[], rig.request(&source), &rig.observer).await.unwrap();
    let id: StepId = id(1, step);
    rig.vault.step(&run_name(), id).unwrap().unwrap()
}

/// Changes a sealed file behind everyone's back: size and time stay.
fn rot(sealed: &SealedStep, offset: u64) {
    let path = sealed.file_path(&RelativePath::new("big.bin").unwrap());
    let before = std::fs::metadata(&path).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_changed_after_they_were_hashed_reach_no_second_remote() {
    for (size, part) in [(3 * PART_BYTES, 1), (2 << 20, 0)] {
        let (first, second) = (StrictS3::start(), StrictS3::start());
        let mut rig = Rig::with_s3(&first).await;
        add_second(&mut rig, &second).await;
        let sealed = sealed(&rig, 1, size).await;
        let digests = SharedDigests::default();
        let uploaded = session(&rig, 0, &digests).await.upload(&sealed).await.unwrap();
        assert_eq!(uploaded, Uploaded::Durable);
        rot(&sealed, part * PART_BYTES as u64 + 5);
        let error = session(&rig, 1, &digests).await.upload(&sealed).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SourceChanged, "{error}");
        let keys = second.objects().keys();
        assert!(!keys.iter().any(|key| key.contains("/commits/")), "{keys:?}");
        // The store refused the part that differs twice, so its digest came from the first upload.
        let parts = (size / PART_BYTES).max(1);
        assert_eq!(asked(second.faults(), "PUT", "big.bin"), parts + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn remotes_that_are_sent_to_at_once_wait_for_the_digest_and_no_longer() {
    let (first, second) = (StrictS3::start(), StrictS3::start());
    let mut rig = Rig::with_s3(&first).await;
    add_second(&mut rig, &second).await;
    let sealed = sealed(&rig, 1, 5 * PART_BYTES + 3).await;
    let digests = SharedDigests::default();
    let (one, other) = (session(&rig, 0, &digests).await, session(&rig, 1, &digests).await);
    // One of them may be given up in the middle of a part.
    let _ = tokio::time::timeout(Duration::from_millis(40), one.upload(&sealed)).await;
    let (uploaded, again) = tokio::join!(other.upload(&sealed), one.upload(&sealed));
    assert_eq!(uploaded.unwrap(), Uploaded::Durable);
    assert!(again.unwrap().is_durable());
    let data = |server: &StrictS3| {
        let keys = server.objects().keys().into_iter();
        let key = keys.into_iter().find(|key| key.ends_with("big.bin")).unwrap();
        server.objects().body(&key).unwrap()
    };
    assert!(data(&first) == data(&second));
}

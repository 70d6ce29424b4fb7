//! s3s-fs keeps preconditions, and knows nothing of the checksums of parts.

use std::sync::Arc;

use stepvault_core::ErrorKind;
use stepvault_core::digest::DigestAlgorithm;
use stepvault_remote::probe::{StoreGuarantees, probe};
use stepvault_remote::store::{RemoteStore, StoredChecksum};
use stepvault_testkit::s3::EmbeddedS3Fs;

use crate::opened::{BUCKET, keys, s3};
use crate::support::{File, listed};
use crate::wrong;

async fn start() -> (EmbeddedS3Fs, Arc<dyn RemoteStore>) {
    let server = EmbeddedS3Fs::start();
    server.create_bucket(BUCKET);
    let store = s3(&server.endpoint(), server.access_key(), server.secret_key()).await;
    (server, store)
}

#[tokio::test]
async fn it_is_not_trusted() {
    let (_server, store) = start().await;
    let trust = probe(&*store, &keys(), DigestAlgorithm::Sha256).await.unwrap();
    assert_eq!(
        trust,
        StoreGuarantees {
            algorithm: DigestAlgorithm::Sha256,
            checks_record_checksums: false,
            checks_object_checksums: false,
            checks_part_checksums: false,
            returns_checksums: false,
            honours_create_only: true,
            completes_create_only: true,
            ignored_attributes: Vec::new(),
            cleaned_up: true,
        }
    );
    assert_eq!(listed(&*store, "").await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn an_object_that_it_refused_and_kept_proves_nothing() {
    let (_server, store) = start().await;
    let error = wrong::object(&*store, "wrong/object").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    wrong::assert_unproven(&*store, "wrong/object").await;
}

#[tokio::test]
async fn wrong_checksums_of_parts_that_it_takes_prove_nothing() {
    let (_server, store) = start().await;
    let outcome = wrong::part(&*store, "wrong/part").await;
    wrong::assert_taken_and_unproven(&*store, "wrong/part", outcome).await;
    let outcome = wrong::whole(&*store, "wrong/whole").await;
    wrong::assert_taken_and_unproven(&*store, "wrong/whole", outcome).await;
}

#[tokio::test]
async fn an_upload_in_parts_that_it_tells_no_checksum_of_has_to_be_read() {
    let (_server, store) = start().await;
    let file = File::new((8 << 20) + 1, 3);
    file.upload(&*store, "parts").await.unwrap();
    let head = store.head("parts").await.unwrap().unwrap();
    assert_eq!(head.checksum, StoredChecksum::None);
    assert_eq!(head.checksum.proves(&file.digest, &file.part_digests()), None);
}

#[tokio::test]
async fn a_wrong_secret_is_refused_as_what_it_is() {
    let (server, _) = start().await;
    let store = s3(&server.endpoint(), server.access_key(), "another-secret").await;
    let error = probe(&*store, &keys(), DigestAlgorithm::Sha256).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains("another-secret"), "{error}");
}

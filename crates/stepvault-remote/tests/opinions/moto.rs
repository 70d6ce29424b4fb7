//! moto keeps preconditions and uploads in order, and takes every checksum and every secret.

use std::sync::Arc;

use stepvault_core::ErrorKind;
use stepvault_core::digest::DigestAlgorithm;
use stepvault_remote::probe::{StoreGuarantees, probe};
use stepvault_remote::store::{Created, RemoteStore, ThawSpeed, Thawed};
use stepvault_testkit::peers::Moto;

use crate::opened::{BUCKET, PREFIX, keys, s3};
use crate::support::{File, bytes, create, listed, read};
use crate::{conformance, wrong};

async fn start() -> (Moto, Arc<dyn RemoteStore>) {
    let server = Moto::start();
    server.create_bucket(BUCKET);
    let store = s3(&server.endpoint(), "any-key", "any-secret").await;
    (server, store)
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn what_it_does_right() {
    let (_server, store) = start().await;
    // It takes wrong digests, a copy has a checksum where the original has none, and a copied part has none.
    let skipped =
        ["wrong_digests_are_refused", "copies_keep_bytes_and_proof", "copied_parts_are_what_was_asked_for"];
    conformance::run(store, &skipped).await;
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn an_archived_object_is_read_after_it_was_requested() {
    let (server, store) = start().await;
    server.archive(&format!("{BUCKET}/{PREFIX}/old"), b"weights");
    assert_eq!(read(&*store, "old", None).await.unwrap_err().kind(), ErrorKind::Archived);
    let asked = store.thaw("old", ThawSpeed::Standard).await.unwrap();
    assert_eq!(asked, Thawed::Pending { class: "GLACIER".to_owned() });
    // Its archive takes no time.
    assert_eq!(store.thaw("old", ThawSpeed::Standard).await.unwrap(), Thawed::Readable);
    assert_eq!(read(&*store, "old", None).await.unwrap(), b"weights");
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
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
    assert_eq!(store.pending_uploads("").await.unwrap(), vec![]);
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn wrong_checksums_that_it_takes_prove_nothing() {
    let (_server, store) = start().await;
    let outcome = wrong::object(&*store, "wrong/object").await;
    wrong::assert_taken_and_unproven(&*store, "wrong/object", outcome).await;
    let outcome = wrong::part(&*store, "wrong/part").await;
    wrong::assert_taken_and_unproven(&*store, "wrong/part", outcome).await;
    let outcome = wrong::whole(&*store, "wrong/whole").await;
    wrong::assert_taken_and_unproven(&*store, "wrong/whole", outcome).await;
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn an_object_replaced_behind_our_back_is_no_longer_proven() {
    let (server, store) = start().await;
    let file = File::new((8 << 20) + 1, 3);
    file.upload(&*store, "object").await.unwrap();
    server.overwrite(&format!("{BUCKET}/{PREFIX}/object"), &bytes((8 << 20) + 1, 4));
    let head = store.head("object").await.unwrap().unwrap();
    assert_eq!(head.info.size_bytes, file.digest.size_bytes, "its size tells nothing");
    assert_ne!(head.checksum.proves(&file.digest, &file.part_digests()), Some(true), "{head:?}");
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn its_copies_that_would_replace_are_not_asked_for() {
    let (_server, store) = start().await;
    let (from, to) = (bytes(3_000, 1), bytes(2_000, 2));
    create(&*store, "copy/from", &from).await.unwrap();
    create(&*store, "copy/to", &to).await.unwrap();
    assert_eq!(store.copy("copy/from", "copy/to").await.unwrap(), Created::Exists);
    assert_eq!(read(&*store, "copy/to", None).await.unwrap(), to);
    assert!(matches!(store.copy("copy/from", "copy/free").await.unwrap(), Created::Written(_)));
    assert_eq!(read(&*store, "copy/free", None).await.unwrap(), from);
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn completing_twice_changes_nothing() {
    let (_server, store) = start().await;
    let file = File::new((8 << 20) + 1, 3);
    let upload = store.start_upload("twice", file.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let receipts = file.send(&*store, "twice", &upload).await.unwrap();
    let first = store.complete_upload("twice", &upload, &receipts, &file.digest).await.unwrap();
    assert!(matches!(first, Created::Written(_)), "{first:?}");
    // It takes that a second time, in spite of the precondition and of the upload being gone.
    let second = store.complete_upload("twice", &upload, &receipts, &file.digest).await.unwrap();
    assert!(matches!(second, Created::Written(_)), "{second:?}");
    assert_eq!(read(&*store, "twice", None).await.unwrap(), file.bytes);
    assert_eq!(listed(&*store, "").await.unwrap(), ["twice"]);
}

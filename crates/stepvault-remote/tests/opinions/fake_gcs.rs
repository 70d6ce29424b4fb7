//! fake-gcs-server reads, lists, creates and composes in order; it takes every checksum, replaces what a resumable upload
//! must not replace, and knows no uploads in parts through the XML API.

use std::sync::Arc;

use stepvault_core::ErrorKind;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::remote_settings::Transport;
use stepvault_remote::probe::probe;
use stepvault_remote::store::{Created, RemoteStore};
use stepvault_testkit::peers::FakeGcs;

use crate::opened::{BUCKET, PREFIX, gcs, keys};
use crate::support::{bytes, create, listed, read};
use crate::{conformance, wrong};

async fn start() -> (FakeGcs, Arc<dyn RemoteStore>) {
    start_with(Transport::Xml).await
}

async fn start_with(transport: Transport) -> (FakeGcs, Arc<dyn RemoteStore>) {
    let server = FakeGcs::start();
    server.create_bucket(BUCKET);
    let store = gcs(&server.endpoint(), transport).await;
    (server, store)
}

/// It replaces objects by compositions and copies, whatever their condition.
const NEED_CONDITIONS: [&str; 2] = ["an_upload_never_replaces", "copies_keep_bytes_and_proof"];

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn through_the_json_api_it_has_uploads_in_parts() {
    let (_server, store) = start_with(Transport::Json).await;
    conformance::run(Arc::clone(&store), &NEED_CONDITIONS).await;
    let trust = probe(&*store, &keys(), DigestAlgorithm::Sha256).await.unwrap();
    // What it takes with a wrong checksum is found in its answer and removed, which a probe sees as a refusal.
    assert!(
        trust.checks_object_checksums
            && trust.checks_part_checksums
            && trust.returns_checksums
            && trust.honours_create_only
            && trust.cleaned_up,
        "{trust:?}"
    );
    assert!(!trust.completes_create_only, "it no longer ignores the condition");
}

/// It has no uploads in parts.
const NEED_XML_WRITES: [&str; 8] = [
    "odd_keys_mean_themselves",
    "missing_objects_are_told_from_errors",
    "an_upload_in_parts_becomes_one_object",
    "an_empty_upload_becomes_an_empty_object",
    "an_aborted_upload_leaves_nothing",
    "wrong_digests_are_refused",
    "a_wrong_digest_of_the_whole_is_noticed",
    "copies_keep_bytes_and_proof",
];

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn what_it_does_right() {
    let (_server, store) = start().await;
    conformance::run(store, &NEED_XML_WRITES).await;
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn odd_keys_are_kept() {
    let (_server, store) = start().await;
    let odd = ["odd/with space/file name.bin", "odd/per%cent+plus#hash?.json", "odd/ümläut/日本.pt"];
    for (seed, key) in (1..).zip(odd) {
        create(&*store, key, &bytes(100, seed)).await.unwrap();
    }
    for (seed, key) in (1..).zip(odd) {
        assert_eq!(read(&*store, key, None).await.unwrap(), bytes(100, seed), "{key}");
    }
    let mut wanted = odd.map(str::to_owned).to_vec();
    wanted.sort();
    assert_eq!(listed(&*store, "odd/").await.unwrap(), wanted);
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn copies_are_made_by_rewriting() {
    let (_server, store) = start().await;
    let (from, to) = ("copy/from #1.bin", "copy/to/ü.bin");
    create(&*store, from, &bytes(1_000, 1)).await.unwrap();
    let Created::Written(head) = store.copy(from, to).await.unwrap() else { panic!("it was free") };
    let digest = PartDigest::of(&bytes(1_000, 1));
    let proven = head.checksum.proves(&FileDigest::from_parts(&[digest]), &[digest.content]);
    assert_eq!(proven, Some(true), "{head:?}");
    assert_eq!(read(&*store, to, None).await.unwrap(), bytes(1_000, 1));
    let error = store.copy("copy/none", "copy/other").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn a_wrong_checksum_that_it_takes_is_found_in_its_answer() {
    let (_server, store) = start().await;
    let error = wrong::object(&*store, "wrong/object").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    // Its own refusal would say so in its own words; these are ours, after the object was written.
    let text = error.to_string();
    assert!(text.contains("the store holds 1000 bytes with CRC-32C"), "{text}");
    assert!(text.contains(&wrong::digest().crc32c.to_string()), "{text}");
    assert_eq!(store.head("wrong/object").await.unwrap(), None, "what was found wrong does not stay");
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn an_object_replaced_in_spite_of_its_precondition_is_found() {
    let (server, store) = start().await;
    let (ours, theirs) = (bytes(1_000, 1), bytes(1_000, 2));
    create(&*store, "run/object", &ours).await.unwrap();
    let status = server.create_resumably(BUCKET, &format!("{PREFIX}/run/object"), &theirs);
    assert_eq!(status, 200, "it no longer ignores the precondition");
    assert_eq!(read(&*store, "run/object", None).await.unwrap(), theirs);
    // What stepvault would look at before it calls the object its own.
    let head = store.head("run/object").await.unwrap().unwrap();
    let digest = PartDigest::of(&ours);
    let proven = head.checksum.proves(&FileDigest::from_parts(&[digest]), &[digest.content]);
    assert_eq!(proven, Some(false), "{head:?}");
    // Stepvault's own creates are asked for in one request, where it keeps the precondition.
    assert_eq!(create(&*store, "run/object", &ours).await.unwrap(), Created::Exists);
    assert_eq!(read(&*store, "run/object", None).await.unwrap(), theirs);
}

#[tokio::test]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn without_uploads_in_parts_it_gets_no_verdict() {
    let (_server, store) = start().await;
    let error = probe(&*store, &keys(), DigestAlgorithm::Sha256).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(error.to_string().starts_with("cannot begin an upload: gs://checkpoints/vault/run/"), "{error}");
    assert_eq!(listed(&*store, "").await.unwrap(), Vec::<String>::new());
}

//! What only uploads through the JSON API do: temporary objects, compositions of compositions, create-only completion.

use stepvault_core::ErrorKind;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::remote_settings::Transport;
use stepvault_remote::store::{Created, PartReceipt, RemoteStore, StoredChecksum};
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::gcs::StrictGcsOptions;

use super::{BUCKET, large, open, payload, start, start_with, stored};
use crate::support::{bytes, create, listed, read, send_part, written};

const TEMPORARY: &str = ".stepvault-uploads/";

/// Returns the temporary objects of the remote.
fn temporary(server: &stepvault_testkit::gcs::StrictGcs) -> Vec<String> {
    let prefix = format!("{BUCKET}/team/vault/{TEMPORARY}");
    let keys = server.objects().keys().into_iter();
    keys.filter(|key| key.starts_with(&prefix)).collect()
}

/// Sends `count` small parts and returns what completes them.
async fn send_small(
    store: &dyn RemoteStore,
    key: &str,
    upload: &str,
    count: u32,
) -> (Vec<PartReceipt>, FileDigest) {
    let mut receipts = Vec::new();
    for index in 0..count {
        let body = bytes(10, u64::from(index));
        receipts.push(send_part(store, key, upload, index, &body).await.unwrap());
    }
    let digests: Vec<PartDigest> = receipts.iter().map(|receipt| receipt.digest).collect();
    (receipts, FileDigest::from_parts(&digests))
}

#[tokio::test]
async fn more_parts_than_one_request_joins_are_joined_in_steps() {
    let (server, store) = start(Transport::Json).await;
    // 1,025 parts are 33 groups, and these are two.
    for (count, requests) in [(1, 1), (32, 1), (33, 3), (1_025, 36)] {
        let key = format!("run/of-{count}");
        let upload = store.start_upload(&key, 10 * u64::from(count), DigestAlgorithm::Sha256).await.unwrap();
        let (receipts, digest) = send_small(&*store, &key, &upload, count).await;
        server.faults().clear_requests();
        let head = written(store.complete_upload(&key, &upload, &receipts, &digest).await.unwrap());
        assert_eq!(head.checksum, StoredChecksum::Crc32c(digest.crc32c));
        let composed = server.faults().requests();
        let composed = composed.iter().filter(|request| request.path.contains("/compose"));
        assert_eq!(composed.count(), requests, "{count} parts");
        let whole: Vec<u8> = (0..count).flat_map(|index| bytes(10, u64::from(index))).collect();
        assert_eq!(stored(&server, &key).expect("an object"), whole);
        assert_eq!(temporary(&server), Vec::<String>::new());
    }
}

#[tokio::test]
async fn temporary_objects_are_no_objects_of_the_remote() {
    let (server, store) = start(Transport::Json).await;
    let upload = store.start_upload("run/big", 20, DigestAlgorithm::Sha256).await.unwrap();
    send_small(&*store, "run/big", &upload, 2).await;
    assert_eq!(temporary(&server).len(), 3);
    let other = open(&server, Transport::Xml).await;
    for store in [&store, &other] {
        assert_eq!(listed(&**store, "").await.unwrap(), Vec::<String>::new());
        assert_eq!(listed(&**store, "run/").await.unwrap(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn pending_uploads_are_found_on_any_page_and_aborted_whole() {
    let options = StrictGcsOptions { list_page_size: 2, ..StrictGcsOptions::default() };
    let (server, store) = start_with(Transport::Json, options).await;
    let first = store.start_upload("run/a", 50, DigestAlgorithm::Sha256).await.unwrap();
    let (receipts, digest) = send_small(&*store, "run/a", &first, 5).await;
    let second = store.start_upload("run/a", 50, DigestAlgorithm::Sha256).await.unwrap();
    let third = store.start_upload("run/a/b", 50, DigestAlgorithm::Sha256).await.unwrap();
    create(&*store, "run/c", &payload(3)).await.unwrap();
    let pending = async || {
        let pending = store.pending_uploads("run/").await.unwrap();
        assert!(pending.iter().all(|upload| upload.initiated.is_some()));
        let mut pending: Vec<_> = pending.into_iter().map(|one| (one.key, one.upload)).collect();
        pending.sort();
        pending
    };
    let named = |key: &str, upload: &String| (key.to_owned(), upload.clone());
    let mut all = vec![named("run/a", &first), named("run/a", &second), named("run/a/b", &third)];
    all.sort();
    assert_eq!(pending().await, all);
    store.abort_upload("run/a", &first).await.unwrap();
    let mut left = vec![named("run/a", &second), named("run/a/b", &third)];
    left.sort();
    assert_eq!(pending().await, left);
    let gone = store.complete_upload("run/a", &first, &receipts, &digest).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    store.abort_upload("run/a", &second).await.unwrap();
    store.abort_upload("run/a/b", &third).await.unwrap();
    assert_eq!((pending().await, temporary(&server)), (vec![], vec![]));
    assert_eq!(listed(&*store, "").await.unwrap(), ["run/c"]);
}

#[tokio::test]
async fn of_two_completions_at_the_same_moment_one_wins() {
    let (server, store) = start(Transport::Json).await;
    let mut uploads = Vec::new();
    for _ in 0..2 {
        let upload = store.start_upload("run/big", 30, DigestAlgorithm::Sha256).await.unwrap();
        let (receipts, digest) = send_small(&*store, "run/big", &upload, 3).await;
        uploads.push((upload, receipts, digest));
    }
    // Both see a free key: the store decides.
    for _ in 0..2 {
        let delay = FaultAction::Delay(std::time::Duration::from_millis(300));
        server.faults().inject("POST", "compose", 1, delay);
    }
    let complete = |number: usize| {
        let (upload, receipts, digest) = &uploads[number];
        store.complete_upload("run/big", upload, receipts, digest)
    };
    let (one, other) = tokio::join!(complete(0), complete(1));
    let outcomes = [one.unwrap(), other.unwrap()];
    let won = outcomes.iter().filter(|outcome| matches!(outcome, Created::Written(_)));
    assert_eq!(won.count(), 1, "{outcomes:?}");
}

#[tokio::test]
async fn a_part_that_was_sent_again_counts_in_its_newest_form_only() {
    let (_server, store) = start(Transport::Json).await;
    let upload = store.start_upload("run/big", 20, DigestAlgorithm::Sha256).await.unwrap();
    let (older, digest) = send_small(&*store, "run/big", &upload, 2).await;
    let (newer, _) = send_small(&*store, "run/big", &upload, 2).await;
    assert_ne!(older[0].tag, newer[0].tag);
    let gone = store.complete_upload("run/big", &upload, &older, &digest).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    written(store.complete_upload("run/big", &upload, &newer, &digest).await.unwrap());
}

#[tokio::test]
async fn uploads_of_the_other_transport_do_not_exist() {
    let (server, json) = start(Transport::Json).await;
    let xml = open(&server, Transport::Xml).await;
    let large = large();
    for (first, second) in [(&xml, &json), (&json, &xml)] {
        let upload =
            first.start_upload("run/big", large.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
        let receipts = large.send(&**first, "run/big", &upload).await.unwrap();
        let errors = [
            large.send_part(&**second, "run/big", &upload, 0).await.unwrap_err(),
            second.complete_upload("run/big", &upload, &receipts, &large.digest).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        }
        second.abort_upload("run/big", &upload).await.unwrap();
        assert_eq!(first.pending_uploads("run/").await.unwrap().len(), 1);
        first.abort_upload("run/big", &upload).await.unwrap();
    }
}

#[tokio::test]
async fn parts_that_could_not_be_deleted_are_pending_and_the_object_is_complete() {
    let (server, store) = start(Transport::Json).await;
    let upload = store.start_upload("run/big", 20, DigestAlgorithm::Sha256).await.unwrap();
    let (receipts, digest) = send_small(&*store, "run/big", &upload, 2).await;
    let refuse =
        FaultAction::Refuse { status: 403, retry_after_seconds: None, code: "AccessDenied".to_owned() };
    server.faults().inject("DELETE", "", 3, refuse);
    written(store.complete_upload("run/big", &upload, &receipts, &digest).await.unwrap());
    // The first refusal ended the deletions.
    server.faults().clear();
    let pending = store.pending_uploads("run/").await.unwrap();
    assert_eq!((pending.len(), &pending[0].upload), (1, &upload));
    store.abort_upload("run/big", &upload).await.unwrap();
    assert_eq!(temporary(&server), Vec::<String>::new());
    assert_eq!(read(&*store, "run/big", None).await.unwrap().len(), 20);
}

#[tokio::test]
async fn an_answer_that_is_no_listing_is_not_an_empty_one() {
    let (server, store) = start(Transport::Json).await;
    create(&*store, "run/a", &payload(3)).await.unwrap();
    let with_error = FaultAction::OkWithError { code: "InternalError".to_owned() };
    server.faults().inject("GET", "/o?", 2, with_error);
    let error = listed(&*store, "run/").await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().ends_with("the store's answer is not a listing"), "{error}");
    let error = store.pending_uploads("run/").await.unwrap_err();
    assert!(error.is_transient(), "{error}");
}

#[tokio::test]
async fn names_that_would_be_too_long_are_refused_before_anything_is_sent() {
    let (server, store) = start(Transport::Json).await;
    let key = format!("run/{}", "d/".repeat(470) + "x");
    server.faults().clear_requests();
    let error = store.start_upload(&key, 20, DigestAlgorithm::Sha256).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.hint_text().expect("a hint").contains("transport = \"xml\""));
    assert!(server.faults().requests().is_empty());
}

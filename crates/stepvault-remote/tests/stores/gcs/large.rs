//! Files of several parts: what is sent, completed and proved, and what completes nothing.

use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::digest::{Crc32c, DigestAlgorithm, FileDigest};
use stepvault_core::remote_settings::Transport;
use stepvault_remote::store::{Created, StoredChecksum};
use stepvault_testkit::faults::FaultAction;

use super::{large, open, payload, start, stored};
use crate::support::{create, read, written};

/// Returns what the path of a completion has.
fn completion(transport: Transport) -> &'static str {
    match transport {
        Transport::Xml => "uploadId",
        Transport::Json => "compose",
    }
}

pub(super) async fn a_completed_upload_with_other_bytes_is_removed_and_reported(transport: Transport) {
    let (server, store) = start(transport).await;
    let large = large();
    let upload = store.start_upload("big", large.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let receipts = large.send(&*store, "big", &upload).await.unwrap();
    let wrong = FileDigest { crc32c: Crc32c(1), ..large.digest.clone() };
    let error = store.complete_upload("big", &upload, &receipts, &wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert_eq!(stored(&server, "big"), None);
}

pub(super) async fn large_files_go_in_parts_from_any_process(transport: Transport) {
    let (server, store) = start(transport).await;
    let large = large();
    let upload =
        store.start_upload("dir/big", large.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let second = large.send_part(&*store, "dir/big", &upload, 1).await.unwrap();
    // A restarted agent has the upload's id and the tags from its journal.
    let store = open(&server, transport).await;
    let pending = store.pending_uploads("dir/").await.unwrap();
    assert_eq!((pending[0].key.as_str(), &pending[0].upload), ("dir/big", &upload));
    assert!(pending[0].initiated.is_some_and(|begun| begun.elapsed().unwrap() < Duration::from_mins(1)));
    let first = large.send_part(&*store, "dir/big", &upload, 0).await.unwrap();
    let head =
        written(store.complete_upload("dir/big", &upload, &[first, second], &large.digest).await.unwrap());
    assert_eq!(head.checksum, StoredChecksum::Crc32c(large.digest.crc32c));
    assert_eq!(head.checksum.proves(&large.digest, &[]), Some(true));
    assert_eq!(read(&*store, "dir/big", None).await.unwrap(), large.bytes);
    assert_eq!(store.pending_uploads("").await.unwrap(), []);
}

pub(super) async fn completion_leaves_an_object_that_is_there(transport: Transport) {
    let (server, store) = start(transport).await;
    let large = large();
    let upload = store.start_upload("big", large.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let receipts = large.send(&*store, "big", &upload).await.unwrap();
    create(&*store, "big", &payload(3)).await.unwrap();
    assert_eq!(
        store.complete_upload("big", &upload, &receipts, &large.digest).await.unwrap(),
        Created::Exists
    );
    assert_eq!(stored(&server, "big"), Some(payload(3)));
    store.abort_upload("big", &upload).await.unwrap();
    store.abort_upload("big", &upload).await.expect("one that is gone is no error");
    assert_eq!(server.pending_uploads(), []);
    // Through the JSON API, an upload that is gone is noticed when it is completed.
    if transport == Transport::Xml {
        let error = large.send_part(&*store, "big", &upload, 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}

pub(super) async fn a_wrong_part_list_completes_nothing(transport: Transport) {
    let (server, store) = start(transport).await;
    let large = large();
    let upload = store.start_upload("big", large.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let mut receipts = large.send(&*store, "big", &upload).await.unwrap();
    let first = receipts[0].tag.clone();
    receipts[1].tag = first;
    let error = store.complete_upload("big", &upload, &receipts, &large.digest).await.unwrap_err();
    let kind = match transport {
        Transport::Xml => ErrorKind::Damaged,
        Transport::Json => ErrorKind::NotFound,
    };
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(stored(&server, "big"), None);
}

pub(super) async fn a_lost_answer_leaves_one_whole_object(transport: Transport) {
    let (server, store) = start(transport).await;
    let body = payload(1000);
    server.faults().inject("POST", "uploadType", 1, FaultAction::ApplyThenReset);
    let lost = create(&*store, "a", &body).await.unwrap_err();
    assert!(lost.is_transient(), "{lost}");
    assert_eq!(create(&*store, "a", &body).await.unwrap(), Created::Exists);
    assert_eq!(stored(&server, "a"), Some(body));

    let large = large();
    let upload = store.start_upload("big", large.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let receipts = large.send(&*store, "big", &upload).await.unwrap();
    server.faults().inject("POST", completion(transport), 1, FaultAction::ApplyThenReset);
    let lost = store.complete_upload("big", &upload, &receipts, &large.digest).await.unwrap_err();
    assert!(lost.is_transient(), "{lost}");
    assert_eq!(
        store.complete_upload("big", &upload, &receipts, &large.digest).await.unwrap(),
        Created::Exists
    );
    let head = store.head("big").await.unwrap().expect("it is there");
    assert_eq!(head.checksum.proves(&large.digest, &[]), Some(true));
}

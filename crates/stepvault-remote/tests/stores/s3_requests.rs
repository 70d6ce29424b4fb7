//! What goes over the wire.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use futures::StreamExt as _;
use stepvault_core::ErrorKind;
use stepvault_core::digest::{DigestAlgorithm, PartDigest};
use stepvault_remote::payload::{BlockSource, Payload};
use stepvault_remote::store::StoredChecksum;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3Options;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{BUCKET, File, Strict, bytes, create, listed, read, shown};

#[tokio::test]
async fn attributes_go_with_every_object() {
    let mut strict = Strict::start();
    strict.settings.storage_class = Some("STANDARD_IA".to_owned());
    strict.settings.server_side_encryption = Some("aws:kms".to_owned());
    strict.settings.kms_key = Some("alias/checkpoints".to_owned());
    strict.settings.tags = BTreeMap::from([("team".to_owned(), "pre training&co".to_owned())]);
    strict.settings.expected_bucket_owner = Some("111122223333".to_owned());
    let store = strict.open().await;
    create(&*store, "run/step/a1/small", &bytes(10, 1)).await.unwrap();
    create(&*store, "run/.stepvault/commits/x.json", &bytes(10, 1)).await.unwrap();
    File::new((8 << 20) + 1, 2).upload(&*store, "run/step/a1/large").await.unwrap();
    store.copy("run/step/a1/small", "run/step/a2/small").await.unwrap();
    store.copy("run/step/a1/large", "run/step/a2/large").await.unwrap();
    for (key, class) in [
        ("run/step/a1/small", "STANDARD_IA"),
        ("run/step/a1/large", "STANDARD_IA"),
        ("run/step/a2/small", "STANDARD_IA"),
        ("run/step/a2/large", "STANDARD_IA"),
        ("run/.stepvault/commits/x.json", "STANDARD"),
    ] {
        let object = strict
            .server
            .objects()
            .with(|table| table.get(&format!("{BUCKET}/vault/{key}")).cloned())
            .unwrap();
        let attribute = |name: &str| object.attributes.get(name).map(String::as_str);
        assert_eq!(attribute("x-amz-storage-class"), Some(class), "{key}");
        assert_eq!(attribute("x-amz-server-side-encryption"), Some("aws:kms"), "{key}");
        assert_eq!(
            attribute("x-amz-server-side-encryption-aws-kms-key-id"),
            Some("alias/checkpoints"),
            "{key}"
        );
        assert_eq!(attribute("x-amz-tagging"), Some("team=pre%20training%26co"), "{key}");
    }
}

#[tokio::test]
async fn every_request_says_who_pays() {
    let mut strict =
        Strict::start_with(StrictS3Options { requester_pays: true, ..StrictS3Options::default() });
    let error = listed(&*strict.open_bare().await, "").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    strict.settings.requester_pays = true;
    let store = strict.open_bare().await;
    File::new((8 << 20) + 1, 2).upload(&*store, "a").await.unwrap();
    store.copy("a", "b").await.unwrap();
    assert_eq!(listed(&*store, "").await.unwrap(), ["a", "b"]);
    assert_eq!(read(&*store, "b", Some(0..10)).await.unwrap().len(), 10);
    store.delete(&["a".to_owned(), "b".to_owned()]).await.unwrap();
    assert!(store.head("a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_refusal_says_that_the_requesters_may_have_to_pay() {
    let strict = Strict::start_with(StrictS3Options { requester_pays: true, ..StrictS3Options::default() });
    let error = listed(&*strict.open_bare().await, "").await.unwrap_err();
    assert!(error.hint_text().unwrap().contains("set requester-pays = true"), "{error:?}");
}

#[tokio::test]
async fn a_public_bucket_is_read_without_credentials_and_not_written() {
    let mut strict = Strict::start_with(StrictS3Options { public_reads: true, ..StrictS3Options::default() });
    let file = File::new((1 << 20) + 1, 2);
    create(&*strict.open_bare().await, "a", &file.bytes).await.unwrap();
    strict.server.faults().clear_requests();
    strict.settings.anonymous = true;
    let store = strict.open_bare().await;
    assert_eq!(listed(&*store, "").await.unwrap(), ["a"]);
    assert_eq!(read(&*store, "a", Some(5..10)).await.unwrap(), file.bytes[5..10]);
    assert_eq!(read(&*store, "a", None).await.unwrap(), file.bytes);
    assert!(store.head("a").await.unwrap().is_some());
    assert!(store.head("b").await.unwrap().is_none());
    // Small: a server that refuses it may close the connection before it has read all of it.
    let error = create(&*store, "b", &bytes(2, 100)).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn an_owner_that_no_header_can_carry_is_an_error() {
    let mut strict = Strict::start();
    strict.settings.expected_bucket_owner = Some("999988887777\n".to_owned());
    let store = strict.open_bare().await;
    store.head("a").await.map(drop).unwrap_err();
}

#[tokio::test]
async fn every_request_names_the_expected_owner() {
    let mut strict = Strict::start();
    strict.settings.expected_bucket_owner = Some("999988887777".to_owned());
    let store = strict.open_bare().await;
    let file = File::new(100, 1);
    let digest = PartDigest::of(&file.bytes);
    let keys = ["a".to_owned(), "b".to_owned()];
    let errors = [
        create(&*store, "a", &file.bytes).await.map(drop).unwrap_err(),
        store.replace("a", file.bytes.clone(), &digest).await.unwrap_err(),
        store.start_upload("a", 100, DigestAlgorithm::Sha256).await.map(drop).unwrap_err(),
        store.upload_part("a", "upload", 0, file.bytes.clone().into(), &digest).await.map(drop).unwrap_err(),
        store.abort_upload("a", "upload").await.unwrap_err(),
        store.pending_uploads("").await.map(drop).unwrap_err(),
        store.head("a").await.map(drop).unwrap_err(),
        read(&*store, "a", None).await.map(drop).unwrap_err(),
        listed(&*store, "").await.map(drop).unwrap_err(),
        store.delete(&keys[..1]).await.unwrap_err(),
        store.delete(&keys).await.unwrap_err(),
        store.copy("a", "b").await.map(drop).unwrap_err(),
        store.copy_part("a", "b", "upload", 0, 0, &digest).await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!error.is_transient(), "{error}");
    }
}

#[tokio::test]
async fn one_request_each_with_nothing_around_the_bytes() {
    let strict = Strict::start();
    let store = strict.open().await;
    let file = File::new((8 << 20) + 1, 3);
    create(&*store, "whole", &bytes(1_000, 1)).await.unwrap();
    file.upload(&*store, "parts").await.unwrap();
    let requests = strict.server.faults().requests();
    let seen: Vec<(&str, u64)> = requests
        .iter()
        .filter(|one| one.method == "PUT")
        .map(|one| (one.method.as_str(), one.body_bytes))
        .collect();
    // A length beyond the bytes' own would be an encoding with trailers, which some servers refuse.
    assert_eq!(seen, [("PUT", 1_000), ("PUT", 1), ("PUT", 8 << 20)]);
    assert_eq!(requests.len(), 5, "{requests:?}");
    assert!(requests.iter().all(|one| one.path.starts_with("/checkpoints/vault/")), "{requests:?}");
}

#[tokio::test]
async fn the_store_keeps_the_digests_that_manifests_hold() {
    let strict = Strict::start();
    let store = strict.open().await;
    let (small, large) = (File::new(5_000, 1), File::new((16 << 20) + 1, 2));
    create(&*store, "small", &small.bytes).await.unwrap();
    large.upload(&*store, "large").await.unwrap();
    let checksum = |key: &'static str| {
        let store = &store;
        async move { store.head(key).await.unwrap().unwrap().checksum }
    };
    assert_eq!(checksum("small").await, StoredChecksum::of_part(&small.parts[0].1));
    assert_eq!(checksum("large").await, StoredChecksum::of_file(&large.digest, 3));
    assert_eq!(checksum("large").await.proves(&large.digest, &large.part_digests()), Some(true));
}

#[tokio::test]
async fn stores_without_batch_deletes_or_upload_listings_still_work() {
    let strict = Strict::start();
    let store = strict.open().await;
    let refuse = |code: &str| FaultAction::refuse(501, code);
    strict.inject("POST", "?delete", u64::MAX, refuse("NotImplemented"));
    strict.inject("GET", "uploads", u64::MAX, refuse("NotImplemented"));
    let keys: Vec<String> = (0..20).map(|number| format!("d/{number}")).collect();
    for _ in 0..2 {
        for key in &keys {
            create(&*store, key, &bytes(1, 1)).await.unwrap();
        }
        store.delete(&keys).await.unwrap();
        assert_eq!(listed(&*store, "d/").await.unwrap(), Vec::<String>::new());
    }
    let batches = strict.server.faults().requests().iter().filter(|one| one.method == "POST").count();
    assert_eq!(batches, 1, "it asks again for what it knows is missing");
    assert!(store.capabilities().lists_pending_uploads);
    assert_eq!(store.pending_uploads("").await.unwrap(), vec![]);
    assert!(!store.capabilities().lists_pending_uploads);
}

/// Stores that want another checksum with a list of keys than the one that is sent.
#[tokio::test]
async fn stores_that_refuse_a_batch_for_its_form_are_asked_for_each_key() {
    for (status, code) in [(400, "MissingContentMD5"), (400, "InvalidDigest"), (411, "")] {
        let strict = Strict::start();
        let store = strict.open().await;
        strict.inject("POST", "?delete", u64::MAX, FaultAction::refuse(status, code));
        let keys: Vec<String> = (0..20).map(|number| format!("d/{number}")).collect();
        for key in &keys {
            create(&*store, key, &bytes(1, 1)).await.unwrap();
        }
        store.delete(&keys).await.unwrap();
        assert_eq!(listed(&*store, "d/").await.unwrap(), Vec::<String>::new(), "{code}");
    }
}

#[tokio::test]
async fn a_store_that_refuses_the_form_of_the_checksums_at_completion_is_asked_without_them() {
    for (code, refused) in [("InvalidDigest", 1), ("MalformedXML", 2)] {
        let strict = Strict::start_with(StrictS3Options {
            accept_wrong_checksums: true,
            ..StrictS3Options::default()
        });
        let store = strict.open().await;
        let file = File::new((8 << 20) + 1, 2);
        strict.inject("POST", "uploadId", refused, FaultAction::refuse(400, code));
        for key in ["first", "second"] {
            file.upload(&*store, key).await.unwrap();
            let head = store.head(key).await.unwrap().unwrap();
            assert_eq!(head.checksum.proves(&file.digest, &file.part_digests()), Some(true));
        }
        let completions = strict.server.faults().requests();
        let completions = completions.iter().filter(|one| one.path.contains("uploadId"));
        let posts = completions.filter(|one| one.method == "POST").count() as u64;
        assert_eq!(posts, refused + 2, "what is refused is not sent again");
    }
}

#[tokio::test]
async fn a_batch_that_rights_or_a_token_did_not_allow_is_tried_again_as_one() {
    for code in ["AccessDenied", "ExpiredToken"] {
        let strict = Strict::start();
        let store = strict.open_bare().await;
        strict.inject("POST", "?delete", 1, FaultAction::refuse(403, code));
        let keys: Vec<String> = (0..3).map(|number| format!("d/{number}")).collect();
        let error = store.delete(&keys).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{code}");
        store.delete(&keys).await.unwrap();
        let requests = strict.server.faults().requests();
        let batches = requests.iter().filter(|one| one.method == "POST").count();
        assert_eq!((batches, requests.len()), (2, 2), "{code}");
    }
}

/// Some servers answer 411 to a write without a body whose length is not stated.
#[tokio::test]
async fn a_write_without_a_body_states_its_length() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let answered = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let answer = b"HTTP/1.1 501 Not Implemented\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        String::from_utf8(head).unwrap().to_lowercase()
    });
    let mut strict = Strict::start();
    strict.settings.endpoint = Some(endpoint);
    let store = strict.open_bare().await;
    let digest = PartDigest::of(&bytes(5_000, 1));
    let copied = store.copy_part("from", "to", "upload", 0, 0, &digest).await;
    assert_eq!(copied.unwrap_err().kind(), ErrorKind::Failed);
    let head = answered.await.unwrap();
    assert!(head.starts_with("put "), "{head}");
    assert_eq!(head.matches("content-length: 0\r\n").count(), 1, "{head}");
}

#[tokio::test]
async fn a_damaged_answer_is_told_from_a_short_one() {
    let strict = Strict::start();
    let store = strict.open_bare().await;
    create(&*store, "object", &bytes(1_000, 1)).await.unwrap();
    strict.server.objects().truncate(&format!("{BUCKET}/vault/object"), 400);
    let error = read(&*store, "object", Some(0..1_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert_eq!(
        shown(&error),
        "cannot read the object: s3://checkpoints/vault/object: the store has 400 of the 1000 requested bytes"
    );
}

#[tokio::test]
async fn the_store_is_asked_to_check_the_whole_before_it_shows_it() {
    let strict = Strict::start();
    let store = strict.open().await;
    let file = File::new((8 << 20) + 1, 1);
    let upload = store.start_upload("file", file.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let receipts = file.send(&*store, "file", &upload).await.unwrap();
    let mut other_bytes = file.digest.clone();
    other_bytes.content = File::new(5, 2).digest.content;
    let mut other_size = file.digest.clone();
    other_size.size_bytes += 1;
    for (wrong, kind) in [(other_bytes, ErrorKind::Damaged), (other_size, ErrorKind::Failed)] {
        let error = store.complete_upload("file", &upload, &receipts, &wrong).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(store.head("file").await.unwrap(), None, "{error}");
    }
    store.complete_upload("file", &upload, &receipts, &file.digest).await.unwrap();
}

#[tokio::test]
async fn an_object_without_an_entity_tag_is_told_from_another_one() {
    let strict =
        Strict::start_with(StrictS3Options { empty_completion_etag: true, ..StrictS3Options::default() });
    let store = strict.open_bare().await;
    let file = File::new((8 << 20) + 1, 2);
    let completed = file.upload(&*store, "a").await.unwrap();
    assert_eq!(completed.written().unwrap().version, None);
    // All answers name an object by the same tag, with its quotes or without.
    let head = store.head("a").await.unwrap().unwrap().info.version.unwrap();
    assert!(!head.contains('"'), "{head}");
    let listed: Vec<_> = store.list("a").map(|info| info.unwrap().version).collect().await;
    assert_eq!(listed, [Some(head)]);
    store.copy("a", "b").await.unwrap();
}

/// Has other bytes whenever it is read again.
#[derive(Debug, Default)]
struct Changing(AtomicU8);

impl BlockSource for Changing {
    fn read(&self, _offset: u64, length: usize) -> std::io::Result<Bytes> {
        let byte = self.0.fetch_add(1, Ordering::Relaxed);
        Ok(vec![byte; length].into())
    }
}

/// What was hashed and what is sent are two reads: the store compares them.
#[tokio::test]
async fn a_source_that_changes_between_two_requests_is_refused() {
    let strict = Strict::start();
    let store = strict.open().await;
    let digest = PartDigest::of(&[0; 1000]);
    let body = || {
        let source: Arc<dyn BlockSource> = Arc::new(Changing::default());
        Payload::read_from(&source, 1000)
    };
    store.create("a", body(), &digest).await.unwrap();
    let changed = body();
    changed.blocks().for_each(drop);
    let error = store.create("c", changed, &digest).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(store.head("c").await.unwrap().is_none());
}

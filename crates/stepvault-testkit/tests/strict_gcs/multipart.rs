//! XML multipart uploads.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::multipart::{MultipartStore as _, PartId};
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, WriteMultipart};
use stepvault_testkit::gcs::{PendingKind, StrictGcs, StrictGcsOptions};

use crate::raw::{Answer, send};
use crate::{
    BUCKET, MINIMUM_PART_BYTES, crc32c, crc32c_base64, payload, sdk, server, server_with, store, stored,
};

async fn initiate(server: &StrictGcs, key: &str) -> String {
    let answer = send(server, "POST", &format!("/{BUCKET}/{key}?uploads"), &[], b"").await;
    answer.element("UploadId").unwrap_or_else(|| panic!("an upload id: {}", answer.text()))
}

async fn put_part(server: &StrictGcs, key: &str, id: &str, number: usize, body: &[u8]) -> Answer {
    send(server, "PUT", &format!("/{BUCKET}/{key}?partNumber={number}&uploadId={id}"), &[], body).await
}

async fn complete(server: &StrictGcs, key: &str, id: &str, parts: &[(usize, &str)]) -> Answer {
    let mut body = "<CompleteMultipartUpload>".to_owned();
    for (number, etag) in parts {
        let _ = write!(body, "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
    }
    body.push_str("</CompleteMultipartUpload>");
    send(server, "POST", &format!("/{BUCKET}/{key}?uploadId={id}"), &[], body.as_bytes()).await
}

fn assert_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.element("Code").as_deref()), (status, Some(code)), "{}", answer.text());
}

#[tokio::test]
async fn object_store_uploads_parts() {
    let server = server();
    let store = store(&server);
    let body = payload(2 * MINIMUM_PART_BYTES + 9);
    let path = Path::from("dir/large");
    let upload = store.put_multipart(&path).await.expect("an upload");
    let mut writer = WriteMultipart::new_with_chunk_size(upload, MINIMUM_PART_BYTES);
    writer.write(&body);
    writer.finish().await.expect("a completion");
    assert_eq!(stored(&server, "dir/large").as_ref(), Some(&body));
    assert_eq!(server.pending_uploads(), []);

    let response =
        sdk(&server).await.read_object(crate::SDK_BUCKET, "dir/large").send().await.expect("a read");
    let checksums = response.object().checksums.expect("checksums");
    assert_eq!(checksums.crc32c, Some(crc32c(&body)), "over the whole object");
    assert!(checksums.md5_hash.is_empty(), "no MD5 for a multipart upload");
    let head = send(&server, "HEAD", &format!("/{BUCKET}/dir/large"), &[], b"").await;
    assert_eq!(head.header("x-goog-hash"), Some(format!("crc32c={}", crc32c_base64(&body)).as_str()));
}

#[tokio::test]
async fn object_store_parts_by_hand() {
    let server = server();
    let store = store(&server);
    let path = Path::from("large");
    let id = store.create_multipart(&path).await.expect("an upload");
    let body = payload(MINIMUM_PART_BYTES + 5);
    let (first, last) = body.split_at(MINIMUM_PART_BYTES);
    // In any order.
    let two = store.put_part(&path, &id, 1, Bytes::copy_from_slice(last).into()).await.expect("a part");
    let one = store.put_part(&path, &id, 0, Bytes::copy_from_slice(first).into()).await.expect("a part");
    let wrong = PartId { content_id: two.content_id.clone() };
    store.complete_multipart(&path, &id, vec![wrong, two.clone()]).await.expect_err("a wrong ETag");
    assert_eq!(stored(&server, "large"), None);
    store.complete_multipart(&path, &id, vec![one, two]).await.expect("a completion");
    assert_eq!(stored(&server, "large"), Some(body));

    let id = store.create_multipart(&path).await.expect("an upload");
    store.abort_multipart(&path, &id).await.expect("an abort");
    store.put_part(&path, &id, 0, "x".into()).await.expect_err("aborted");
    let id = store.create_multipart(&path).await.expect("an upload");
    store.complete_multipart(&path, &id, Vec::new()).await.expect("an empty object by PUT instead");
    assert_eq!(stored(&server, "large"), Some(Vec::new()));
}

#[tokio::test]
async fn completion_checks_sizes_order_and_etags() {
    let server = server();
    let id = initiate(&server, "a").await;
    let large = payload(MINIMUM_PART_BYTES);
    let etag = |answer: &Answer| answer.header("etag").expect("an ETag").to_owned();
    let one = etag(&put_part(&server, "a", &id, 1, &large).await);
    let two = etag(&put_part(&server, "a", &id, 2, b"small").await);
    let three = etag(&put_part(&server, "a", &id, 3, b"last").await);

    let all = [(1, one.as_str()), (2, two.as_str()), (3, three.as_str())];
    assert_refused(&complete(&server, "a", &id, &all).await, 400, "EntityTooSmall");
    assert_refused(&complete(&server, "a", &id, &[(3, &three), (1, &one)]).await, 400, "InvalidPartOrder");
    assert_refused(&complete(&server, "a", &id, &[(1, &one), (1, &one)]).await, 400, "InvalidPartOrder");
    assert_refused(&complete(&server, "a", &id, &[(1, &two)]).await, 400, "InvalidPart");
    assert_refused(&complete(&server, "a", &id, &[(1, &one), (4, &two)]).await, 400, "InvalidPart");
    assert_refused(&complete(&server, "a", &id, &[]).await, 400, "MalformedXML");
    assert_refused(&complete(&server, "a", "none", &[(1, &one)]).await, 404, "NoSuchUpload");
    assert_refused(&complete(&server, "b", &id, &[(1, &one)]).await, 404, "NoSuchUpload");
    assert_eq!(stored(&server, "a"), None);

    let done = complete(&server, "a", &id, &[(1, &one), (3, &three)]).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(done.header("x-goog-generation").is_some());
    assert_eq!(stored(&server, "a"), Some([&large[..], b"last"].concat()));
    assert_refused(&complete(&server, "a", &id, &[(1, &one)]).await, 404, "NoSuchUpload");
    assert_refused(&put_part(&server, "a", &id, 1, b"x").await, 404, "NoSuchUpload");
    let abort = send(&server, "DELETE", &format!("/{BUCKET}/a?uploadId={id}"), &[], b"").await;
    assert_refused(&abort, 404, "NoSuchUpload");
}

#[tokio::test]
async fn parts_are_checked_on_arrival() {
    let server = server();
    let id = initiate(&server, "a").await;
    let path = format!("/{BUCKET}/a?partNumber=1&uploadId={id}");
    let wrong = format!("crc32c={}", crc32c_base64(b"other"));
    assert_refused(
        &send(&server, "PUT", &path, &[("x-goog-hash", &wrong)], b"hello").await,
        400,
        "BadDigest",
    );
    let md5 = ("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA==");
    assert_refused(&send(&server, "PUT", &path, &[md5], b"hello").await, 400, "BadDigest");
    assert_eq!(server.pending_uploads()[0].stored_bytes, 0);
    let right = format!("crc32c={}", crc32c_base64(b"hello"));
    let answer = send(&server, "PUT", &path, &[("x-goog-hash", &right)], b"hello").await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("x-goog-hash").is_some_and(|hash| hash.starts_with(&right)));
    for number in [0, 10_001] {
        assert_refused(&put_part(&server, "a", &id, number, b"x").await, 400, "InvalidArgument");
    }
    // Documented: no preconditions here. Ignored ones would pass for create-only.
    let condition = ("x-goog-if-generation-match", "0");
    let answer = send(&server, "POST", &format!("/{BUCKET}/a?uploads"), &[condition], b"").await;
    assert_refused(&answer, 400, "InvalidArgument");
}

#[tokio::test]
async fn pending_uploads_are_listed_in_pages() {
    let server = server_with(StrictGcsOptions { list_page_size: 2, ..StrictGcsOptions::default() });
    let mut expected = Vec::new();
    for key in ["p/a", "p/a", "p/b&<", "q"] {
        expected.push((key.to_owned(), initiate(&server, &key.replace("&<", "%26%3C")).await));
    }
    expected.sort();
    let mut listed = Vec::new();
    let mut query = "uploads".to_owned();
    loop {
        let page = send(&server, "GET", &format!("/{BUCKET}?{query}"), &[], b"").await;
        assert_eq!(page.status, 200, "{}", page.text());
        for upload in page.text().split("<Upload>").skip(1) {
            let field = |name: &str| {
                let (_, rest) = upload.split_once(&format!("<{name}>")).expect("a field");
                rest.split_once('<').expect("an end").0.replace("&lt;", "<").replace("&amp;", "&")
            };
            listed.push((field("Key"), field("UploadId")));
        }
        if page.element("IsTruncated").as_deref() != Some("true") {
            break;
        }
        let marker =
            page.element("NextKeyMarker").expect("a marker").replace("&amp;", "%26").replace("&lt;", "%3C");
        let id = page.element("NextUploadIdMarker").expect("a marker");
        query = format!("uploads&key-marker={marker}&upload-id-marker={id}");
    }
    assert_eq!(listed, expected);
    let under = send(&server, "GET", &format!("/{BUCKET}?uploads&prefix=q"), &[], b"").await;
    assert_eq!(under.text().matches("<Upload>").count(), 1);

    server.age_multipart_uploads(Duration::from_hours(72));
    let pending = server.pending_uploads();
    assert!(pending.iter().all(|upload| {
        upload.kind == PendingKind::Multipart
            && upload.initiated < SystemTime::now() - Duration::from_hours(48)
    }));
    let (key, id) = &expected[3];
    let abort = send(&server, "DELETE", &format!("/{BUCKET}/{key}?uploadId={id}"), &[], b"").await;
    assert_eq!((abort.status, server.pending_uploads().len()), (204, 3));
}

#[tokio::test]
async fn parts_are_listed() {
    let server = server();
    let id = initiate(&server, "a").await;
    for number in [3, 1, 2] {
        put_part(&server, "a", &id, number, b"hello").await;
    }
    let path = format!("/{BUCKET}/a?uploadId={id}");
    let all = send(&server, "GET", &path, &[], b"").await;
    assert_eq!(all.text().matches("<Part>").count(), 3);
    let page = send(&server, "GET", &format!("{path}&max-parts=1&part-number-marker=1"), &[], b"").await;
    assert_eq!(page.element("PartNumber").as_deref(), Some("2"));
    assert_eq!(page.element("NextPartNumberMarker").as_deref(), Some("2"));
    assert_eq!(page.element("ETag").as_deref(), Some("&quot;5d41402abc4b2a76b9719d911017c592&quot;"));
}

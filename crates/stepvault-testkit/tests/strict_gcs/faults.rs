//! Each fault action, as both clients and a bare connection see it.

use std::time::{Duration, Instant};

use object_store::path::Path;
use object_store::{Error, ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions};
use stepvault_testkit::faults::FaultAction;

use crate::raw::send;
use crate::sdk::{collect, write};
use crate::{BUCKET, QUANTUM_BYTES, SDK_BUCKET, crc32c, payload, sdk, server, store, stored};

const SINGLE_SHOT: usize = usize::MAX;
const RESUMABLE: usize = 0;

fn refuse(status: u16, code: &str) -> FaultAction {
    FaultAction::Refuse { status, retry_after_seconds: Some(7), code: code.to_owned() }
}

#[tokio::test]
async fn a_refusal_takes_the_form_of_the_api() {
    let server = server();
    server.faults().inject("GET", "", 2, refuse(503, "SlowDown"));
    let xml = send(&server, "GET", &format!("/{BUCKET}/a"), &[], b"").await;
    assert_eq!((xml.status, xml.header("retry-after")), (503, Some("7")));
    assert_eq!(xml.element("Code").as_deref(), Some("SlowDown"));
    let json = send(&server, "GET", &format!("/storage/v1/b/{BUCKET}/o/a?alt=media"), &[], b"").await;
    assert_eq!((json.status, json.header("retry-after")), (503, Some("7")));
    assert_eq!(json.json()["error"]["errors"][0]["reason"], "SlowDown");
    assert_eq!(server.faults().requests().len(), 2);
}

#[tokio::test]
async fn both_clients_retry_refusals() {
    let server = server();
    server.faults().inject("POST", "uploadType=multipart", 2, refuse(503, "backendError"));
    write(&server, "a", b"x", crc32c(b"x"), SINGLE_SHOT).await.expect("the third try");
    server.faults().inject("PUT", "upload_id", 2, refuse(503, "backendError"));
    write(&server, "b", b"x", crc32c(b"x"), RESUMABLE).await.expect("the third try");
    server.faults().inject("GET", "", 2, refuse(503, "SlowDown"));
    store(&server).get(&Path::from("a")).await.expect("the third try");

    server.faults().inject("POST", "", 1, refuse(401, "authError"));
    let error = write(&server, "c", b"x", crc32c(b"x"), RESUMABLE).await.expect_err("not retried");
    assert_eq!(error.http_status_code(), Some(401));
}

#[tokio::test]
async fn a_reset_does_nothing() {
    let server = server();
    server.faults().inject("PUT", "", 1, FaultAction::Reset);
    assert_eq!(send(&server, "PUT", &format!("/{BUCKET}/a"), &[], b"x").await.status, 0);
    assert_eq!(stored(&server, "a"), None);
    server.faults().inject("POST", "uploadType=resumable", 1, FaultAction::Reset);
    write(&server, "b", b"x", crc32c(b"x"), RESUMABLE).await.expect("a retry");
}

#[tokio::test]
async fn applied_but_unanswered_is_applied() {
    let server = server();
    server.faults().inject("PUT", "", 1, FaultAction::ApplyThenReset);
    assert_eq!(send(&server, "PUT", &format!("/{BUCKET}/a"), &[], b"x").await.status, 0);
    assert_eq!(stored(&server, "a").as_deref(), Some(b"x".as_slice()));

    // A create-only single shot is retried and meets its own object; a resumable one asks its session.
    server.faults().inject("POST", "uploadType=multipart", 1, FaultAction::ApplyThenReset);
    let error = write(&server, "b", b"x", crc32c(b"x"), SINGLE_SHOT).await.expect_err("ambiguous");
    assert_eq!(error.http_status_code(), Some(412));
    assert_eq!(stored(&server, "b").as_deref(), Some(b"x".as_slice()));
    server.faults().inject("PUT", "upload_id", 1, FaultAction::ApplyThenReset);
    let object = write(&server, "c", b"x", crc32c(b"x"), RESUMABLE).await.expect("found finished");
    assert_eq!(object.size, 1);

    server.faults().inject("PUT", "/d", 1, FaultAction::ApplyThenReset);
    let create = PutOptions::from(PutMode::Create);
    store(&server).put_opts(&Path::from("d"), "x".into(), create).await.expect_err("ambiguous");
    assert_eq!(stored(&server, "d").as_deref(), Some(b"x".as_slice()));
}

#[tokio::test]
async fn delays_and_hangs() {
    let server = server();
    server.faults().inject("PUT", "", 1, FaultAction::Delay(Duration::from_millis(150)));
    let start = Instant::now();
    assert_eq!(send(&server, "PUT", &format!("/{BUCKET}/a"), &[], b"x").await.status, 200);
    assert!(start.elapsed() >= Duration::from_millis(150));
    server.faults().inject("PUT", "", 1, FaultAction::Hang);
    let path = format!("/{BUCKET}/b");
    let hung = tokio::time::timeout(Duration::from_millis(200), send(&server, "PUT", &path, &[], b"x"));
    hung.await.expect_err("no answer");
    assert_eq!(stored(&server, "b"), None);
}

#[tokio::test]
async fn a_cut_answer_is_resumed_or_seen() {
    let server = server();
    let body = payload(100_000);
    store(&server).put(&Path::from("a"), body.clone().into()).await.expect("a put");
    let cut = || FaultAction::CutBody { bytes: 40_000 };
    server.faults().inject("GET", "", 1, cut());
    let answer = send(&server, "GET", &format!("/{BUCKET}/a"), &[], b"").await;
    assert_eq!((answer.header("content-length"), answer.body.len()), (Some("100000"), 40_000));

    server.faults().inject("GET", "", 1, cut());
    let mut response = sdk(&server).await.read_object(SDK_BUCKET, "a").send().await.expect("a read");
    assert_eq!(collect(&mut response).await.expect("resumed"), body);
    server.faults().inject("GET", "", 1, cut());
    let get = store(&server).get(&Path::from("a")).await.expect("a get");
    assert_eq!(get.bytes().await.expect("resumed"), body);
}

#[tokio::test]
async fn a_cut_upload_is_resumed_from_what_is_persisted() {
    let server = server();
    let body = payload(4 * QUANTUM_BYTES);
    let bytes = 2 * QUANTUM_BYTES + 5;
    server.faults().inject("PUT", "upload_id", 1, FaultAction::CutBody { bytes });
    write(&server, "a", &body, crc32c(&body), RESUMABLE).await.expect("resumed");
    assert_eq!(stored(&server, "a"), Some(body));
    let puts: Vec<_> =
        server.faults().requests().into_iter().filter(|request| request.method == "PUT").collect();
    assert_eq!(puts.len(), 3, "the cut one, the query, the rest");

    server.faults().inject("PUT", "/b", 1, FaultAction::CutBody { bytes: 2 });
    assert_eq!(send(&server, "PUT", &format!("/{BUCKET}/b"), &[], b"hello").await.status, 0);
    assert_eq!(stored(&server, "b"), None);
}

#[tokio::test]
async fn flipped_bits_reach_the_reader() {
    let server = server();
    let body = payload(1000);
    store(&server).put(&Path::from("a"), body.clone().into()).await.expect("a put");
    server.faults().inject("GET", "", 2, FaultAction::FlipBit);
    let get = store(&server).get(&Path::from("a")).await.expect("a get");
    let got = get.bytes().await.expect("object_store does not look");
    assert_eq!((got[0], &got[1..]), (body[0] ^ 1, &body[1..]));
    let mut response = sdk(&server).await.read_object(SDK_BUCKET, "a").send().await.expect("a read");
    collect(&mut response).await.expect_err("the SDK compares the checksum");
    assert_eq!(stored(&server, "a"), Some(body));
}

#[tokio::test]
async fn flipped_bits_in_an_upload_meet_the_stated_checksum() {
    let server = server();
    server.faults().inject("POST", "uploadType=multipart", 1, FaultAction::FlipBit);
    let error = write(&server, "a", b"hello", crc32c(b"hello"), SINGLE_SHOT).await.expect_err("a refusal");
    assert_eq!(error.http_status_code(), Some(400));
    server.faults().inject("PUT", "upload_id", 1, FaultAction::FlipBit);
    let error = write(&server, "a", b"hello", crc32c(b"hello"), RESUMABLE).await.expect_err("a refusal");
    assert_eq!(error.http_status_code(), Some(400));
    assert_eq!(stored(&server, "a"), None);
    server.faults().inject("PUT", "", 1, FaultAction::FlipBit);
    store(&server).put(&Path::from("a"), "hello".into()).await.expect("object_store states no checksum");
    assert_eq!(stored(&server, "a").as_deref(), Some(b"iello".as_slice()));
}

#[tokio::test]
async fn an_error_under_status_200_does_nothing() {
    let server = server();
    let error = || FaultAction::OkWithError { code: "InternalError".to_owned() };
    server.faults().inject("PUT", "", 1, error());
    let xml = send(&server, "PUT", &format!("/{BUCKET}/a"), &[], b"x").await;
    assert_eq!((xml.status, xml.element("Code").as_deref()), (200, Some("InternalError")));
    server.faults().inject("POST", "", 1, error());
    let path = format!("/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name=a");
    let json = send(&server, "POST", &path, &[], b"x").await;
    assert_eq!(
        (json.status, json.json()["error"]["errors"][0]["reason"].as_str()),
        (200, Some("InternalError"))
    );
    assert_eq!(stored(&server, "a"), None);

    server.faults().inject("POST", "uploadId", 1, error());
    let upload = store(&server).put_multipart(&Path::from("a")).await.expect("an upload");
    let mut writer = object_store::WriteMultipart::new(upload);
    writer.write(b"x");
    let failed = writer.finish().await.expect_err("an error document is no result");
    assert!(matches!(failed, Error::Generic { .. }), "{failed}");
    assert_eq!(stored(&server, "a"), None);
}

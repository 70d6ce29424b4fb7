//! Resumable sessions, by hand.

use stepvault_testkit::gcs::{PendingKind, StrictGcs};

use crate::raw::{Answer, send, send_cut};
use crate::{BUCKET, QUANTUM_BYTES, crc32c_base64, payload, server, stored};

async fn start(server: &StrictGcs, query: &str, resource: &str) -> String {
    let answer = start_answer(server, query, resource).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("location").expect("a session URI").to_owned()
}

async fn start_answer(server: &StrictGcs, query: &str, resource: &str) -> Answer {
    let path = format!("/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&name=a{query}");
    send(server, "POST", &path, &[("Content-Type", "application/json")], resource.as_bytes()).await
}

async fn put(server: &StrictGcs, session: &str, range: &str, body: &[u8]) -> Answer {
    send(server, "PUT", session, &[("Content-Range", range)], body).await
}

fn assert_incomplete(answer: &Answer, range: Option<&str>) {
    assert_eq!((answer.status, answer.header("range")), (308, range), "{}", answer.text());
}

#[tokio::test]
async fn chunks_are_persisted_and_reported() {
    let server = server();
    let body = payload(2 * QUANTUM_BYTES + 100);
    let session = start(&server, "", "{}").await;
    assert!(session.starts_with(&server.endpoint()), "the listener's own address: {session}");
    assert_incomplete(&put(&server, &session, "bytes */*", b"").await, None);

    let first = put(&server, &session, "bytes 0-262143/*", &body[..QUANTUM_BYTES]).await;
    assert_incomplete(&first, Some("bytes=0-262143"));
    for _ in 0..2 {
        assert_incomplete(&put(&server, &session, "bytes */*", b"").await, Some("bytes=0-262143"));
    }
    assert_eq!(stored(&server, "a"), None, "a status query ends nothing");
    let pending = server.pending_uploads();
    assert_eq!(
        (pending.len(), pending[0].kind, pending[0].stored_bytes),
        (1, PendingKind::Resumable, 262_144)
    );

    let last = put(&server, &session, "bytes 262144-524387/524388", &body[QUANTUM_BYTES..]).await;
    assert_eq!(last.status, 200, "{}", last.text());
    assert_eq!(last.json()["crc32c"], crc32c_base64(&body));
    assert_eq!(stored(&server, "a"), Some(body));
    assert_eq!(server.pending_uploads(), []);

    let status = put(&server, &session, "bytes */*", b"").await;
    assert_eq!(
        (status.status, status.json()["generation"].clone()),
        (200, last.json()["generation"].clone())
    );
    assert_eq!(send(&server, "PUT", &session, &[("Content-Range", "bytes */524388")], b"").await.status, 200);
}

#[tokio::test]
async fn a_query_with_the_total_ends_only_a_complete_upload() {
    let server = server();
    let body = payload(QUANTUM_BYTES);
    let session = start(&server, "", "{}").await;
    assert_incomplete(&put(&server, &session, "bytes */262144", b"").await, None);
    put(&server, &session, "bytes 0-262143/*", &body).await;
    assert_eq!(put(&server, &session, "bytes */262144", b"").await.status, 200);
    assert_eq!(stored(&server, "a"), Some(body));

    let empty = start(&server, "", "{}").await;
    assert_eq!(put(&server, &empty, "bytes */0", b"").await.status, 200);
    assert_eq!(stored(&server, "a"), Some(Vec::new()));
}

#[tokio::test]
async fn ranges_must_continue_and_be_whole_chunks() {
    let server = server();
    let body = payload(3 * QUANTUM_BYTES);
    let session = start(&server, "", "{}").await;
    for (range, length) in [
        ("bytes 262144-524287/*", QUANTUM_BYTES), // a hole
        ("bytes 0-99/*", 100),                    // no multiple of 256 KiB
        ("bytes 0-99/786432", 100),               // nor with a known total
        ("bytes 0-262143/*", 100),                // shorter than stated
        ("bytes 0-262143/*", QUANTUM_BYTES + 1),  // longer than stated
        ("bytes 0-786432/786432", 10),            // beyond the total
        ("bytes 5-3/*", 0),
        ("bytes=0-1/2", 2),
        ("nonsense", 0),
    ] {
        let answer = put(&server, &session, range, &body[..length]).await;
        assert_eq!(answer.status, 400, "{range}: {}", answer.text());
        assert_incomplete(&put(&server, &session, "bytes */*", b"").await, None);
    }
    // The total was stated as 786432 above.
    assert_eq!(put(&server, &session, "bytes 0-262143/262144", &body[..QUANTUM_BYTES]).await.status, 400);
    put(&server, &session, "bytes 0-524287/*", &body[..2 * QUANTUM_BYTES]).await;
    // Bytes that are persisted already are ignored, as documented.
    let answer = put(&server, &session, "bytes 262144-786431/786432", &body[QUANTUM_BYTES..]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(stored(&server, "a"), Some(body));
}

#[tokio::test]
async fn a_broken_connection_leaves_whole_quanta() {
    let server = server();
    let body = payload(3 * QUANTUM_BYTES);
    let session = start(&server, "", "{}").await;
    let sent = QUANTUM_BYTES + 1000;
    let headers = [("Content-Range", "bytes 0-786431/786432")];
    let answer = send_cut(&server, "PUT", &session, &headers, &body[..sent], body.len()).await;
    assert_ne!(answer.status, 200);
    assert_incomplete(&put(&server, &session, "bytes */*", b"").await, Some("bytes=0-262143"));
    assert_eq!(stored(&server, "a"), None);
    let answer = put(&server, &session, "bytes 262144-786431/786432", &body[QUANTUM_BYTES..]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(stored(&server, "a"), Some(body));
}

#[tokio::test]
async fn an_unknown_length_ends_with_the_body() {
    let server = server();
    let session = start(&server, "", "{}").await;
    assert_eq!(put(&server, &session, "bytes 0-*/*", b"hello").await.status, 200);
    let session = start(&server, "", "{}").await;
    assert_eq!(send(&server, "PUT", &session, &[], b"world").await.status, 200, "no Content-Range");
    assert_eq!(stored(&server, "a").as_deref(), Some(b"world".as_slice()));
}

#[tokio::test]
async fn checksums_are_checked_at_the_end() {
    let server = server();
    let wrong = crc32c_base64(b"other");
    let session = start(&server, "", &format!(r#"{{"crc32c":"{wrong}"}}"#)).await;
    assert_eq!(put(&server, &session, "bytes 0-4/5", b"hello").await.status, 400);
    assert_eq!(put(&server, &session, "bytes */*", b"").await.status, 400, "the session has failed");

    let session = start(&server, "", "{}").await;
    let hash = format!("crc32c={wrong}");
    let headers = [("Content-Range", "bytes 0-4/5"), ("x-goog-hash", hash.as_str())];
    assert_eq!(send(&server, "PUT", &session, &headers, b"hello").await.status, 400);
    assert_eq!(stored(&server, "a"), None);
    assert_eq!(server.pending_uploads(), []);
    assert_eq!(start_answer(&server, "", r#"{"crc32c":"short"}"#).await.status, 400);
}

#[tokio::test]
async fn a_stated_length_is_binding() {
    let server = server();
    let path = format!("/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&name=a");
    let answer = send(&server, "POST", &path, &[("X-Upload-Content-Length", "6")], b"").await;
    let session = answer.header("location").expect("a session URI").to_owned();
    assert_eq!(send(&server, "PUT", &session, &[], b"hello").await.status, 400);
    assert_eq!(stored(&server, "a"), None);
}

#[tokio::test]
async fn create_only_holds_at_the_start_and_at_the_end() {
    let server = server();
    let session = start(&server, "&ifGenerationMatch=0", "{}").await;
    send(&server, "PUT", &format!("/{BUCKET}/a"), &[], b"first").await;
    assert_eq!(start_answer(&server, "&ifGenerationMatch=0", "{}").await.status, 412);
    let answer = put(&server, &session, "bytes 0-4/5", b"later").await;
    assert_eq!(answer.status, 412, "{}", answer.text());
    assert_eq!(stored(&server, "a").as_deref(), Some(b"first".as_slice()));
}

#[tokio::test]
async fn sessions_expire_and_can_be_cancelled() {
    let server = server();
    let session = start(&server, "", "{}").await;
    server.expire_sessions();
    assert_eq!(put(&server, &session, "bytes */*", b"").await.status, 410);
    assert_eq!(put(&server, &session, "bytes 0-4/5", b"hello").await.status, 410);

    let session = start(&server, "", "{}").await;
    assert_eq!(send(&server, "DELETE", &session, &[], b"").await.status, 499);
    assert_eq!(put(&server, &session, "bytes */*", b"").await.status, 410);
    assert_eq!(stored(&server, "a"), None);
}

#[tokio::test]
async fn a_session_that_never_existed_is_told_from_one_that_has_ended() {
    let server = server();
    let unknown = format!("/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&upload_id=unknown");
    assert_eq!(put(&server, &unknown, "bytes 0-4/5", b"hello").await.status, 404);
    assert_eq!(send(&server, "DELETE", &unknown, &[], b"").await.status, 404);
    let unnamed = format!("/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable");
    assert_eq!(put(&server, &unnamed, "bytes 0-4/5", b"hello").await.status, 400);
    assert_eq!(send(&server, "DELETE", &unnamed, &[], b"").await.status, 400);
}

#[tokio::test]
async fn chunks_may_be_posted_and_308_may_be_avoided() {
    let server = server();
    let body = payload(QUANTUM_BYTES + 5);
    let session = start(&server, "", "{}").await;
    let headers = [("Content-Range", "bytes 0-262143/*"), ("X-GUploader-No-308", "yes")];
    let answer = send(&server, "POST", &session, &headers, &body[..QUANTUM_BYTES]).await;
    assert_eq!((answer.status, answer.header("range")), (200, Some("bytes=0-262143")));
    assert_eq!(answer.header("x-http-status-code-override"), Some("308"));
    let headers = [("Content-Range", "bytes 262144-262148/262149")];
    let answer = send(&server, "POST", &session, &headers, &body[QUANTUM_BYTES..]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(stored(&server, "a"), Some(body));
}

//! `google-cloud-storage` against the server.

use bytes::Bytes;
use google_cloud_auth::credentials::{CacheableResource, Credentials, CredentialsProvider, EntityTag};
use google_cloud_auth::errors::CredentialsError;
use google_cloud_storage::Error;
use google_cloud_storage::client::Storage;
use google_cloud_storage::model::Object;
use google_cloud_storage::model_ext::ReadRange;
use google_cloud_storage::read_object::ReadObjectResponse;
use stepvault_testkit::gcs::{StrictGcs, StrictGcsOptions};

use crate::{QUANTUM_BYTES, SDK_BUCKET, crc32c, payload, sdk, server, server_with, stored};

/// Both ways to upload: the threshold from which an upload is resumable decides.
const SINGLE_SHOT: usize = usize::MAX;
const RESUMABLE: usize = 0;

pub(crate) async fn write(
    server: &StrictGcs,
    key: &str,
    body: &[u8],
    crc32c: u32,
    threshold: usize,
) -> Result<Object, Error> {
    let client = sdk(server).await;
    let write = client
        .write_object(SDK_BUCKET, key, Bytes::copy_from_slice(body))
        .with_resumable_upload_threshold(threshold)
        .with_known_crc32c(crc32c)
        .set_if_generation_match(0)
        .send_unbuffered();
    // The SDK's upload future is some 30 KB.
    Box::pin(write).await
}

pub(crate) async fn collect(response: &mut ReadObjectResponse) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(piece) = response.next().await.transpose()? {
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

#[tokio::test]
async fn writes_with_a_known_checksum_and_create_only() {
    let server = server();
    let body = payload(3 * QUANTUM_BYTES + 17);
    for (key, threshold) in [("dir/single shot", SINGLE_SHOT), ("dir/resumable?", RESUMABLE)] {
        let object = write(&server, key, &body, crc32c(&body), threshold).await.expect("a write");
        assert_eq!(object.name, key);
        assert_eq!(object.bucket, SDK_BUCKET);
        assert_eq!(object.size, i64::try_from(body.len()).expect("small"));
        assert_eq!(object.checksums.and_then(|checksums| checksums.crc32c), Some(crc32c(&body)));
        assert!(object.generation > 0);
        assert_eq!(stored(&server, key).as_ref(), Some(&body));

        let error = write(&server, key, b"other", crc32c(b"other"), threshold).await.expect_err("it exists");
        assert_eq!(error.http_status_code(), Some(412), "{error:?}");
        assert_eq!(stored(&server, key).as_ref(), Some(&body));
    }
    assert_eq!(server.pending_uploads(), []);
}

#[tokio::test]
async fn empty_objects_can_be_written_both_ways() {
    let server = server();
    for (key, threshold) in [("a", SINGLE_SHOT), ("b", RESUMABLE)] {
        let object = write(&server, key, b"", 0, threshold).await.expect("a write");
        assert_eq!((object.size, object.checksums.and_then(|checksums| checksums.crc32c)), (0, Some(0)));
    }
}

#[tokio::test]
async fn a_wrong_known_checksum_is_refused() {
    let server = server();
    for threshold in [SINGLE_SHOT, RESUMABLE] {
        let error = write(&server, "a", b"hello", crc32c(b"other"), threshold).await.expect_err("a refusal");
        assert_eq!(error.http_status_code(), Some(400), "{error:?}");
        assert_eq!(stored(&server, "a"), None);
    }
}

#[tokio::test]
async fn checksums_left_out_of_answers_go_unnoticed_by_the_sdk() {
    let server = server_with(StrictGcsOptions { no_checksum_answers: true, ..StrictGcsOptions::default() });
    for (key, threshold) in [("a", SINGLE_SHOT), ("b", RESUMABLE)] {
        let object = write(&server, key, b"hello", crc32c(b"hello"), threshold).await.expect("a write");
        assert_eq!(object.checksums, None);
    }
}

#[tokio::test]
async fn buffered_uploads_go_in_chunks() {
    let server = server();
    let body = payload(5 * QUANTUM_BYTES + 1);
    for (key, length) in [("odd", body.len()), ("even", 4 * QUANTUM_BYTES)] {
        let client = sdk(&server).await;
        let write = client
            .write_object(SDK_BUCKET, key, Bytes::copy_from_slice(&body[..length]))
            .with_resumable_upload_threshold(0_usize)
            .with_resumable_upload_buffer_size(2 * QUANTUM_BYTES)
            .set_if_generation_match(0)
            .set_metadata([("step", "7")])
            .send_buffered();
        let object = Box::pin(write).await.expect("a write");
        assert_eq!(object.metadata.get("step").map(String::as_str), Some("7"));
        assert_eq!(stored(&server, key).as_deref(), Some(&body[..length]));
    }
    let puts = server.faults().requests().iter().filter(|request| request.method == "PUT").count();
    assert_eq!(puts, 3 + 2);
}

#[tokio::test]
async fn reads_whole_objects_and_ranges() {
    let server = server();
    let body = payload(1000);
    write(&server, "dir/a b", &body, crc32c(&body), SINGLE_SHOT).await.expect("a write");
    let client = sdk(&server).await;

    let mut whole = client.read_object(SDK_BUCKET, "dir/a b").send().await.expect("a read");
    assert_eq!(collect(&mut whole).await.expect("a body"), body);
    for (range, expected) in [
        (ReadRange::segment(10, 20), &body[10..30]),
        (ReadRange::offset(990), &body[990..]),
        (ReadRange::head(5), &body[..5]),
        (ReadRange::tail(7), &body[993..]),
    ] {
        let mut part =
            client.read_object(SDK_BUCKET, "dir/a b").set_read_range(range).send().await.expect("a read");
        let object = part.object();
        assert_eq!(object.size, 1000, "the whole object's size");
        let checksums = object.checksums.expect("checksums");
        assert_eq!(checksums.crc32c, Some(crc32c(&body)), "the whole object's checksum");
        assert_eq!(checksums.md5_hash.len(), 16);
        assert!(object.generation > 0 && object.metageneration == 1 && !object.etag.is_empty());
        assert_eq!(collect(&mut part).await.expect("a body"), expected);
    }
    let past_end =
        client.read_object(SDK_BUCKET, "dir/a b").set_read_range(ReadRange::offset(1000)).send().await;
    assert_eq!(past_end.expect_err("a refusal").http_status_code(), Some(416));
    let missing = client.read_object(SDK_BUCKET, "none").send().await;
    assert_eq!(missing.expect_err("a refusal").http_status_code(), Some(404));
}

#[tokio::test]
async fn damage_behind_the_clients_back_is_seen_by_whole_reads_only() {
    let server = server();
    let body = payload(1000);
    write(&server, "a", &body, crc32c(&body), SINGLE_SHOT).await.expect("a write");
    assert!(server.objects().flip_bit("vault-bucket/a", 500));
    let client = sdk(&server).await;
    let mut whole = client.read_object(SDK_BUCKET, "a").send().await.expect("a read");
    collect(&mut whole).await.expect_err("the checksum differs");
    let range = ReadRange::segment(500, 10);
    let mut part = client.read_object(SDK_BUCKET, "a").set_read_range(range).send().await.expect("a read");
    assert_ne!(collect(&mut part).await.expect("nothing to compare with"), &body[500..510]);
}

#[tokio::test]
async fn without_a_bearer_a_server_that_asks_for_one_refuses() {
    let server = server_with(StrictGcsOptions { anonymous: false, ..StrictGcsOptions::default() });
    for threshold in [SINGLE_SHOT, RESUMABLE] {
        let error = write(&server, "a", b"x", crc32c(b"x"), threshold).await.expect_err("a refusal");
        assert_eq!(error.http_status_code(), Some(401));
    }
    let read = sdk(&server).await.read_object(SDK_BUCKET, "a").send().await;
    assert_eq!(read.expect_err("a refusal").http_status_code(), Some(401));
}

#[tokio::test]
async fn a_missing_bucket_is_404() {
    let server = StrictGcs::start();
    for threshold in [SINGLE_SHOT, RESUMABLE] {
        let error = write(&server, "a", b"x", crc32c(b"x"), threshold).await.expect_err("a refusal");
        assert_eq!(error.http_status_code(), Some(404));
    }
}

#[derive(Debug)]
struct FixedBearer(String);

impl CredentialsProvider for FixedBearer {
    async fn headers(
        &self,
        _extensions: http::Extensions,
    ) -> Result<CacheableResource<http::HeaderMap>, CredentialsError> {
        let value = format!("Bearer {}", self.0).parse().expect("a header value");
        let data = http::HeaderMap::from_iter([(http::header::AUTHORIZATION, value)]);
        Ok(CacheableResource::New { entity_tag: EntityTag::new(), data })
    }

    async fn universe_domain(&self) -> Option<String> {
        None
    }
}

#[tokio::test]
async fn with_the_right_bearer_it_answers() {
    let server = server_with(StrictGcsOptions { anonymous: false, ..StrictGcsOptions::default() });
    for (bearer, status) in [(server.bearer(), None), ("wrong", Some(401))] {
        let client = Storage::builder()
            .with_endpoint(server.endpoint())
            .with_credentials(Credentials::from(FixedBearer(bearer.to_owned())))
            .build()
            .await
            .expect("a client");
        let write = client.write_object(SDK_BUCKET, "a", "x").with_resumable_upload_threshold(RESUMABLE);
        let result = Box::pin(write.send_unbuffered()).await;
        assert_eq!(result.err().and_then(|error| error.http_status_code()), status);
    }
}

use aws_sdk_s3::types::{
    ChecksumAlgorithm, ChecksumMode, Delete, MetadataDirective, ObjectIdentifier, StorageClass,
};

use super::*;

/// Right and wrong values of every checksum for the body `hello`.
fn checksums() -> [(&'static str, &'static str, &'static str); 5] {
    [
        ("x-amz-checksum-sha256", "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=", "crc"),
        ("x-amz-checksum-crc32c", "mnG7TA==", "AAAAAA=="),
        ("x-amz-checksum-crc32", "NhCmhg==", "AAAAAA=="),
        ("x-amz-checksum-crc64nvme", "M3eFcAZSQlc=", "AAAAAAAAAAA="),
        ("content-md5", "XUFAKrxLKna5cZ2REBfFkg==", "AAAAAAAAAAAAAAAAAAAAAA=="),
    ]
}

#[tokio::test]
async fn a_right_checksum_is_accepted_and_a_wrong_one_leaves_no_object() {
    let (server, client) = strict();
    for (header, right, wrong) in checksums() {
        let wrong = if wrong == "crc" { sha256(b"other") } else { wrong.to_owned() };
        let put = |value: String| {
            client
                .put_object()
                .bucket(BUCKET)
                .key(header)
                .body(stream(b"hello"))
                .customize()
                .mutate_request(move |request| {
                    request.headers_mut().insert(header, value.clone());
                })
                .send()
        };
        assert_refused(put(wrong).await, 400, "BadDigest");
        assert!(server.objects().keys().is_empty(), "{header}");
        put(right.to_owned()).await.unwrap_or_else(|error| panic!("{header}: {error:?}"));
        assert!(server.objects().remove(&format!("{BUCKET}/{header}")));
    }
}

#[tokio::test]
async fn malformed_and_doubled_checksums_are_refused() {
    let (server, client) = strict();
    let malformed =
        client.put_object().bucket(BUCKET).key("k").body(stream(b"hello")).checksum_sha256("AAAA");
    assert_refused(malformed.send().await, 400, "InvalidRequest");
    let malformed = client.put_object().bucket(BUCKET).key("k").body(stream(b"hello")).content_md5("AAAA");
    assert_refused(malformed.send().await, 400, "InvalidDigest");
    let doubled = client.put_object().bucket(BUCKET).key("k").body(stream(b"hello"));
    let doubled = doubled.checksum_sha256(sha256(b"hello")).checksum_crc32_c("mnG7TA==");
    assert_refused(doubled.send().await, 400, "InvalidRequest");
    assert!(server.objects().keys().is_empty());
}

#[tokio::test]
async fn an_algorithm_named_without_a_value_is_refused() {
    let (server, client) = strict();
    let named = |name: &'static str| {
        client.put_object().bucket(BUCKET).key("k").body(stream(b"hello")).customize().mutate_request(
            move |request| {
                request.headers_mut().insert("x-amz-sdk-checksum-algorithm", name);
            },
        )
    };
    assert_refused(named("SHA256").send().await, 400, "InvalidRequest");
    assert_refused(named("ROT13").send().await, 400, "InvalidRequest");
    let other =
        client.put_object().bucket(BUCKET).key("k").body(stream(b"hello")).checksum_crc32_c("mnG7TA==");
    let other = other.customize().mutate_request(|request| {
        request.headers_mut().insert("x-amz-sdk-checksum-algorithm", "SHA256");
    });
    assert_refused(other.send().await, 400, "InvalidRequest");
    assert!(server.objects().keys().is_empty());
}

#[tokio::test]
async fn a_trailing_checksum_is_verified() {
    use http_body_util::Full;
    let (server, client) = strict();
    // Only a body that cannot be read ahead makes the SDK send its checksum in a trailer.
    let streamed = || {
        use aws_sdk_s3::primitives::SdkBody;
        ByteStream::new(SdkBody::from_body_1_x(Full::new(bytes::Bytes::from_static(b"hello"))))
    };
    let put = client.put_object().bucket(BUCKET).key("k").body(streamed()).content_length(5);
    put.checksum_algorithm(ChecksumAlgorithm::Sha256)
        .customize()
        .config_override(
            aws_sdk_s3::Config::builder()
                .request_checksum_calculation(RequestChecksumCalculation::WhenSupported),
        )
        .send()
        .await
        .unwrap();
    let stored = server.objects().with(|table| table[&format!("{BUCKET}/k")].clone());
    assert_eq!(&stored.body[..], b"hello");
    assert_eq!(stored.checksums["sha256"], sha256(b"hello"));
    assert_eq!(stored.attributes.get("content-encoding"), None);
}

#[tokio::test]
async fn create_only_writes_refuse_an_existing_key() {
    let (server, client) = strict();
    let put = |data: &'static [u8]| {
        client.put_object().bucket(BUCKET).key("k").if_none_match("*").body(stream(data)).send()
    };
    put(b"first").await.unwrap();
    assert_refused(put(b"second").await, 412, "PreconditionFailed");
    assert_eq!(&server.objects().body("vault/k").unwrap()[..], b"first");
    let tagged = client.put_object().bucket(BUCKET).key("k").if_none_match("\"x\"").body(stream(b"x")).send();
    assert_refused(tagged.await, 501, "NotImplemented");
}

#[tokio::test]
async fn if_match_guards_an_overwrite() {
    let (_server, client) = strict();
    let absent = client.put_object().bucket(BUCKET).key("k").if_match("\"x\"").body(stream(b"x")).send();
    assert_refused(absent.await, 404, "NoSuchKey");
    let first = client.put_object().bucket(BUCKET).key("k").body(stream(b"first")).send().await.unwrap();
    let other = client.put_object().bucket(BUCKET).key("k").if_match("\"x\"").body(stream(b"x")).send();
    assert_refused(other.await, 412, "PreconditionFailed");
    let same = client.put_object().bucket(BUCKET).key("k").if_match(first.e_tag().unwrap());
    same.body(stream(b"second")).send().await.unwrap();
    assert_eq!(get(&client, "k").await, b"second");
}

#[tokio::test]
async fn copies_keep_metadata_and_honour_preconditions() {
    let (server, client) = strict();
    let put = client.put_object().bucket(BUCKET).key("from").body(stream(b"hello")).metadata("step", "7");
    put.checksum_sha256(sha256(b"hello")).tagging("run=a%20b").send().await.unwrap();
    let copy = |key: &str| client.copy_object().bucket(BUCKET).key(key).copy_source("vault/from");
    let copied = copy("to").if_none_match("*").send().await.unwrap();
    let result = copied.copy_object_result().unwrap();
    assert_eq!(result.checksum_sha256(), Some(&*sha256(b"hello")));
    assert_refused(copy("to").if_none_match("*").send().await, 412, "PreconditionFailed");
    assert_refused(copy("x").copy_source_if_match("\"x\"").send().await, 412, "PreconditionFailed");
    assert_refused(copy("from").send().await, 400, "InvalidRequest");
    let missing = client.copy_object().bucket(BUCKET).key("x").copy_source("vault/none").send();
    assert_refused(missing.await, 404, "NoSuchKey");
    let head = client.head_object().bucket(BUCKET).key("to").send().await.unwrap();
    assert_eq!(head.metadata().unwrap()["step"], "7");
    let tags = client.get_object_tagging().bucket(BUCKET).key("to").send().await.unwrap();
    assert_eq!(tags.tag_set()[0].value(), "a b");
    copy("to").metadata_directive(MetadataDirective::Replace).metadata("step", "8").send().await.unwrap();
    assert_eq!(server.objects().with(|table| table["vault/to"].attributes["x-amz-meta-step"].clone()), "8");
    assert!(server.objects().body("vault/x").is_none());
}

#[tokio::test]
async fn deletes_remove_objects_and_succeed_for_absent_ones() {
    let (server, client) = strict();
    for key in ["a", "b", "c"] {
        put(&client, key, b"x").await;
    }
    client.delete_object().bucket(BUCKET).key("a").send().await.unwrap();
    client.delete_object().bucket(BUCKET).key("a").send().await.unwrap();
    let identifier = |key: &str| ObjectIdentifier::builder().key(key).build().unwrap();
    let delete = Delete::builder().objects(identifier("b")).objects(identifier("none")).build().unwrap();
    let deleted = client.delete_objects().bucket(BUCKET).delete(delete).send().await.unwrap();
    assert_eq!(deleted.deleted().len(), 2);
    assert_eq!(server.objects().keys(), ["vault/c"]);
}

#[tokio::test]
async fn a_batch_delete_needs_a_digest() {
    let (server, client) = strict();
    put(&client, "a", b"x").await;
    let identifier = ObjectIdentifier::builder().key("a").build().unwrap();
    let delete = Delete::builder().objects(identifier).build().unwrap();
    let bare = client.delete_objects().bucket(BUCKET).delete(delete).customize().mutate_request(|request| {
        let headers = request.headers_mut();
        headers.remove("x-amz-checksum-crc32");
        headers.remove("x-amz-sdk-checksum-algorithm");
    });
    assert_refused(bare.send().await, 400, "InvalidRequest");
    assert_eq!(server.objects().keys(), ["vault/a"]);
}

#[tokio::test]
async fn storage_class_encryption_and_tags_are_kept_and_told() {
    use aws_sdk_s3::types::ServerSideEncryption;
    let (server, client) = strict();
    let put = client.put_object().bucket(BUCKET).key("k").body(stream(b"hello")).tagging("a=1&b=2");
    let put =
        put.storage_class(StorageClass::StandardIa).server_side_encryption(ServerSideEncryption::AwsKms);
    let answer = put.ssekms_key_id("key-1").send().await.unwrap();
    assert_eq!(answer.server_side_encryption(), Some(&ServerSideEncryption::AwsKms));
    assert_eq!(answer.ssekms_key_id(), Some("key-1"));
    let got = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!(got.storage_class(), Some(&StorageClass::StandardIa));
    assert_eq!(got.server_side_encryption(), Some(&ServerSideEncryption::AwsKms));
    assert_eq!(got.tag_count(), Some(2));
    let kept = server.objects().with(|table| table["vault/k"].attributes.clone());
    assert_eq!(kept["x-amz-tagging"], "a=1&b=2");
    let unknown = client.put_object().bucket(BUCKET).key("x").body(stream(b"x"));
    assert_refused(unknown.storage_class("COLDEST".into()).send().await, 400, "InvalidStorageClass");
    let archived = client.put_object().bucket(BUCKET).key("g").body(stream(b"x"));
    archived.storage_class(StorageClass::Glacier).send().await.unwrap();
    let read = client.get_object().bucket(BUCKET).key("g").send().await;
    assert_refused(read, 403, "InvalidObjectState");
}

#[tokio::test]
async fn an_object_without_a_checksum_gets_the_one_s3_computes() {
    let (_server, client) = strict();
    put(&client, "k", b"hello").await;
    let head = client.head_object().bucket(BUCKET).key("k").checksum_mode(ChecksumMode::Enabled).send();
    let head = head.await.unwrap();
    assert_eq!(head.checksum_crc64_nvme(), Some("M3eFcAZSQlc="));
    assert_eq!(head.checksum_sha256(), None);
}

use aws_sdk_s3::types::{ChecksumMode, ChecksumType};

use super::*;

#[tokio::test]
async fn checksums_are_told_only_when_asked_for_the_whole_object() {
    let (_server, client) = strict();
    let put = client.put_object().bucket(BUCKET).key("k").body(stream(b"hello"));
    let answer = put.checksum_sha256(sha256(b"hello")).send().await.unwrap();
    assert_eq!(answer.checksum_sha256(), Some(&*sha256(b"hello")));
    let head = || client.head_object().bucket(BUCKET).key("k");
    assert_eq!(head().send().await.unwrap().checksum_sha256(), None);
    let told = head().checksum_mode(ChecksumMode::Enabled).send().await.unwrap();
    assert_eq!(told.checksum_sha256(), Some(&*sha256(b"hello")));
    assert_eq!(told.checksum_type(), Some(&ChecksumType::FullObject));
    let get = || client.get_object().bucket(BUCKET).key("k");
    assert_eq!(get().send().await.unwrap().checksum_sha256(), None);
    let told = get().checksum_mode(ChecksumMode::Enabled).send().await.unwrap();
    assert_eq!(told.checksum_sha256(), Some(&*sha256(b"hello")));
    let ranged = get().checksum_mode(ChecksumMode::Enabled).range("bytes=0-1").send().await.unwrap();
    assert_eq!(ranged.checksum_sha256(), None);
}

#[tokio::test]
async fn ranges_answer_206_and_416() {
    let (_server, client) = strict();
    put(&client, "k", b"0123456789").await;
    put(&client, "empty", b"").await;
    for (range, expected, told) in [
        ("bytes=2-4", &b"234"[..], "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=8-99", b"89", "bytes 8-9/10"),
    ] {
        let got = client.get_object().bucket(BUCKET).key("k").range(range).send().await.unwrap();
        assert_eq!(got.content_range(), Some(told));
        assert_eq!(got.content_length(), i64::try_from(expected.len()).ok());
        assert_eq!(&got.body.collect().await.unwrap().to_vec(), expected);
    }
    for (key, range) in [("k", "bytes=10-11"), ("empty", "bytes=0-0")] {
        let past_end = client.get_object().bucket(BUCKET).key(key).range(range).send().await;
        assert_refused(past_end, 416, "InvalidRange");
    }
}

#[tokio::test]
async fn conditional_reads() {
    let (_server, client) = strict();
    put(&client, "k", b"hello").await;
    let tag = client.head_object().bucket(BUCKET).key("k").send().await.unwrap().e_tag().unwrap().to_owned();
    let get = || client.get_object().bucket(BUCKET).key("k");
    get().if_match(&tag).send().await.unwrap();
    assert_refused(get().if_match("\"x\"").send().await, 412, "PreconditionFailed");
    get().if_none_match("\"x\"").send().await.unwrap();
    assert_eq!(refusal(get().if_none_match(&tag).send().await).0, 304);
}

#[tokio::test]
async fn absent_keys_and_buckets_are_told_apart() {
    let (_server, client) = strict();
    assert_refused(client.get_object().bucket(BUCKET).key("none").send().await, 404, "NoSuchKey");
    assert_eq!(refusal(client.head_object().bucket(BUCKET).key("none").send().await).0, 404);
    let elsewhere = client.put_object().bucket("nowhere").key("k").body(stream(b"x")).send().await;
    assert_refused(elsewhere, 404, "NoSuchBucket");
    assert_refused(client.list_objects_v2().bucket("nowhere").send().await, 404, "NoSuchBucket");
    assert_eq!(refusal(client.head_bucket().bucket("nowhere").send().await).0, 404);
    client.head_bucket().bucket(BUCKET).send().await.unwrap();
}

#[tokio::test]
async fn damage_behind_the_clients_back_keeps_the_recorded_checksum() {
    let (server, client) = strict();
    let put = client.put_object().bucket(BUCKET).key("k").body(stream(b"hello"));
    put.checksum_sha256(sha256(b"hello")).send().await.unwrap();
    assert!(server.objects().flip_bit("vault/k", 0));
    let got = client.get_object().bucket(BUCKET).key("k").checksum_mode(ChecksumMode::Enabled).send();
    let got = got.await.unwrap();
    assert_eq!(got.checksum_sha256(), Some(&*sha256(b"hello")));
    got.body.collect().await.unwrap_err();
    assert_eq!(get(&client, "k").await, b"iello");
    assert!(server.objects().truncate("vault/k", 2));
    assert_eq!(get(&client, "k").await, b"ie");
}

use aws_sdk_s3::types::{ChecksumAlgorithm, ChecksumMode, CompletedMultipartUpload, CompletedPart};
use stepvault_testkit::discard::{DiscardS3, pattern};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

fn discard() -> (DiscardS3, Client) {
    let server = DiscardS3::start();
    let client = client(&server.endpoint(), "any", "secret");
    (server, client)
}

/// The bytes a generated object has from `first` on.
fn generated(first: usize, length: usize) -> Vec<u8> {
    (first..first + length).map(|at| pattern()[at % pattern().len()]).collect()
}

#[tokio::test]
async fn large_bodies_are_forgotten_and_their_sizes_are_not() {
    let (server, client) = discard();
    put(&client, "a b/k", &bytes(3_000_000, 1)).await;
    assert_eq!(server.store().size_bytes("vault/a b/k"), Some(3_000_000));
    let head = client.head_object().bucket(BUCKET).key("a b/k").send().await.unwrap();
    assert_eq!(head.content_length(), Some(3_000_000));
    assert!(head.last_modified().is_some());
    assert_eq!(get(&client, "a b/k").await, generated(0, 3_000_000));
    let ranged = client.get_object().bucket(BUCKET).key("a b/k").range("bytes=1048570-2097160").send();
    let ranged = ranged.await.unwrap();
    assert_eq!(ranged.content_range(), Some("bytes 1048570-2097160/3000000"));
    assert_eq!(ranged.body.collect().await.unwrap().to_vec(), generated(1_048_570, 1_048_591));
    let past_end = client.get_object().bucket(BUCKET).key("a b/k").range("bytes=3000000-").send().await;
    assert_refused(past_end, 416, "InvalidRange");
    assert_refused(client.get_object().bucket(BUCKET).key("none").send().await, 404, "NoSuchKey");
}

#[tokio::test]
async fn small_files_of_a_vault_come_back_and_are_created_once() {
    let (_server, client) = discard();
    let key = "runs/.stepvault/commit.json";
    let put = |data: &'static [u8]| {
        let put = client.put_object().bucket(BUCKET).key(key).if_none_match("*");
        put.checksum_sha256(sha256(data)).body(stream(data)).send()
    };
    put(b"first").await.unwrap();
    assert_refused(put(b"second").await, 412, "PreconditionFailed");
    let got = client.get_object().bucket(BUCKET).key(key).checksum_mode(ChecksumMode::Enabled).send();
    assert_eq!(got.await.unwrap().body.collect().await.unwrap().to_vec(), b"first");
}

#[tokio::test]
async fn a_wrong_digest_of_a_small_body_is_refused() {
    let (server, client) = discard();
    let put = client.put_object().bucket(BUCKET).key("probe").checksum_sha256(sha256(b"other"));
    assert_refused(put.body(stream(b"probe")).send().await, 400, "BadDigest");
    assert_eq!(server.store().size_bytes("vault/probe"), None);
    let created = client.create_multipart_upload().bucket(BUCKET).key("probe").send().await.unwrap();
    let part = client.upload_part().bucket(BUCKET).key("probe").upload_id(created.upload_id().unwrap());
    let part = part.part_number(1).checksum_sha256(sha256(b"other")).body(stream(b"probe")).send().await;
    assert_refused(part, 400, "BadDigest");
}

#[tokio::test]
async fn a_multipart_upload_answers_with_the_composite_checksum() {
    let (server, client) = discard();
    let (first, second) = (bytes(5 << 20, 1), bytes(100, 2));
    let create = client.create_multipart_upload().bucket(BUCKET).key("k");
    let created = create.checksum_algorithm(ChecksumAlgorithm::Sha256).send().await.unwrap();
    let id = created.upload_id().unwrap();
    let mut list = CompletedMultipartUpload::builder();
    for (number, data) in (1..).zip([&first, &second]) {
        let part = client.upload_part().bucket(BUCKET).key("k").upload_id(id).part_number(number);
        let part = part.checksum_sha256(sha256(data)).body(stream(data)).send().await.unwrap();
        let listed = CompletedPart::builder().part_number(number).checksum_sha256(sha256(data));
        list = list.parts(listed.e_tag(part.e_tag().unwrap()).build());
    }
    assert_eq!(server.store().pending_uploads(), 1);
    let uploads = client.list_multipart_uploads().bucket(BUCKET).send().await.unwrap();
    assert_eq!(uploads.uploads()[0].upload_id(), Some(id));
    let expected = composite_sha256(&[&first, &second]);
    let complete = client.complete_multipart_upload().bucket(BUCKET).key("k").upload_id(id);
    let complete = complete.if_none_match("*").multipart_upload(list.build());
    assert_refused(complete.clone().mpu_object_size(1).send().await, 400, "InvalidRequest");
    let completed = complete.clone().mpu_object_size((5 << 20) + 100).send().await.unwrap();
    assert_eq!(completed.checksum_sha256(), Some(&*expected));
    let head = client.head_object().bucket(BUCKET).key("k").checksum_mode(ChecksumMode::Enabled).send();
    assert_eq!(head.await.unwrap().checksum_sha256(), Some(&*expected));
    assert_refused(complete.send().await, 412, "PreconditionFailed");
    assert_eq!(server.store().pending_uploads(), 0);
}

#[tokio::test]
async fn listings_and_deletes() {
    let (server, client) = discard();
    for number in 0..1500 {
        server.store().seed(&format!("vault/many/{number:04}"), 10);
    }
    server.store().seed("vault/one & <only>", 1);
    let mut pages = client.list_objects_v2().bucket(BUCKET).prefix("many/").into_paginator().send();
    let mut keys = Vec::new();
    while let Some(page) = pages.next().await {
        keys.extend(page.unwrap().contents().iter().map(|object| object.key().unwrap().to_owned()));
    }
    assert_eq!((keys.len(), keys[1499].as_str()), (1500, "many/1499"));
    let top = client.list_objects_v2().bucket(BUCKET).delimiter("/").send().await.unwrap();
    assert_eq!(top.common_prefixes()[0].prefix(), Some("many/"));
    assert_eq!(top.contents()[0].key(), Some("one & <only>"));
    client.delete_object().bucket(BUCKET).key("one & <only>").send().await.unwrap();
    assert_eq!(server.store().size_bytes("vault/one & <only>"), None);
}

/// Reads the counts of a server over a connection of their own, which the server closes.
async fn counts(server: &DiscardS3) -> serde_json::Value {
    let endpoint = server.endpoint();
    let mut stream = TcpStream::connect(endpoint.trim_start_matches("http://")).await.unwrap();
    let request = b"GET /.counts HTTP/1.1\r\nhost: discard\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

#[tokio::test]
async fn requests_and_connections_are_counted_since_they_were_last_read() {
    let (server, client) = discard();
    for key in ["a", "b", "c"] {
        put(&client, key, b"x").await;
    }
    let counted = |requests, connections| {
        serde_json::json!({
            "requests": requests, "connections": connections, "handshakes": 0, "resumed": 0,
        })
    };
    assert_eq!(counts(&server).await, counted(3, 1));
    assert_eq!(counts(&server).await, counted(0, 0));
}

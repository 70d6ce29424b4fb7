use aws_sdk_s3::types::ChecksumMode;

use super::*;

#[tokio::test]
async fn a_store_can_be_told_never_to_answer_with_checksums() {
    let (_server, client) =
        strict_with(StrictS3Options { no_checksum_answers: true, ..StrictS3Options::default() });
    let put = client.put_object().bucket(BUCKET).key("k").body(stream(b"hello"));
    let answer = put.checksum_sha256(sha256(b"hello")).send().await.unwrap();
    assert_eq!(answer.checksum_sha256(), None);
    let head = client.head_object().bucket(BUCKET).key("k").checksum_mode(ChecksumMode::Enabled).send();
    let head = head.await.unwrap();
    assert_eq!((head.checksum_sha256(), head.checksum_type()), (None, None));
    let wrong = client.put_object().bucket(BUCKET).key("w").body(stream(b"hello"));
    assert_refused(wrong.checksum_sha256(sha256(b"other")).send().await, 400, "BadDigest");
}

#[tokio::test]
async fn a_store_can_be_told_to_believe_every_checksum() {
    let (_server, client) =
        strict_with(StrictS3Options { accept_wrong_checksums: true, ..StrictS3Options::default() });
    let put = client.put_object().bucket(BUCKET).key("k").body(stream(b"hello"));
    put.checksum_sha256(sha256(b"other")).send().await.unwrap();
    let head = client.head_object().bucket(BUCKET).key("k").checksum_mode(ChecksumMode::Enabled).send();
    assert_eq!(head.await.unwrap().checksum_sha256(), Some(&*sha256(b"other")));
}

#[tokio::test]
async fn a_store_can_be_told_to_ignore_create_only() {
    let (_server, client) =
        strict_with(StrictS3Options { ignore_create_only: true, ..StrictS3Options::default() });
    for data in [b"first", b"again"] {
        let put = client.put_object().bucket(BUCKET).key("k").if_none_match("*").body(stream(data));
        put.send().await.unwrap();
    }
    assert_eq!(get(&client, "k").await, b"again");
}

#[tokio::test]
async fn a_store_can_be_told_to_have_no_copies() {
    let (server, client) = strict_with(StrictS3Options { no_copies: true, ..StrictS3Options::default() });
    put(&client, "from", b"hello").await;
    let copy = client.copy_object().bucket(BUCKET).key("to");
    let copied = copy.copy_source(format!("{BUCKET}/from")).send().await;
    assert_refused(copied, 501, "NotImplemented");
    assert_eq!(server.objects().keys(), [format!("{BUCKET}/from")]);
}

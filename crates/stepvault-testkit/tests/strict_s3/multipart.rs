use aws_sdk_s3::operation::complete_multipart_upload::builders::CompleteMultipartUploadFluentBuilder;
use aws_sdk_s3::types::{
    ChecksumAlgorithm, ChecksumMode, ChecksumType, CompletedMultipartUpload, CompletedPart,
};

use super::*;

const LEAST_PART: usize = 5 << 20;

/// An upload created with SHA-256 and the parts a client would list for it.
struct Upload<'a> {
    client: &'a Client,
    id: String,
    parts: Vec<CompletedPart>,
}

impl<'a> Upload<'a> {
    async fn begin(client: &'a Client) -> Self {
        let create = client.create_multipart_upload().bucket(BUCKET).key("k");
        let created = create
            .checksum_algorithm(ChecksumAlgorithm::Sha256)
            .checksum_type(ChecksumType::Composite)
            .send()
            .await
            .unwrap();
        assert_eq!(created.checksum_algorithm(), Some(&ChecksumAlgorithm::Sha256));
        assert_eq!(created.checksum_type(), Some(&ChecksumType::Composite));
        Self { client, id: created.upload_id().unwrap().to_owned(), parts: Vec::new() }
    }

    async fn with_parts(client: &'a Client, parts: &[&[u8]]) -> Self {
        let mut upload = Self::begin(client).await;
        for (number, data) in (1..).zip(parts) {
            upload.part(number, data).await;
        }
        upload
    }

    async fn part(&mut self, number: i32, data: &[u8]) {
        let part = self.client.upload_part().bucket(BUCKET).key("k").upload_id(&self.id).part_number(number);
        let stored = part.checksum_sha256(sha256(data)).body(stream(data)).send().await.unwrap();
        assert_eq!(stored.checksum_sha256(), Some(&*sha256(data)));
        let listed = CompletedPart::builder().part_number(number).checksum_sha256(sha256(data));
        self.parts.push(listed.set_e_tag(stored.e_tag().map(str::to_owned)).build());
    }

    fn complete(&self) -> CompleteMultipartUploadFluentBuilder {
        self.complete_with(self.parts.clone())
    }

    fn complete_with(&self, parts: Vec<CompletedPart>) -> CompleteMultipartUploadFluentBuilder {
        let list = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
        let complete = self.client.complete_multipart_upload().bucket(BUCKET).key("k").upload_id(&self.id);
        complete.checksum_type(ChecksumType::Composite).multipart_upload(list)
    }
}

#[tokio::test]
async fn the_composite_checksum_is_stored_and_told() {
    let (server, client) = strict();
    let (first, second) = (bytes(LEAST_PART, 1), bytes(1000, 2));
    let upload = Upload::with_parts(&client, &[&first, &second]).await;
    let expected = composite_sha256(&[&first, &second]);
    let size = i64::try_from(first.len() + second.len()).unwrap();
    let completed = upload.complete().mpu_object_size(size).if_none_match("*").send().await.unwrap();
    assert_eq!(completed.checksum_sha256(), Some(&*expected));
    assert_eq!(completed.checksum_type(), Some(&ChecksumType::Composite));
    assert!(completed.e_tag().unwrap().ends_with("-2\""));
    let head = client.head_object().bucket(BUCKET).key("k").checksum_mode(ChecksumMode::Enabled).send();
    let head = head.await.unwrap();
    assert_eq!(head.checksum_sha256(), Some(&*expected));
    assert_eq!((head.checksum_type(), head.content_length()), (Some(&ChecksumType::Composite), Some(size)));
    let quiet = client.head_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!(quiet.checksum_sha256(), None);
    assert_eq!(get(&client, "k").await, [first, second].concat());
    assert!(server.pending_uploads().is_empty());
}

#[tokio::test]
async fn a_wrong_checksum_of_a_part_leaves_no_part() {
    let (server, client) = strict();
    let upload = Upload::begin(&client).await;
    let part = || client.upload_part().bucket(BUCKET).key("k").upload_id(&upload.id).part_number(1);
    let wrong = part().checksum_sha256(sha256(b"other")).body(stream(b"part")).send().await;
    assert_refused(wrong, 400, "BadDigest");
    let wrong = part().content_md5("AAAAAAAAAAAAAAAAAAAAAA==").checksum_sha256(sha256(b"part"));
    assert_refused(wrong.body(stream(b"part")).send().await, 400, "BadDigest");
    assert!(server.pending_uploads()[0].part_numbers.is_empty());
}

#[tokio::test]
async fn parts_must_carry_the_algorithm_of_their_upload() {
    let (_server, client) = strict();
    let upload = Upload::begin(&client).await;
    let part = || client.upload_part().bucket(BUCKET).key("k").upload_id(&upload.id).part_number(1);
    assert_refused(part().body(stream(b"hello")).send().await, 400, "InvalidRequest");
    let other = part().checksum_crc32_c("mnG7TA==").body(stream(b"hello")).send().await;
    assert_refused(other, 400, "InvalidRequest");
    let plain = client.create_multipart_upload().bucket(BUCKET).key("k").send().await.unwrap();
    let part =
        client.upload_part().bucket(BUCKET).key("k").upload_id(plain.upload_id().unwrap()).part_number(1);
    let unasked = part.checksum_sha256(sha256(b"hello")).body(stream(b"hello")).send().await;
    assert_refused(unasked, 400, "InvalidRequest");
}

#[tokio::test]
async fn completion_checks_checksums_tags_and_order() {
    let (server, client) = strict();
    let (first, second) = (bytes(LEAST_PART, 1), bytes(1000, 2));
    let upload = Upload::with_parts(&client, &[&first, &second]).await;
    let edited = |edit: &dyn Fn(&mut Vec<CompletedPart>)| {
        let mut parts = upload.parts.clone();
        edit(&mut parts);
        upload.complete_with(parts).send()
    };
    let rebuilt = |part: &CompletedPart| {
        CompletedPart::builder()
            .set_part_number(part.part_number())
            .set_e_tag(part.e_tag().map(str::to_owned))
            .set_checksum_sha256(part.checksum_sha256().map(str::to_owned))
    };
    let without = edited(&|parts| parts[1] = rebuilt(&parts[1]).set_checksum_sha256(None).build());
    assert_refused(without.await, 400, "InvalidRequest");
    let wrong = edited(&|parts| parts[1] = rebuilt(&parts[1]).checksum_sha256(sha256(b"other")).build());
    assert_refused(wrong.await, 400, "InvalidPart");
    let tag = edited(&|parts| parts[0] = rebuilt(&parts[0]).e_tag("\"00\"").build());
    assert_refused(tag.await, 400, "InvalidPart");
    let absent = edited(&|parts| parts[1] = rebuilt(&parts[1]).part_number(3).build());
    assert_refused(absent.await, 400, "InvalidPart");
    assert_refused(edited(&|parts| parts.reverse()).await, 400, "InvalidPartOrder");
    let twice = edited(&|parts| parts.push(rebuilt(&parts[1]).build()));
    assert_refused(twice.await, 400, "InvalidPartOrder");
    assert_refused(edited(&Vec::clear).await, 400, "MalformedXML");
    assert!(server.objects().keys().is_empty());
    upload.complete().send().await.unwrap();
}

#[tokio::test]
async fn completion_checks_size_type_and_whole_checksum() {
    let (server, client) = strict();
    let upload = Upload::with_parts(&client, &[b"only"]).await;
    assert_refused(upload.complete().mpu_object_size(5).send().await, 400, "InvalidRequest");
    let kind = upload.complete().checksum_type(ChecksumType::FullObject);
    assert_refused(kind.send().await, 400, "InvalidRequest");
    let wrong = upload.complete().checksum_sha256(composite_sha256(&[b"other"]));
    assert_refused(wrong.send().await, 400, "BadDigest");
    assert!(server.objects().keys().is_empty());
    let right = upload.complete().checksum_sha256(composite_sha256(&[b"only"])).mpu_object_size(4);
    right.send().await.unwrap();
}

#[tokio::test]
async fn only_the_last_part_may_be_small() {
    let (_server, client) = strict();
    let small = Upload::with_parts(&client, &[&bytes(LEAST_PART - 1, 1), b"end"]).await;
    assert_refused(small.complete().send().await, 400, "EntityTooSmall");
}

#[tokio::test]
async fn a_finished_or_aborted_upload_is_gone() {
    let (server, client) = strict();
    let upload = Upload::with_parts(&client, &[b"only"]).await;
    upload.complete().send().await.unwrap();
    assert_refused(upload.complete().send().await, 404, "NoSuchUpload");
    let late = client.upload_part().bucket(BUCKET).key("k").upload_id(&upload.id).part_number(2);
    let late = late.checksum_sha256(sha256(b"x")).body(stream(b"x")).send().await;
    assert_refused(late, 404, "NoSuchUpload");
    let parts = client.list_parts().bucket(BUCKET).key("k").upload_id(&upload.id).send().await;
    assert_refused(parts, 404, "NoSuchUpload");
    let aborted = Upload::with_parts(&client, &[b"only"]).await;
    let abort = || client.abort_multipart_upload().bucket(BUCKET).key("k").upload_id(&aborted.id).send();
    abort().await.unwrap();
    assert_refused(aborted.complete().send().await, 404, "NoSuchUpload");
    assert_refused(abort().await, 404, "NoSuchUpload");
    assert!(server.pending_uploads().is_empty());
}

#[tokio::test]
async fn create_only_completion_refuses_an_existing_key() {
    let (server, client) = strict();
    let upload = Upload::with_parts(&client, &[b"later"]).await;
    put(&client, "k", b"first").await;
    assert_refused(upload.complete().if_none_match("*").send().await, 412, "PreconditionFailed");
    assert_eq!(get(&client, "k").await, b"first");
    assert_eq!(server.pending_uploads().len(), 1);
}

#[tokio::test]
async fn a_part_sent_again_replaces_the_first() {
    let (_server, client) = strict();
    let mut upload = Upload::with_parts(&client, &[b"first"]).await;
    let stale = upload.parts.clone();
    upload.parts.clear();
    upload.part(1, b"again").await;
    assert_refused(upload.complete_with(stale).send().await, 400, "InvalidPart");
    upload.complete().send().await.unwrap();
    assert_eq!(get(&client, "k").await, b"again");
}

#[tokio::test]
async fn parts_can_be_copied_by_range() {
    let (_server, client) = strict();
    let source = bytes(LEAST_PART + 500, 9);
    put(&client, "from", &source).await;
    let mut upload = Upload::begin(&client).await;
    let copy = |number, range: &str| {
        let copy =
            client.upload_part_copy().bucket(BUCKET).key("k").upload_id(&upload.id).part_number(number);
        copy.copy_source("vault/from").copy_source_range(range).send()
    };
    assert_refused(copy(1, &format!("bytes=0-{}", source.len())).await, 400, "InvalidArgument");
    let copied = copy(1, &format!("bytes=100-{}", LEAST_PART + 99)).await.unwrap();
    let result = copied.copy_part_result().unwrap();
    let expected = &source[100..LEAST_PART + 100];
    assert_eq!(result.checksum_sha256(), Some(&*sha256(expected)));
    let listed = CompletedPart::builder().part_number(1).checksum_sha256(sha256(expected));
    let listed = listed.e_tag(result.e_tag().unwrap()).build();
    upload.parts.push(listed);
    upload.part(2, b"end").await;
    upload.complete().send().await.unwrap();
    assert_eq!(get(&client, "k").await, [expected, b"end"].concat());
}

#[tokio::test]
async fn impossible_checksum_types_are_refused() {
    let (_server, client) = strict();
    let create = |algorithm, kind| {
        let create = client.create_multipart_upload().bucket(BUCKET).key("k");
        create.checksum_algorithm(algorithm).checksum_type(kind).send()
    };
    let sha = create(ChecksumAlgorithm::Sha256, ChecksumType::FullObject).await;
    assert_refused(sha, 400, "InvalidRequest");
    let crc = create(ChecksumAlgorithm::Crc64Nvme, ChecksumType::Composite).await;
    assert_refused(crc, 400, "InvalidRequest");
    create(ChecksumAlgorithm::Crc32C, ChecksumType::Composite).await.unwrap();
    create(ChecksumAlgorithm::Crc32C, ChecksumType::FullObject).await.unwrap();
}

#[tokio::test]
async fn attributes_of_the_upload_become_those_of_the_object() {
    let (_server, client) = strict();
    let create = client.create_multipart_upload().bucket(BUCKET).key("k").metadata("step", "7");
    let created = create.storage_class("STANDARD_IA".into()).tagging("a=1").send().await.unwrap();
    let id = created.upload_id().unwrap();
    let part = client.upload_part().bucket(BUCKET).key("k").upload_id(id).part_number(1);
    let part = part.body(stream(b"only")).send().await.unwrap();
    let listed = CompletedPart::builder().part_number(1).e_tag(part.e_tag().unwrap()).build();
    let list = CompletedMultipartUpload::builder().parts(listed).build();
    let complete = client.complete_multipart_upload().bucket(BUCKET).key("k").upload_id(id);
    complete.multipart_upload(list).send().await.unwrap();
    let got = client.get_object().bucket(BUCKET).key("k").checksum_mode(ChecksumMode::Enabled).send();
    let got = got.await.unwrap();
    assert_eq!(got.metadata().unwrap()["step"], "7");
    assert_eq!((got.storage_class().unwrap().as_str(), got.tag_count()), ("STANDARD_IA", Some(1)));
    assert_eq!(got.checksum_type(), Some(&ChecksumType::FullObject));
    assert!(got.checksum_crc64_nvme().is_some());
}

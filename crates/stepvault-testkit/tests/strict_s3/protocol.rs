use aws_sdk_s3::config::interceptors::BeforeTransmitInterceptorContextMut;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::SdkBody;

use super::*;

/// Changes a body between its signing and its sending.
#[derive(Debug)]
struct ChangeBody;

impl Intercept for ChangeBody {
    fn name(&self) -> &'static str {
        "ChangeBody"
    }

    fn modify_before_transmit(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        *context.request_mut().body_mut() = SdkBody::from("hellx");
        Ok(())
    }
}

#[tokio::test]
async fn a_wrong_secret_or_key_is_refused() {
    let (server, _) = strict();
    let endpoint = server.endpoint();
    let wrong_secret = client(&endpoint, server.access_key(), "wrong");
    let put = wrong_secret.put_object().bucket(BUCKET).key("k").body(stream(b"x")).send().await;
    assert_refused(put, 403, "SignatureDoesNotMatch");
    let wrong_key = client(&endpoint, "AKIAOTHER", server.secret_key());
    let put = wrong_key.put_object().bucket(BUCKET).key("k").body(stream(b"x")).send().await;
    assert_refused(put, 403, "InvalidAccessKeyId");
    assert!(server.objects().keys().is_empty());
}

#[tokio::test]
async fn a_body_that_is_not_the_signed_one_is_refused() {
    let (server, client) = strict();
    let put = client.put_object().bucket(BUCKET).key("k").body(stream(b"hello"));
    let put = put.customize().interceptor(ChangeBody).send().await;
    assert_refused(put, 400, "XAmzContentSHA256Mismatch");
    assert!(server.objects().keys().is_empty());
}

#[tokio::test]
async fn an_unsigned_payload_is_accepted_and_its_checksum_still_verified() {
    let (server, client) = strict();
    let put = |sum: String| {
        client
            .put_object()
            .bucket(BUCKET)
            .key("k")
            .body(stream(b"hello"))
            .checksum_sha256(sum)
            .customize()
            .disable_payload_signing()
            .send()
    };
    assert_refused(put(sha256(b"other")).await, 400, "BadDigest");
    put(sha256(b"hello")).await.unwrap();
    assert_eq!(server.objects().keys(), ["vault/k"]);
}

#[tokio::test]
async fn the_expected_bucket_owner_must_be_the_owner() {
    let (server, client) = strict_with(StrictS3Options {
        bucket_owner: "444455556666".to_owned(),
        ..StrictS3Options::default()
    });
    let put = |owner: &str| {
        client.put_object().bucket(BUCKET).key("k").body(stream(b"x")).expected_bucket_owner(owner).send()
    };
    assert_refused(put("111122223333").await, 403, "AccessDenied");
    assert!(server.objects().keys().is_empty());
    put("444455556666").await.unwrap();
    let list = client.list_objects_v2().bucket(BUCKET).expected_bucket_owner("1").send().await;
    assert_refused(list, 403, "AccessDenied");
    let copy = client.copy_object().bucket(BUCKET).key("c").copy_source("vault/k");
    assert_refused(copy.expected_source_bucket_owner("1").send().await, 403, "AccessDenied");
}

#[tokio::test]
async fn keys_of_any_kind_survive_the_way_there_and_back() {
    let (server, client) = strict();
    for key in ["a b+c", "ä/ö", "x=1&y=2", "100%", "deep//empty", "<tag>\"'", "~tilde.-_"] {
        put(&client, key, key.as_bytes()).await;
        assert_eq!(get(&client, key).await, key.as_bytes());
        assert!(server.objects().body(&format!("{BUCKET}/{key}")).is_some(), "{key}");
    }
    let listed = client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(listed.contents().len(), 7);
}

#[tokio::test]
async fn lifecycle_rules_are_kept() {
    use aws_sdk_s3::types::{
        AbortIncompleteMultipartUpload, BucketLifecycleConfiguration, ExpirationStatus, LifecycleRule,
        LifecycleRuleFilter,
    };
    let (_server, client) = strict();
    let absent = client.get_bucket_lifecycle_configuration().bucket(BUCKET).send().await;
    assert_refused(absent, 404, "NoSuchLifecycleConfiguration");
    let rule = LifecycleRule::builder()
        .status(ExpirationStatus::Enabled)
        .filter(LifecycleRuleFilter::builder().prefix("").build())
        .abort_incomplete_multipart_upload(
            AbortIncompleteMultipartUpload::builder().days_after_initiation(3).build(),
        )
        .build()
        .unwrap();
    let configuration = BucketLifecycleConfiguration::builder().rules(rule).build().unwrap();
    let put = client.put_bucket_lifecycle_configuration().bucket(BUCKET);
    put.lifecycle_configuration(configuration).send().await.unwrap();
    let kept = client.get_bucket_lifecycle_configuration().bucket(BUCKET).send().await.unwrap();
    let days = kept.rules()[0].abort_incomplete_multipart_upload().unwrap().days_after_initiation();
    assert_eq!(days, Some(3));
}

//! Checks of every request before its operation runs.

use std::sync::Arc;

use http::HeaderMap;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::CopySource;
use s3s::path::S3Path;
use s3s::{S3Result, s3_error};

use super::checksums;
use super::state::State;

/// Looks up the keys that the server accepts.
pub(crate) struct Keys(pub(crate) Arc<State>);

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.0.keys().get(access_key) {
            Some(key) => Ok(SecretKey::from(key.secret.as_str())),
            None => Err(s3_error!(
                InvalidAccessKeyId,
                "The AWS Access Key Id you provided does not exist in our records."
            )),
        }
    }
}

/// Checks signature, bucket, owner and checksum headers, in this order.
pub(crate) struct Gate(pub(crate) Arc<State>);

#[async_trait::async_trait]
impl S3Access for Gate {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let pays = context.headers().get("x-amz-request-payer");
        let refuses_payer = self.0.options.requester_pays && pays.is_none_or(|pays| pays != "requester");
        let reads = ["GetObject", "HeadObject", "ListObjectsV2", "HeadBucket"];
        let is_public = self.0.options.public_reads && reads.contains(&context.s3_op().name());
        if (context.credentials().is_none() && !is_public) || refuses_payer {
            return Err(s3_error!(AccessDenied, "Access Denied"));
        }
        let mut names = context.headers().keys().map(http::HeaderName::as_str);
        if self.0.options.refuse_checksums
            && let Some(name) = names.find(|name| name.starts_with("x-amz-checksum-"))
        {
            return Err(s3_error!(
                InvalidArgument,
                "Unsupported header '{name}' received for this API call."
            ));
        }
        let bucket = match context.s3_path() {
            S3Path::Root => None,
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => Some(&**bucket),
        };
        if let Some(bucket) = bucket
            && context.s3_op().name() != "CreateBucket"
        {
            self.check_bucket(bucket, context.headers(), "x-amz-expected-bucket-owner")?;
        }
        if let Some(source) = context.headers().get("x-amz-copy-source")
            && let Some(CopySource::Bucket { bucket, .. }) =
                source.to_str().ok().and_then(|source| CopySource::parse(source).ok())
        {
            self.check_bucket(&bucket, context.headers(), "x-amz-source-expected-bucket-owner")?;
        }
        checksums::check_announcement(context.headers())
    }
}

impl Gate {
    fn check_bucket(&self, bucket: &str, headers: &HeaderMap, owner_header: &str) -> S3Result<()> {
        if !self.0.buckets().contains_key(bucket) {
            return Err(s3_error!(NoSuchBucket, "The specified bucket does not exist"));
        }
        match headers.get(owner_header) {
            Some(owner)
                if !self.0.options.ignores_attributes
                    && owner.as_bytes() != self.0.options.bucket_owner.as_bytes() =>
            {
                Err(s3_error!(AccessDenied, "Access Denied"))
            }
            _ => Ok(()),
        }
    }
}

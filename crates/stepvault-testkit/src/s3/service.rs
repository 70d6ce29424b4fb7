//! The operations that a strict server supports; all others answer 501.

use std::sync::Arc;

#[allow(clippy::wildcard_imports, reason = "two types for each operation")]
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use super::state::State;
use super::{complete, listing, multipart, reads, uploads_listing, writes};

pub(crate) struct Service(pub(crate) Arc<State>);

#[async_trait::async_trait]
impl S3 for Service {
    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        writes::put(&self.0, request).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        reads::get(&self.0, &request)
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        reads::head(&self.0, &request)
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        writes::copy(&self.0, &request)
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        writes::delete(&self.0, &request.input)
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        writes::delete_many(&self.0, &request)
    }

    async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        writes::get_tags(&self.0, &request.input)
    }

    async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        writes::put_tags(&self.0, &request.input)
    }

    async fn restore_object(
        &self,
        request: S3Request<RestoreObjectInput>,
    ) -> S3Result<S3Response<RestoreObjectOutput>> {
        reads::restore(&self.0, &request.input)
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        listing::list(&self.0, &request.input)
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        multipart::create(&self.0, &request)
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        multipart::upload_part(&self.0, request).await
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        multipart::upload_part_copy(&self.0, &request)
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        complete::complete(&self.0, &request)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        multipart::abort(&self.0, &request.input)
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        uploads_listing::list_uploads(&self.0, &request.input)
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        uploads_listing::list_parts(&self.0, &request.input)
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        if self.0.buckets().contains_key(&request.input.bucket) {
            return Err(s3_error!(BucketAlreadyOwnedByYou, "The bucket exists and you own it."));
        }
        self.0.create_bucket(&request.input.bucket);
        let location = Some(format!("/{}", request.input.bucket));
        Ok(S3Response::new(CreateBucketOutput { location }))
    }

    async fn head_bucket(&self, _: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        let bucket_region = Some("us-east-1".to_owned());
        Ok(S3Response::new(HeadBucketOutput { bucket_region, ..HeadBucketOutput::default() }))
    }

    async fn list_buckets(&self, _: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        let buckets = self
            .0
            .buckets()
            .iter()
            .map(|(name, bucket)| Bucket {
                name: Some(name.clone()),
                creation_date: Some(Timestamp::from(bucket.created)),
                ..Bucket::default()
            })
            .collect();
        Ok(S3Response::new(ListBucketsOutput { buckets: Some(buckets), ..ListBucketsOutput::default() }))
    }

    async fn get_bucket_location(
        &self,
        _: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        // us-east-1 is represented by an absent value.
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        let buckets = self.0.buckets();
        let claimed = buckets.get(&request.input.bucket).is_some_and(|bucket| bucket.claims_versioning);
        let status = claimed.then(|| BucketVersioningStatus::from_static(BucketVersioningStatus::ENABLED));
        Ok(S3Response::new(GetBucketVersioningOutput { status, ..GetBucketVersioningOutput::default() }))
    }

    async fn put_bucket_lifecycle_configuration(
        &self,
        request: S3Request<PutBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<PutBucketLifecycleConfigurationOutput>> {
        if let Some(bucket) = self.0.buckets().get_mut(&request.input.bucket) {
            bucket.lifecycle = request.input.lifecycle_configuration;
        }
        Ok(S3Response::new(PutBucketLifecycleConfigurationOutput::default()))
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        request: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
        let lifecycle =
            self.0.buckets().get(&request.input.bucket).and_then(|bucket| bucket.lifecycle.clone());
        let lifecycle = lifecycle.ok_or_else(|| {
            s3_error!(NoSuchLifecycleConfiguration, "The lifecycle configuration does not exist")
        })?;
        Ok(S3Response::new(GetBucketLifecycleConfigurationOutput {
            rules: Some(lifecycle.rules),
            ..GetBucketLifecycleConfigurationOutput::default()
        }))
    }
}

//! The store over the JSON API alone.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use stepvault_core::Result;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::store_facts::{BucketFacts, Credentials, LeftBytes};

use super::api::Api;
use super::{examine, listing, rewrite, temporary};
use crate::examiner::Examiner;
use crate::generic::objects::no_bytes;
use crate::generic::pieces::{Expected, watched};
use crate::payload::Payload;
use crate::pending::Listed;
use crate::store::{
    Created, IgnoredAttribute, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore,
    StoreCapabilities,
};

/// A prefix of a bucket.
pub(super) struct JsonStore {
    pub(super) api: Api,
    pub(super) stall_timeout: Duration,
}

impl fmt::Debug for JsonStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("JsonStore")
            .field("url", &self.api.url)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl RemoteStore for JsonStore {
    fn url(&self) -> &str {
        &self.api.url
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            checks_checksums: true,
            creates_atomically: true,
            multipart_is_create_only: true,
            streams_bodies: true,
            deletes_in_batches: false,
            lists_pending_uploads: true,
            copies: true,
            copies_parts: false,
        }
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        let written = self
            .api
            .insert("cannot write the object", key, body, digest, true)
            .await?;
        Ok(written.map_or(Created::Exists, Created::Written))
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        self.api
            .insert("cannot replace the object", key, body.into(), digest, false)
            .await?;
        Ok(())
    }

    async fn start_upload(&self, key: &str, _size_bytes: u64, _algorithm: DigestAlgorithm) -> Result<String> {
        temporary::start(&self.api, key).await
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        temporary::send_part(&self.api, key, upload, index, body, digest).await
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        temporary::complete(&self.api, key, upload, parts, digest).await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        temporary::abort(&self.api, key, upload).await
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        temporary::pending(&self.api, prefix).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        self.api.object(key).await
    }

    async fn ignored_attributes(&self, key: &str) -> Result<Vec<IgnoredAttribute>> {
        self.api.ignored_attributes(key).await
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>> {
        if let Some(range) = range.as_ref().filter(|range| range.is_empty()) {
            let head = self.api.object(key).await?;
            let size_bytes = head.map(|head| head.info.size_bytes);
            return no_bytes(&self.api.subject(Some(key)), size_bytes, range);
        }
        let media = self.api.media(key, range.as_ref()).await?;
        let wanted = range.unwrap_or(0..media.object_bytes);
        let expected = Expected {
            subject: self.api.subject(Some(key)),
            size_bytes: wanted.end - wanted.start,
            stall_timeout: self.stall_timeout,
        };
        Ok(watched(media.bytes, expected))
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        crate::listed::objects(prefix, listing::by_json(&self.api, prefix))
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        temporary::delete_all(&self.api, keys).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        rewrite::copy(self, &self.api, from, to).await
    }
}

#[async_trait]
impl Examiner for JsonStore {
    async fn credentials(&self) -> Result<Option<Credentials>> {
        self.api.credentials().await.map(Some)
    }

    async fn bucket(&self) -> Option<BucketFacts> {
        Some(examine::facts(&self.api).await)
    }

    async fn listed_uploads(&self, prefix: &str, most_pages: usize) -> Result<Option<Listed>> {
        temporary::listed(&self.api, prefix, most_pages).await.map(Some)
    }

    async fn uploaded_bytes(&self, upload: &PendingUpload) -> Result<Option<LeftBytes>> {
        temporary::uploaded_bytes(&self.api, upload).await
    }
}

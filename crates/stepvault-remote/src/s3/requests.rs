//! Maps each method of a store to its request.

use std::ops::Range;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use stepvault_core::Result;
use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};

use super::copy::Source;
use super::pending::PENDING;
use super::store::S3Store;
use crate::payload::Payload;
use crate::pending::MAXIMUM_PAGES;
use crate::store::{
    Created, IgnoredAttribute, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore,
    StoreCapabilities,
};

#[async_trait]
impl RemoteStore for S3Store {
    fn url(&self) -> &str {
        &self.url
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            checks_checksums: self.clients().sends_checksums(),
            creates_atomically: self.sends_conditions.load(Ordering::Relaxed),
            multipart_is_create_only: true,
            streams_bodies: true,
            deletes_in_batches: self.deletes_in_batches.load(Ordering::Relaxed),
            lists_pending_uploads: self.lists_pending_uploads.load(Ordering::Relaxed),
            copies: true,
            copies_parts: true,
        }
    }

    async fn create(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        self.put_new(key, body, digest).await
    }

    async fn replace(&self, key: &str, body: Bytes, digest: &PartDigest) -> Result<()> {
        self.put_over(key, body.into(), digest).await
    }

    async fn start_upload(&self, key: &str, _size_bytes: u64, algorithm: DigestAlgorithm) -> Result<String> {
        self.create_multipart(key, Some(algorithm)).await
    }

    async fn upload_part(
        &self,
        key: &str,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        self.put_part(key, upload, index, body, digest).await
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        self.complete_multipart(key, upload, parts, digest).await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        self.abort_multipart(key, upload).await
    }

    async fn pending_uploads(&self, prefix: &str) -> Result<Vec<PendingUpload>> {
        let listed = self.listed_multiparts(prefix, MAXIMUM_PAGES).await?;
        listed.whole(PENDING, &self.name(""))
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectHead>> {
        self.head_object(key).await
    }

    async fn ignored_attributes(&self, key: &str) -> Result<Vec<IgnoredAttribute>> {
        self.compare_attributes(key).await
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BoxStream<'static, Result<Bytes>>> {
        self.get_object(key, range).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        crate::listed::objects(prefix, self.list_objects(prefix))
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.delete_objects(keys).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<Created> {
        self.copy_object(from, to).await
    }

    async fn copy_part(
        &self,
        from: &str,
        key: &str,
        upload: &str,
        index: u32,
        start: u64,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let range = start..start.saturating_add(digest.size_bytes);
        let source = Source { key: from, version: None };
        let copied = self.copy_range(source, range, key, upload, index).await?;
        self.prove_part(key, index, copied, digest)
    }
}

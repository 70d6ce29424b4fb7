//! The requests of each method of a store.

use std::ops::Range;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::Part;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use stepvault_core::store_facts::LeftBytes;
use stepvault_core::{DigestAlgorithm, ErrorKind, FileDigest, PartDigest, Result};

use super::checksums::returned;
use super::copy::Source;
use super::direct::Call;
use super::errors::Fault;
use super::read::{exactly, shorter, system_time};
use super::store::S3Store;
use super::write::{Whole, completed_part};
use crate::listed::{Listed, MAXIMUM_PAGES, Marker, Page, check_parts, pages};
use crate::payload::Payload;
use crate::pieces::no_bytes;
use crate::store::{
    BodyStream, Created, IgnoredAttribute, ObjectHead, ObjectInfo, PartReceipt, PendingUpload, RemoteStore,
    StoreCapabilities, StoredChecksum, ThawSpeed, Thawed,
};

/// Maximum number of keys in one `DeleteObjects`.
const KEYS_IN_A_BATCH: usize = 1000;
/// Concurrent single deletes, for a store that supports no other kind.
const SINGLE_DELETES: usize = 8;

#[async_trait]
impl RemoteStore for S3Store {
    fn url(&self) -> &str {
        &self.url
    }

    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities {
            checks_checksums: self.clients.sends_checksums(),
            creates_atomically: self.sends_conditions.load(Ordering::Relaxed),
            multipart_is_create_only: true,
            streams_bodies: true,
            checks_sha256_alone: true,
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
        let what = "cannot replace the object";
        let answer = self.sent(what, &self.put(key, body.into(), digest)).await?;
        self.check_answer(what, key, returned(&answer.headers), &StoredChecksum::of_part(digest)).map(drop)
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
        let what = "cannot send a part";
        let checksum = StoredChecksum::of_part(digest);
        let number = self.part_number(what, key, index)?;
        let call = Call::write(key, body, &checksum).of_upload(upload, number);
        let answer = self.sent(what, &call).await?;
        let headers = &answer.headers;
        self.check_answer(what, key, returned(headers), &checksum)?;
        let tag = headers.get("etag").map(str::to_owned).ok_or_else(|| {
            self.error(ErrorKind::Failed, what, key, "the store returned no entity tag for the part")
        })?;
        Ok(PartReceipt { index, tag, digest: *digest })
    }

    async fn complete_upload(
        &self,
        key: &str,
        upload: &str,
        parts: &[PartReceipt],
        digest: &FileDigest,
    ) -> Result<Created> {
        let mut completed = Vec::with_capacity(parts.len());
        for part in parts {
            let number = self.part_number("cannot complete the upload", key, part.index)?;
            let checksum = StoredChecksum::of_part(&part.digest);
            completed.push(completed_part(number, &part.tag, &checksum));
        }
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let whole = Whole { size_bytes: digest.size_bytes, checksum: StoredChecksum::of_file(digest, count) };
        self.complete_parts(key, upload, completed, &whole).await
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<()> {
        let request = self
            .client()
            .await?
            .abort_multipart_upload()
            .bucket(&self.bucket)
            .key(self.full_key(key))
            .upload_id(upload);
        let answer = request.send().await;
        self.unless("cannot abort the upload", key, answer, Fault::is_missing)?;
        Ok(())
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

    async fn thaw(&self, key: &str, speed: ThawSpeed) -> Result<Thawed> {
        self.request_thaw(key, speed).await
    }

    async fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<BodyStream> {
        let what = "cannot read the object";
        if let Some(range) = range.as_ref().filter(|range| range.is_empty()) {
            // HTTP cannot request an empty range.
            let head = self.head_object(key).await?;
            return no_bytes(&self.name(key), head.map(|head| head.info.size_bytes), range);
        }
        let bytes = range.as_ref().map(|range| format!("bytes={}-{}", range.start, range.end - 1));
        let answer = self.sent(what, &Call::read(key).header("range", bytes)).await?;
        let length = answer.headers.get("content-length").and_then(|length| length.parse().ok());
        let wanted = match &range {
            Some(range) => {
                let answered = answer.headers.get("content-range");
                let from = format!("bytes {}-", range.start);
                if !answered.is_some_and(|answered| answered.starts_with(&from)) {
                    return Err(self.error(
                        ErrorKind::Failed,
                        what,
                        key,
                        "the store sent a different range than requested",
                    ));
                }
                Some(range.end - range.start)
            }
            None => length,
        };
        if let (Some(wanted), Some(length)) = (wanted, length)
            && wanted != length
        {
            return Err(shorter(what, &self.name(key), wanted, length));
        }
        Ok(exactly(ByteStream::new(answer.body), wanted, self.name(key)))
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        crate::listed::objects(prefix, self.list_objects(prefix))
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        if let [key] = keys {
            return self.delete_one(key).await;
        }
        for batch in keys.chunks(KEYS_IN_A_BATCH) {
            if self.deletes_in_batches.load(Ordering::Relaxed) && self.delete_batch(batch).await? {
                continue;
            }
            futures::stream::iter(batch.to_vec())
                .map(|key| async move { self.delete_one(&key).await })
                .buffer_unordered(SINGLE_DELETES)
                .try_collect::<()>()
                .await?;
        }
        Ok(())
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

pub(super) const PENDING: &str = "cannot list pending uploads";

impl S3Store {
    /// Lists incomplete uploads, at most `most_pages` pages.
    pub(super) async fn listed_multiparts(&self, prefix: &str, most_pages: usize) -> Result<Listed> {
        pages(PENDING, &self.name(""), prefix, most_pages, |after| self.multiparts_page(prefix, after)).await
    }

    async fn multiparts_page(&self, prefix: &str, after: Option<Marker>) -> Result<Page> {
        let (key_marker, upload_marker) = after.map(|after| (after.key, after.upload)).unzip();
        let client = self.client().await?;
        let request = client
            .list_multipart_uploads()
            .bucket(&self.bucket)
            .prefix(self.full_key(prefix))
            .set_key_marker(key_marker)
            .set_upload_id_marker(upload_marker.filter(|marker| !marker.is_empty()));
        let answer = request.send().await;
        let Some(page) = self.unless(PENDING, "", answer, Fault::is_not_implemented)? else {
            self.lists_pending_uploads.store(false, Ordering::Relaxed);
            return Ok(Page::default());
        };
        let uploads = page.uploads().iter().filter_map(|upload| {
            Some(PendingUpload {
                key: self.relative_key(upload.key()?)?.to_owned(),
                upload: upload.upload_id()?.to_owned(),
                initiated: upload.initiated().map(|time| system_time(Some(time))),
            })
        });
        let next = page.next_key_marker().map(|key| Marker {
            key: key.to_owned(),
            upload: page.next_upload_id_marker().unwrap_or_default().to_owned(),
        });
        Ok(Page { uploads: uploads.collect(), next: next.filter(|_| page.is_truncated().unwrap_or(false)) })
    }

    /// Returns the size of the first page of an upload's parts, or `None` for an upload that no longer exists.
    pub(super) async fn parts_bytes(&self, upload: &PendingUpload) -> Result<Option<LeftBytes>> {
        let client = self.client().await?;
        let request = client
            .list_parts()
            .bucket(&self.bucket)
            .key(self.full_key(&upload.key))
            .upload_id(&upload.upload);
        let what = "cannot list an upload's parts";
        let answer = request.send().await;
        let Some(page) = self.unless(what, &upload.key, answer, Fault::is_missing)? else {
            return Ok(None);
        };
        check_parts(
            &self.name(&upload.key),
            (&self.full_key(&upload.key), &upload.upload),
            (page.key(), page.upload_id()),
        )?;
        let sizes = page.parts().iter().filter_map(Part::size);
        let sizes = sizes.filter_map(|size| u64::try_from(size).ok());
        Ok(Some(LeftBytes {
            bytes: sizes.fold(0, u64::saturating_add),
            all: !page.is_truncated().unwrap_or(false),
        }))
    }
}

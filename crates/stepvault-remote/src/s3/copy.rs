//! Copies inside the store that preserve the checksums that prove the bytes.
//!
//! A plain copy of a multipart object would get a checksum of the whole, which no manifest contains. So such an object
//! is copied part by part, in the ranges that the format defines for its size.

use std::mem;
use std::ops::Range;

use aws_sdk_s3::types::CompletedPart;
use futures::{StreamExt as _, TryStreamExt as _};
use stepvault_core::digest::{ContentDigest, Crc64Nvme, DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::file_parts::FileParts;
use stepvault_core::{Error, ErrorKind, Result};

use super::checksums::{AnswerHeaders, of_upload, stored};
use super::errors::Fault;
use super::read::quoted;
use super::store::S3Store;
use super::write::{Condition, Whole, completed_part, written};
use crate::keys::percent_encode;
use crate::store::{Created, ObjectHead, PartReceipt, RemoteStore as _, StoredChecksum};

/// Parts that are copied concurrently.
const PARTS_AT_ONCE: usize = 8;
/// Largest object that one `CopyObject` accepts.
const LARGEST_PLAIN_COPY_BYTES: u64 = 5 << 30;

const WHAT: &str = "cannot copy the object";

/// The source of a copy.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) key: &'a str,
    /// Its entity tag, unless something else already determines the bytes.
    pub(super) version: Option<String>,
}

/// A part as the store reports to have copied it.
#[derive(Debug)]
pub(super) struct CopiedPart {
    tag: String,
    checksum: StoredChecksum,
}

/// Returns the algorithm of the digests with which an object was sent, by the checksum that the store keeps of it.
fn algorithm_of(checksum: &StoredChecksum) -> DigestAlgorithm {
    match checksum {
        StoredChecksum::Crc64Nvme(_) => DigestAlgorithm::Blake3,
        _ => DigestAlgorithm::Sha256,
    }
}

/// Returns the checksum of the whole from those of its parts; `None` where the store did not return them.
fn whole_of(checksums: &[StoredChecksum], parts: FileParts) -> StoredChecksum {
    let sha256: Option<Vec<ContentDigest>> = checksums.iter().map(sha256_of).collect();
    if let Some(digests) = sha256
        && let ContentDigest::Sha256(digest) = ContentDigest::of_parts(&digests)
    {
        return StoredChecksum::CompositeSha256 { digest, parts: parts.count() };
    }
    let mut whole: Option<Crc64Nvme> = None;
    for (index, checksum) in (0..).zip(checksums) {
        let StoredChecksum::Crc64Nvme(part) = checksum else {
            return StoredChecksum::None;
        };
        let range = parts.range(index);
        whole = Some(whole.map_or(*part, |crc| crc.followed_by(*part, range.end - range.start)));
    }
    whole.map_or(StoredChecksum::None, StoredChecksum::Crc64Nvme)
}

fn sha256_of(checksum: &StoredChecksum) -> Option<ContentDigest> {
    match checksum {
        StoredChecksum::Sha256(digest) => Some(ContentDigest::Sha256(*digest)),
        _ => None,
    }
}

impl S3Store {
    pub(super) async fn copy_object(&self, from: &str, to: &str) -> Result<Created> {
        let Some(mut source) = self.head_object(from).await? else {
            return Err(self.error(ErrorKind::NotFound, WHAT, from, "the object does not exist"));
        };
        // The copy gets no CRC-32C, but a checksum of the kind that stepvault sends.
        if matches!(source.checksum, StoredChecksum::Crc32c(_)) {
            source.checksum = StoredChecksum::None;
        }
        // Some servers overwrite an existing object despite the condition; checking first narrows the gap.
        if self.head_object(to).await?.is_some() {
            return Ok(Created::Exists);
        }
        let parts = FileParts::of(source.info.size_bytes)?;
        let in_parts = match source.checksum {
            StoredChecksum::CompositeSha256 { parts: count, .. } => count > 1 || parts.count() > 1,
            StoredChecksum::None => parts.count() > 1,
            _ => source.info.size_bytes > LARGEST_PLAIN_COPY_BYTES,
        };
        if in_parts {
            self.copy_in_parts(&source, to, parts).await
        } else {
            self.copy_whole(&source, to).await
        }
    }

    fn copy_source(&self, key: &str) -> String {
        format!("{}/{}", percent_encode(&self.bucket, ""), percent_encode(&self.full_key(key), "/"))
    }

    async fn copy_whole(&self, source: &ObjectHead, to: &str) -> Result<Created> {
        let headers = AnswerHeaders::default();
        let client = self.client().await?;
        let condition = self.condition(to).await?;
        if condition == Condition::Taken {
            return Ok(Created::Exists);
        }
        let request = client
            .copy_object()
            .bucket(&self.bucket)
            .key(self.full_key(to))
            .copy_source(self.copy_source(&source.info.key))
            .set_copy_source_if_match(source.info.version.as_deref().map(quoted))
            .set_if_none_match(condition.header())
            .checksum_algorithm(of_upload(algorithm_of(&source.checksum)).0)
            .set_storage_class(self.attributes.storage_class_of(to))
            .set_server_side_encryption(self.attributes.encryption.clone())
            .set_ssekms_key_id(self.attributes.kms_key.clone())
            .set_tagging_directive(
                self.attributes.tagging.as_ref().map(|_| aws_sdk_s3::types::TaggingDirective::Replace),
            )
            .set_tagging(self.attributes.tagging.clone());
        let output = match request.customize().interceptor(headers.clone()).send().await {
            Ok(output) => output,
            Err(error) => return self.copy_refused(to, self.fault(&error)).await,
        };
        let Some(result) = output.copy_object_result else {
            return Err(self.error(ErrorKind::Unreachable, WHAT, to, "the answer ended early"));
        };
        // If the source is damaged, this is not the checksum in its manifest: the object exists now, and the caller
        // compares and removes it.
        let checksum = stored((result.checksum_sha256(), result.checksum_crc64_nvme()));
        let tag = result.e_tag.as_deref();
        Ok(written(to, source.info.size_bytes, headers.date(), tag, checksum))
    }

    /// A failed precondition concerns the target, or a source that changed meanwhile: the metadata shows which.
    async fn copy_refused(&self, to: &str, fault: Fault) -> Result<Created> {
        if fault.is_precondition_failed() && self.head_object(to).await?.is_some() {
            return Ok(Created::Exists);
        }
        Err(self.copy_fault(to, fault))
    }

    async fn copy_in_parts(&self, source: &ObjectHead, to: &str, parts: FileParts) -> Result<Created> {
        // A store without a checksum of the source would not return those of the copied parts, which completion needs.
        let is_proven = source.checksum != StoredChecksum::None;
        let algorithm = is_proven.then(|| algorithm_of(&source.checksum));
        let upload = self.create_multipart(to, algorithm).await?;
        let copied = self.copy_parts(source, to, &upload, parts).await;
        if !matches!(copied, Ok(Created::Written(_))) {
            // The first error is more useful than a clean-up error; `gc` finds the remaining upload.
            let _ = self.abort_upload(to, &upload).await;
        }
        copied
    }

    async fn copy_parts(
        &self,
        source: &ObjectHead,
        to: &str,
        upload: &str,
        parts: FileParts,
    ) -> Result<Created> {
        let copied: Vec<(CompletedPart, StoredChecksum)> = futures::stream::iter(0..parts.count())
            .map(|index| self.copy_part(source, to, upload, parts, index))
            .buffered(PARTS_AT_ONCE)
            .try_collect()
            .await?;
        let (completed, checksums): (Vec<_>, Vec<_>) = copied.into_iter().unzip();
        let whole = Whole {
            size_bytes: source.info.size_bytes,
            checksum: match source.checksum {
                StoredChecksum::None => StoredChecksum::None,
                _ => whole_of(&checksums, parts),
            },
        };
        let are_comparable = mem::discriminant(&whole.checksum) == mem::discriminant(&source.checksum);
        if are_comparable && whole.checksum != source.checksum {
            return Err(self.error(
                ErrorKind::Damaged,
                WHAT,
                to,
                "the store copied other bytes than those of the object",
            ));
        }
        self.complete_parts(to, upload, completed, &whole).await
    }

    async fn copy_part(
        &self,
        source: &ObjectHead,
        to: &str,
        upload: &str,
        parts: FileParts,
        index: u32,
    ) -> Result<(CompletedPart, StoredChecksum)> {
        let from = Source { key: &source.info.key, version: source.info.version.clone() };
        let copied = self.copy_range(from, parts.range(index), to, upload, index).await?;
        let number = self.part_number(WHAT, to, index)?;
        Ok((completed_part(number, &copied.tag, &copied.checksum), copied.checksum))
    }

    /// Copies a range of an object into part `index` of an upload.
    pub(super) async fn copy_range(
        &self,
        source: Source<'_>,
        range: Range<u64>,
        to: &str,
        upload: &str,
        index: u32,
    ) -> Result<CopiedPart> {
        let client = self.client().await?;
        let request = client
            .upload_part_copy()
            .bucket(&self.bucket)
            .key(self.full_key(to))
            .upload_id(upload)
            .part_number(self.part_number(WHAT, to, index)?)
            .copy_source(self.copy_source(source.key))
            .copy_source_range(format!("bytes={}-{}", range.start, range.end.saturating_sub(1)))
            .set_copy_source_if_match(source.version.as_deref().map(quoted));
        let output = request.send().await.map_err(|error| self.copy_fault(to, self.fault(&error)))?;
        let result = output.copy_part_result;
        let checksum = result.as_ref().map_or(StoredChecksum::None, |result| {
            stored((result.checksum_sha256(), result.checksum_crc64_nvme()))
        });
        match result.and_then(|result| result.e_tag) {
            Some(tag) => Ok(CopiedPart { tag, checksum }),
            None => Err(self.error(ErrorKind::Unreachable, WHAT, to, "the answer ended early")),
        }
    }

    /// Accepts a copied part unless the store's checksum differs from `digest`. Some stores return none; then the whole
    /// object is proved after its completion.
    pub(super) fn prove_part(
        &self,
        key: &str,
        index: u32,
        copied: CopiedPart,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let whole = FileDigest::from_parts(&[*digest]);
        if copied.checksum.proves(&whole, &[digest.content]) == Some(false) {
            return Err(self.error(
                ErrorKind::Damaged,
                WHAT,
                key,
                format!(
                    "the store copied part {} with a checksum other than that of its digest {}",
                    index + 1,
                    digest.content
                ),
            ));
        }
        Ok(PartReceipt { index, tag: copied.tag, digest: *digest })
    }

    /// An unsupported operation is a permanent error, so that the store is not retried as for a transient one.
    fn copy_fault(&self, to: &str, fault: Fault) -> Error {
        if fault.is_not_implemented() {
            return self.error(ErrorKind::Failed, WHAT, to, "the store does not support server-side copies");
        }
        fault.into_error(WHAT, &self.name(to))
    }
}

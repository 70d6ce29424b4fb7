//! Multipart objects: begin and complete.

use std::sync::atomic::Ordering;

use aws_sdk_s3::operation::complete_multipart_upload::CompleteMultipartUploadOutput;
use aws_sdk_s3::operation::complete_multipart_upload::builders::CompleteMultipartUploadFluentBuilder;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use stepvault_core::digest::DigestAlgorithm;
use stepvault_core::{ErrorKind, Result};

use super::answer_headers::AnswerHeaders;
use super::checksums::{ALL_CHECKS, SentChecksum, of_upload, stored};
use super::errors::Fault;
use super::store::S3Store;
use super::write::{Condition, written};
use crate::store::{Created, StoredChecksum};

/// At the completion of an upload, the store is given no checksum at all. Between this and [`ALL_CHECKS`], it is given those
/// of the parts alone.
const NO_CHECKS: u8 = 2;

/// Expected properties of the whole object.
pub(super) struct Whole {
    pub(super) size_bytes: u64,
    /// Its checksum; `None` for an upload that was begun without.
    pub(super) checksum: StoredChecksum,
}

/// Returns a part in the form of the request that completes its upload.
pub(super) fn completed_part(number: i32, tag: &str, checksum: &StoredChecksum) -> CompletedPart {
    let SentChecksum { sha256, crc64nvme, .. } = SentChecksum::of(checksum);
    CompletedPart::builder()
        .part_number(number)
        .e_tag(tag)
        .set_checksum_sha256(sha256)
        .set_checksum_crc64_nvme(crc64nvme)
        .build()
}

impl S3Store {
    /// Begins an upload. With an algorithm of digests, each part carries the checksum that goes with it, as for all bytes
    /// sent from here.
    pub(super) async fn create_multipart(
        &self,
        key: &str,
        proven: Option<DigestAlgorithm>,
    ) -> Result<String> {
        let what = "cannot begin the upload";
        let (algorithm, of_whole) = proven.map(of_upload).unzip();
        let client = self.client().await?;
        let request = client
            .create_multipart_upload()
            .bucket(&self.bucket)
            .key(self.full_key(key))
            .set_checksum_algorithm(algorithm)
            .set_checksum_type(of_whole)
            .set_storage_class(self.attributes.storage_class_of(key))
            .set_server_side_encryption(self.attributes.encryption.clone())
            .set_ssekms_key_id(self.attributes.kms_key.clone())
            .set_tagging(self.attributes.tagging.clone());
        let output = request.send().await.map_err(|error| self.failed(what, key, &error))?;
        output
            .upload_id
            .ok_or_else(|| self.error(ErrorKind::Failed, what, key, "the store returned no upload ID"))
    }

    /// Completes an upload from its parts in order. A store that refuses the form of the checksums is asked without them,
    /// from then on: those that it returns are compared, and if it returns none, the object is read back.
    pub(super) async fn complete_parts(
        &self,
        key: &str,
        upload: &str,
        parts: Vec<CompletedPart>,
        whole: &Whole,
    ) -> Result<Created> {
        let what = "cannot complete the upload";
        let mut checks = if self.clients().sends_checksums() {
            self.completion_checks.load(Ordering::Relaxed)
        } else {
            NO_CHECKS
        };
        let mut refusal: Option<Fault> = None;
        let mut condition = self.condition(key).await?;
        loop {
            if condition == Condition::Taken {
                return Ok(Created::Exists);
            }
            let headers = AnswerHeaders::default();
            let request = self.completion(key, upload, &parts, whole, checks).await?;
            let request = request.set_if_none_match(condition.header());
            let fault = match request.customize().interceptor(headers.clone()).send().await {
                Ok(output) => {
                    self.completion_checks.fetch_max(checks, Ordering::Relaxed);
                    self.was_done(condition);
                    let checksum = self.check_completed(what, key, &output, whole)?;
                    return Ok(written(key, whole.size_bytes, &headers, output.e_tag(), checksum));
                }
                Err(error) => self.fault(&error),
            };
            if fault.is_precondition_failed() {
                return Ok(Created::Exists);
            }
            if condition == Condition::Sent && fault.is_not_implemented() {
                condition = self.condition_of(key).await?;
                continue;
            }
            let is_final =
                checks == NO_CHECKS || whole.checksum == StoredChecksum::None || !fault.is_of_form();
            // The refusal of the request with all checksums says most.
            let first = refusal.take().unwrap_or(fault);
            if is_final {
                return Err(first.into_error(what, &self.name(key)));
            }
            refusal = Some(first);
            checks += 1;
        }
    }

    /// Returns the request that completes an upload, with as many `checks` as the store accepts.
    async fn completion(
        &self,
        key: &str,
        upload: &str,
        parts: &[CompletedPart],
        whole: &Whole,
        checks: u8,
    ) -> Result<CompleteMultipartUploadFluentBuilder> {
        let bare = |part: &CompletedPart| {
            CompletedPart::builder()
                .set_part_number(part.part_number())
                .set_e_tag(part.e_tag().map(str::to_owned))
                .build()
        };
        let checksum =
            if checks == ALL_CHECKS { SentChecksum::of(&whole.checksum) } else { SentChecksum::default() };
        let sent = if checks == NO_CHECKS { parts.iter().map(bare).collect() } else { parts.to_vec() };
        let client = self.client().await?;
        Ok(client
            .complete_multipart_upload()
            .bucket(&self.bucket)
            .key(self.full_key(key))
            .upload_id(upload)
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(sent)).build())
            .set_mpu_object_size(i64::try_from(whole.size_bytes).ok())
            .set_checksum_type(checksum.of_whole)
            .set_checksum_sha256(checksum.sha256)
            .set_checksum_crc64_nvme(checksum.crc64nvme))
    }

    fn check_completed(
        &self,
        what: &str,
        key: &str,
        output: &CompleteMultipartUploadOutput,
        whole: &Whole,
    ) -> Result<StoredChecksum> {
        if output.e_tag.is_none() {
            // S3 keeps the connection alive with blanks while it works, so an answer can end before its result.
            return Err(self.error(ErrorKind::Unreachable, what, key, "the answer ended early"));
        }
        let returned = (output.checksum_sha256(), output.checksum_crc64_nvme());
        if whole.checksum == StoredChecksum::None {
            return Ok(stored(returned));
        }
        self.check_answer(what, key, returned, &whole.checksum)
    }

    /// Returns the part number, which S3 counts from 1.
    pub(super) fn part_number(&self, what: &str, key: &str, index: u32) -> Result<i32> {
        index
            .checked_add(1)
            .and_then(|number| i32::try_from(number).ok())
            .ok_or_else(|| self.error(ErrorKind::Failed, what, key, format!("there is no part {index}")))
    }
}

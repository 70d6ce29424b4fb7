//! Whole objects and multipart uploads: create-only writes, and deletes.

use std::sync::atomic::Ordering;
use std::time::SystemTime;

use aws_sdk_s3::operation::complete_multipart_upload::CompleteMultipartUploadOutput;
use aws_sdk_s3::operation::complete_multipart_upload::builders::CompleteMultipartUploadFluentBuilder;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart, Delete, ObjectIdentifier};
use stepvault_core::{DigestAlgorithm, Error, ErrorKind, PartDigest, Result};

use super::checksums::{
    ALL_CHECKS, AnswerHeaders, SentChecksum, answered, date_of, of_upload, returned, stored,
};
use super::direct::Call;
use super::errors::Fault;
use super::read::version_of;
use super::store::S3Store;
use crate::payload::Payload;
use crate::store::{Created, ObjectHead, ObjectInfo, StoredChecksum};

const IF_NONE_MATCH: &str = "if-none-match";

/// How a create-only write makes sure that its key is unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// The store refuses the write otherwise.
    Sent,
    /// The key was unused a moment ago.
    Unused,
    /// The key is taken.
    Taken,
}

impl Condition {
    /// Returns the value of `If-None-Match`.
    pub(super) fn header(self) -> Option<String> {
        (self == Self::Sent).then(|| "*".to_owned())
    }
}

impl S3Store {
    pub(super) async fn put_new(&self, key: &str, body: Payload, digest: &PartDigest) -> Result<Created> {
        let what = "cannot write the object";
        let mut condition = self.condition(key).await?;
        let answer = loop {
            if condition == Condition::Taken {
                return Ok(Created::Exists);
            }
            let call = self.put(key, body.clone(), digest).header(IF_NONE_MATCH, condition.header());
            let fault = match self.send(&call).await? {
                Ok(answer) => break answer,
                Err(fault) => fault,
            };
            if fault.is_precondition_failed() {
                return Ok(Created::Exists);
            }
            if condition != Condition::Sent || !fault.is_not_implemented() {
                return Err(fault.into_error(what, &self.name(key)));
            }
            condition = self.condition_of(key).await?;
        };
        self.was_done(condition);
        let headers = &answer.headers;
        let checksum = self.check_answer(what, key, returned(headers), &StoredChecksum::of_part(digest))?;
        Ok(written(key, digest.size_bytes, date_of(headers), headers.get("etag"), checksum))
    }

    /// Returns how the next create-only write of a key makes sure that the key is unused.
    pub(super) async fn condition(&self, key: &str) -> Result<Condition> {
        if self.sends_conditions.load(Ordering::Relaxed) {
            return Ok(Condition::Sent);
        }
        self.condition_of(key).await
    }

    /// Looks whether a key is taken, for a store that refuses conditions.
    pub(super) async fn condition_of(&self, key: &str) -> Result<Condition> {
        Ok(match self.head_object(key).await? {
            Some(_) => Condition::Taken,
            None => Condition::Unused,
        })
    }

    /// Records that the store did a write without a condition which it had refused with one.
    pub(super) fn was_done(&self, condition: Condition) {
        if condition == Condition::Unused {
            self.sends_conditions.store(false, Ordering::Relaxed);
        }
    }

    /// Returns the request that writes an object, with its checksum and its attributes.
    pub(super) fn put<'a>(&self, key: &'a str, body: Payload, digest: &PartDigest) -> Call<'a> {
        let attributes = &self.attributes;
        let class = attributes.storage_class_of(key);
        let encryption = attributes.encryption.as_ref().map(|kind| kind.as_str().to_owned());
        Call::write(key, body, &StoredChecksum::of_part(digest))
            .header("x-amz-storage-class", class.map(|class| class.as_str().to_owned()))
            .header("x-amz-server-side-encryption", encryption)
            .header("x-amz-server-side-encryption-aws-kms-key-id", attributes.kms_key.clone())
            .header("x-amz-tagging", attributes.tagging.clone())
    }

    /// Returns the checksum in the store's answer (its SHA-256 and its CRC-64/NVME), which must be the one that was sent.
    pub(super) fn check_answer(
        &self,
        what: &str,
        key: &str,
        returned: (Option<&str>, Option<&str>),
        sent: &StoredChecksum,
    ) -> Result<StoredChecksum> {
        let found = answered(returned, sent);
        if found == StoredChecksum::None || found == *sent {
            return Ok(found);
        }
        Err(self
            .error(ErrorKind::Damaged, what, key, "the store returned a different checksum than was sent")
            .hint("if it happens again, check this machine's memory and network"))
    }

    pub(super) async fn delete_one(&self, key: &str) -> Result<()> {
        let request = self.client().await?.delete_object().bucket(&self.bucket).key(self.full_key(key));
        let answer = request.send().await;
        self.unless("cannot delete the object", key, answer, Fault::is_missing)?;
        Ok(())
    }

    /// Returns false when the store refuses multi-object delete; nothing is deleted then. Some stores want a checksum that
    /// others do not know, and what single deletes are refused for is then their error.
    pub(super) async fn delete_batch(&self, keys: &[String]) -> Result<bool> {
        let what = "cannot delete objects";
        let invalid = |error| Error::new(ErrorKind::Failed, what).on(self.name("")).caused_by(error);
        let objects: Vec<ObjectIdentifier> = keys
            .iter()
            .map(|key| ObjectIdentifier::builder().key(self.full_key(key)).build())
            .collect::<std::result::Result<_, _>>()
            .map_err(invalid)?;
        let delete = Delete::builder().set_objects(Some(objects)).quiet(true).build().map_err(invalid)?;
        let request = self.client().await?.delete_objects().bucket(&self.bucket).delete(delete);
        let answer = request.send().await;
        let Some(output) = self.unless(what, "", answer, Fault::is_refused)? else {
            self.deletes_in_batches.store(false, Ordering::Relaxed);
            return Ok(false);
        };
        for entry in output.errors() {
            let fault = Fault::of_entry(entry.code(), entry.message());
            if !fault.is_missing() {
                let key = entry.key().and_then(|key| self.relative_key(key)).unwrap_or_default();
                return Err(fault.into_error("cannot delete the object", &self.name(key)));
            }
        }
        Ok(true)
    }

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
        let mut checks = if self.clients.sends_checksums() {
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
                    return Ok(written(key, whole.size_bytes, headers.date(), output.e_tag(), checksum));
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

/// Returns the object that the store acknowledged, as of the date of its answer.
pub(super) fn written(
    key: &str,
    size_bytes: u64,
    date: Option<SystemTime>,
    tag: Option<&str>,
    checksum: StoredChecksum,
) -> Created {
    let info = ObjectInfo {
        key: key.to_owned(),
        size_bytes,
        modified: date.unwrap_or(SystemTime::UNIX_EPOCH),
        version: version_of(tag),
    };
    Created::Written(ObjectHead { info, checksum })
}

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

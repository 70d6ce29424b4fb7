//! Reads metadata and listings, and checks the length of a body.

use std::time::SystemTime;

use aws_sdk_s3::operation::head_object::HeadObjectOutput;
use aws_sdk_s3::primitives::{ByteStream, DateTime};
use aws_sdk_s3::types::{ChecksumMode, ChecksumType};
use futures::StreamExt as _;
use futures::stream::{BoxStream, try_unfold};
use stepvault_core::{Crc32c, Error, ErrorKind, Result};

use super::checksums::stored;
use super::errors::Fault;
use super::store::S3Store;
use crate::listed::{ObjectPage, paged};
use crate::store::{BodyStream, ObjectHead, ObjectInfo, StoredChecksum};

const LIST: &str = "cannot list objects";

impl S3Store {
    pub(super) async fn head_object(&self, key: &str) -> Result<Option<ObjectHead>> {
        let request = self.client().await?.head_object().bucket(&self.bucket).key(self.full_key(key));
        let what = "cannot read the object's metadata";
        let with_checksum = request.clone().checksum_mode(ChecksumMode::Enabled);
        let mut answer = with_checksum.send().await;
        // A store that knows no checksums cannot say so here, and expired credentials are refused in the same way.
        if let Err(error) = &answer
            && self.clients.sends_checksums()
            && Fault::of(error).is_silent()
        {
            answer = request.send().await;
            if answer.is_ok() {
                self.clients.stop_checksums();
            }
        }
        if let Err(error) = &answer
            && Fault::of(error).is_bare_absence()
        {
            return self.confirm_absence(key).await.map(|()| None);
        }
        let Some(output) = self.unless(what, key, answer, Fault::is_missing)? else {
            return Ok(None);
        };
        let size_bytes = output
            .content_length()
            .and_then(|length| u64::try_from(length).ok())
            .ok_or_else(|| self.error(ErrorKind::Failed, what, key, "the store returned no length"))?;
        Ok(Some(ObjectHead {
            info: ObjectInfo {
                key: key.to_owned(),
                size_bytes,
                modified: system_time(output.last_modified()),
                version: version_of(output.e_tag()),
            },
            checksum: match stored((output.checksum_sha256(), output.checksum_crc64_nvme())) {
                StoredChecksum::None => of_crc32c(&output),
                checksum => checksum,
            },
        }))
    }

    /// Asks again for an object that a HEAD did not find, in a way that has an error document.
    ///
    /// # Errors
    /// If the store does not say that the object does not exist.
    async fn confirm_absence(&self, key: &str) -> Result<()> {
        let what = "cannot read the object's metadata";
        let request = self.client().await?.get_object().bucket(&self.bucket);
        let answer = request.key(self.full_key(key)).send().await;
        match self.unless(what, key, answer, Fault::is_missing)? {
            None => Ok(()),
            Some(_) => Err(self.error(
                ErrorKind::Unreachable,
                what,
                key,
                "the store has the object, and answered that it does not exist",
            )),
        }
    }

    /// Keys are requested without encoding: some servers claim to percent-encode them but do not. Keys that XML cannot
    /// represent, with control characters, are never used by stepvault.
    pub(super) fn list_objects(&self, prefix: &str) -> BoxStream<'_, Result<ObjectInfo>> {
        let prefix = self.full_key(prefix);
        paged(move |token| {
            let prefix = prefix.clone();
            async move {
                let client = self.client().await?;
                let request = client
                    .list_objects_v2()
                    .bucket(&self.bucket)
                    .prefix(prefix)
                    .set_continuation_token(token);
                let answer = request.send().await;
                let page = answer.map_err(|error| self.failed(LIST, "", &error))?;
                let entries = page.contents.unwrap_or_default().into_iter();
                let objects = entries.filter_map(|object| self.listed(object).transpose());
                let is_truncated = page.is_truncated.unwrap_or(false);
                let next = page.next_continuation_token.filter(|_| is_truncated);
                // An incomplete listing must never be treated as a complete one.
                if is_truncated && next.is_none() {
                    let why = "the listing is truncated but gives no continuation token";
                    return Err(self.malformed(why));
                }
                Ok(ObjectPage { objects: objects.collect::<Result<_>>()?, next })
            }
        })
    }

    fn malformed(&self, why: &str) -> Error {
        self.error(ErrorKind::Failed, LIST, "", why)
    }

    fn listed(&self, object: aws_sdk_s3::types::Object) -> Result<Option<ObjectInfo>> {
        let full_key = object.key.ok_or_else(|| self.malformed("an entry has no key"))?;
        let Some(key) = self.relative_key(&full_key) else {
            return Ok(None);
        };
        let size = object.size.and_then(|size| u64::try_from(size).ok());
        Ok(Some(ObjectInfo {
            key: key.to_owned(),
            size_bytes: size.ok_or_else(|| self.malformed("an entry has no size"))?,
            modified: system_time(object.last_modified.as_ref()),
            version: version_of(object.e_tag.as_deref()),
        }))
    }
}

/// Returns the CRC-32C of an object that another program has written, if it is not one over those of its parts: such a one
/// has their number behind it, and is no base64.
fn of_crc32c(output: &HeadObjectOutput) -> StoredChecksum {
    let is_composite = output.checksum_type() == Some(&ChecksumType::Composite);
    let whole = output.checksum_crc32_c().filter(|_| !is_composite).and_then(Crc32c::from_base64);
    whole.map_or(StoredChecksum::None, StoredChecksum::Crc32c)
}

/// Returns an entity tag without its quotes, which some servers omit in some answers; `None` for an empty one, which Ceph
/// sends at the completion of an upload.
pub(super) fn version_of(tag: Option<&str>) -> Option<String> {
    let bare = tag?.trim_matches('"');
    (!bare.is_empty()).then(|| bare.to_owned())
}

/// Returns an entity tag as conditions contain it.
pub(super) fn quoted(version: &str) -> String {
    format!("\"{version}\"")
}

pub(super) fn system_time(time: Option<&DateTime>) -> SystemTime {
    time.and_then(|time| SystemTime::try_from(*time).ok()).unwrap_or(SystemTime::UNIX_EPOCH)
}

pub(super) fn shorter(what: &str, name: &str, wanted: u64, length: u64) -> Error {
    Error::new(ErrorKind::Damaged, what)
        .on(name)
        .because(format!("the store has {length} of the {wanted} requested bytes"))
}

/// Returns the body's bytes, and an error when they end early or are not exactly `wanted`.
pub(super) fn exactly(body: ByteStream, wanted: Option<u64>, name: String) -> BodyStream {
    try_unfold((body, 0_u64), move |(mut body, seen)| {
        let name = name.clone();
        async move {
            let what = "cannot read the object";
            match body.next().await {
                Some(Ok(bytes)) => {
                    let seen = seen + bytes.len() as u64;
                    Ok(Some((bytes, (body, seen))))
                }
                Some(Err(error)) => Err(Fault::of_body(&error).into_error(what, &name)),
                None => match wanted {
                    Some(wanted) if wanted != seen => Err(Error::new(ErrorKind::Unreachable, what)
                        .on(&name)
                        .because(format!("the answer ended early after {seen} of {wanted} bytes"))),
                    _ => Ok(None),
                },
            }
        }
    })
    .boxed()
}

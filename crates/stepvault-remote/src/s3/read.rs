//! Reads metadata, ranges and listings.

use std::ops::Range;
use std::time::SystemTime;

use aws_sdk_s3::primitives::{ByteStream, DateTime};
use aws_sdk_s3::types::ChecksumMode;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{BoxStream, try_unfold};
use stepvault_core::{Error, ErrorKind, Result};

use super::checksums::stored;
use super::errors::Fault;
use super::store::S3Store;
use crate::listed::{ObjectPage, paged};
use crate::pieces::no_bytes;
use crate::store::{ObjectHead, ObjectInfo};

const LIST: &str = "cannot list objects";

impl S3Store {
    pub(super) async fn head_object(&self, key: &str) -> Result<Option<ObjectHead>> {
        let client = self.client().await?;
        let request = client.head_object().bucket(&self.bucket).key(self.full_key(key));
        let what = "cannot read the object's metadata";
        let with_checksum = request.clone().checksum_mode(ChecksumMode::Enabled);
        let mut answer = with_checksum.send().await;
        // A store that knows no checksums cannot say so here, and expired credentials are refused in the same way.
        if let Err(error) = &answer
            && self.clients().sends_checksums()
            && Fault::of(error).is_silent()
        {
            answer = request.send().await;
            if answer.is_ok() {
                self.clients().stop_checksums();
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
        let size_bytes =
            output.content_length().and_then(|length| u64::try_from(length).ok()).ok_or_else(|| {
                Error::new(ErrorKind::Failed, what).on(self.name(key)).because("the store returned no length")
            })?;
        Ok(Some(ObjectHead {
            info: ObjectInfo {
                key: key.to_owned(),
                size_bytes,
                modified: system_time(output.last_modified()),
                version: version_of(output.e_tag()),
            },
            checksum: stored((output.checksum_sha256(), output.checksum_crc64_nvme())),
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
            Some(_) => Err(Error::new(ErrorKind::Unreachable, what)
                .on(self.name(key))
                .because("the store has the object, and answered that it does not exist")),
        }
    }

    pub(super) async fn get_object(
        &self,
        key: &str,
        range: Option<Range<u64>>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let what = "cannot read the object";
        if let Some(range) = range.as_ref().filter(|range| range.is_empty()) {
            // HTTP cannot request an empty range.
            let head = self.head_object(key).await?;
            return no_bytes(&self.name(key), head.map(|head| head.info.size_bytes), range);
        }
        let client = self.client().await?;
        let request = client
            .get_object()
            .bucket(&self.bucket)
            .key(self.full_key(key))
            .set_range(range.as_ref().map(|range| format!("bytes={}-{}", range.start, range.end - 1)));
        let output = request.send().await.map_err(|error| self.failed(what, key, &error))?;
        let length = output.content_length.and_then(|length| u64::try_from(length).ok());
        let wanted = match &range {
            Some(range) => {
                let answered = output.content_range.as_deref();
                let from = format!("bytes {}-", range.start);
                if !answered.is_some_and(|answered| answered.starts_with(&from)) {
                    return Err(Error::new(ErrorKind::Failed, what)
                        .on(self.name(key))
                        .because("the store sent a different range than requested"));
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
        Ok(exactly(output.body, wanted, self.name(key)))
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
        Error::new(ErrorKind::Failed, LIST).on(self.name("")).because(why)
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

fn shorter(what: &str, name: &str, wanted: u64, length: u64) -> Error {
    Error::new(ErrorKind::Damaged, what)
        .on(name)
        .because(format!("the store has {length} of the {wanted} requested bytes"))
}

/// Returns the body's bytes, and an error when they end early or are not exactly `wanted`.
fn exactly(body: ByteStream, wanted: Option<u64>, name: String) -> BoxStream<'static, Result<Bytes>> {
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

//! The XML API's multipart uploads.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use quick_xml::escape::escape;
use serde::Deserialize;
use uuid::Uuid;

use super::checksums::{Checksums, Claims};
use super::conditions::Conditions;
use super::list::page_size;
use super::read::{describe, quoted_etag};
use super::reply::{Failure, Reply, rfc3339};
use super::request::Request;
use super::server::Outcome;
use super::state::{Core, NewObject, lock};
use super::{PendingKind, PendingUpload};

/// Minimum length of every part but the last.
const MINIMUM_PART_BYTES: usize = 5 * 1024 * 1024;
const MAXIMUM_PART_NUMBER: usize = 10_000;

/// An upload that was initiated and neither completed nor aborted.
#[derive(Debug, Clone)]
pub(super) struct MultipartUpload {
    bucket: String,
    key: String,
    initiated: SystemTime,
    attributes: BTreeMap<String, String>,
    parts: BTreeMap<usize, Part>,
}

#[derive(Debug, Clone)]
struct Part {
    body: Bytes,
    checksums: Checksums,
    uploaded: SystemTime,
}

impl Part {
    fn etag(&self) -> String {
        self.checksums.md5_hex().unwrap_or_default()
    }
}

#[derive(Debug, Deserialize)]
struct CompleteMultipartUpload {
    #[serde(rename = "Part", default)]
    parts: Vec<ListedPart>,
}

#[derive(Debug, Deserialize)]
struct ListedPart {
    #[serde(rename = "PartNumber")]
    number: usize,
    #[serde(rename = "ETag")]
    etag: String,
}

/// `POST ?uploads`.
pub(super) fn initiate(core: &Core, request: &Request, bucket: &str, key: &str) -> Outcome {
    refuse_conditions(request)?;
    let upload = MultipartUpload {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        initiated: SystemTime::now(),
        attributes: request.attributes(),
        parts: BTreeMap::new(),
    };
    let id = Uuid::new_v4().simple().to_string();
    lock(&core.multipart_uploads).insert(id.clone(), upload);
    Ok(Reply::xml(
        200,
        &format!(
            "<InitiateMultipartUploadResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>\
             <Bucket>{}</Bucket><Key>{}</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>",
            escape(bucket),
            escape(key)
        ),
    ))
}

/// `PUT ?partNumber&uploadId`.
pub(super) fn put_part(core: &Core, request: &Request, bucket: &str, key: &str, body: &Bytes) -> Outcome {
    refuse_conditions(request)?;
    let number = request.number("partNumber")?.unwrap_or(0);
    if !(1..=MAXIMUM_PART_NUMBER).contains(&number) {
        return Err(Failure::new(400, "InvalidArgument", "Part numbers go from 1 to 10000."));
    }
    with_upload(core, request, bucket, key, |_| Ok(()))?;
    let body = request.arrived(body.clone());
    let part = Part { checksums: Checksums::of(&body), body, uploaded: SystemTime::now() };
    Claims::from_headers(&request.headers)?.check(&part.checksums, core)?;
    let mut reply = Reply::new(200).header("etag", format!("\"{}\"", part.etag()));
    if !core.options.no_checksum_answers {
        reply = reply.header("x-goog-hash", part.checksums.header());
    }
    // Looked up again, because the upload may have ended while the part was hashed.
    with_upload(core, request, bucket, key, |upload| {
        upload.parts.insert(number, part);
        Ok(reply)
    })
}

/// `POST ?uploadId`.
pub(super) fn complete(core: &Core, request: &Request, bucket: &str, key: &str, body: &Bytes) -> Outcome {
    refuse_conditions(request)?;
    let listed: CompleteMultipartUpload = std::str::from_utf8(body)
        .ok()
        .and_then(|text| quick_xml::de::from_str(text).ok())
        .ok_or_else(|| Failure::new(400, "MalformedXML", "The XML you provided was not well-formed."))?;
    let upload = with_upload(core, request, bucket, key, |upload| {
        check_parts(upload, &listed.parts)?;
        Ok(upload.clone())
    })?;
    let mut whole = BytesMut::new();
    for part in &listed.parts {
        whole.extend_from_slice(&upload.parts[&part.number].body);
    }
    // Of two simultaneous completions, one finds that the upload no longer exists.
    let id = request.parameter("uploadId").unwrap_or_default();
    lock(&core.multipart_uploads).remove(id).ok_or_else(no_such_upload)?;
    let object = core.commit(
        NewObject {
            bucket: upload.bucket,
            key: upload.key,
            checksums: Checksums::without_md5(&whole),
            body: whole.freeze(),
            attributes: upload.attributes,
        },
        &Conditions::default(),
    )?;
    let result = format!(
        "<CompleteMultipartUploadResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>\
         <Location>{}/{}/{}</Location><Bucket>{}</Bucket><Key>{}</Key><ETag>{}</ETag>\
         </CompleteMultipartUploadResult>",
        request.endpoint,
        escape(bucket),
        escape(key),
        escape(bucket),
        escape(key),
        escape(quoted_etag(&object).as_str()),
    );
    Ok(describe(core, Reply::xml(200, &result), &object))
}

fn check_parts(upload: &MultipartUpload, listed: &[ListedPart]) -> Result<(), Failure> {
    if listed.is_empty() {
        return Err(Failure::new(400, "MalformedXML", "At least one part is needed."));
    }
    if !listed.is_sorted_by(|one, next| one.number < next.number) {
        let message = "The list of parts was not in ascending order.";
        return Err(Failure::new(400, "InvalidPartOrder", message));
    }
    for (position, listed_part) in listed.iter().enumerate() {
        let stored = upload.parts.get(&listed_part.number);
        let Some(part) = stored.filter(|part| part.etag() == listed_part.etag.trim_matches('"')) else {
            let message =
                "One or more of the specified parts could not be found, or its ETag does not match.";
            return Err(Failure::new(400, "InvalidPart", message));
        };
        if position + 1 < listed.len() && part.body.len() < MINIMUM_PART_BYTES {
            let message = "Your proposed upload is smaller than the minimum allowed object size.";
            return Err(Failure::new(400, "EntityTooSmall", message));
        }
    }
    Ok(())
}

/// `DELETE ?uploadId`.
pub(super) fn abort(core: &Core, request: &Request, bucket: &str, key: &str) -> Outcome {
    with_upload(core, request, bucket, key, |_| Ok(()))?;
    lock(&core.multipart_uploads).remove(request.parameter("uploadId").unwrap_or_default());
    Ok(Reply::new(204))
}

/// `GET ?uploadId`: returns the parts so far.
pub(super) fn list_parts(core: &Core, request: &Request, bucket: &str, key: &str) -> Outcome {
    let after = request.number("part-number-marker")?.unwrap_or(0);
    let limit = page_size(core, request.number("max-parts")?);
    let upload = with_upload(core, request, bucket, key, |upload| Ok(upload.clone()))?;
    let later = upload.parts.range(after.saturating_add(1)..);
    let page: Vec<_> = later.clone().take(limit).collect();
    let truncated = later.count() > page.len();
    let mut xml = format!(
        "<ListPartsResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Bucket>{}</Bucket><Key>{}</Key>\
         <UploadId>{}</UploadId><PartNumberMarker>{after}</PartNumberMarker><MaxParts>{limit}</MaxParts>\
         <IsTruncated>{truncated}</IsTruncated>",
        escape(bucket),
        escape(key),
        escape(request.parameter("uploadId").unwrap_or_default()),
    );
    if let (true, Some((last, _))) = (truncated, page.last()) {
        let _ = write!(xml, "<NextPartNumberMarker>{last}</NextPartNumberMarker>");
    }
    for (number, part) in page {
        let _ = write!(
            xml,
            "<Part><PartNumber>{number}</PartNumber><LastModified>{}</LastModified>\
             <ETag>&quot;{}&quot;</ETag><Size>{}</Size></Part>",
            rfc3339(part.uploaded),
            part.etag(),
            part.body.len()
        );
    }
    xml.push_str("</ListPartsResult>");
    Ok(Reply::xml(200, &xml))
}

fn with_upload<T>(
    core: &Core,
    request: &Request,
    bucket: &str,
    key: &str,
    action: impl FnOnce(&mut MultipartUpload) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let id = request.parameter("uploadId").unwrap_or_default();
    let mut uploads = lock(&core.multipart_uploads);
    let upload = uploads.get_mut(id).filter(|upload| upload.bucket == bucket && upload.key == key);
    action(upload.ok_or_else(no_such_upload)?)
}

/// As documented, these uploads support no preconditions. Ignoring one would look like create-only.
fn refuse_conditions(request: &Request) -> Result<(), Failure> {
    if Conditions::from_headers(&request.headers)?.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(400, "InvalidArgument", "Multipart uploads do not support preconditions."))
    }
}

fn no_such_upload() -> Failure {
    Failure::new(404, "NoSuchUpload", "The requested upload was not found.")
}

pub(super) fn pending(core: &Core) -> Vec<PendingUpload> {
    let uploads = lock(&core.multipart_uploads);
    let mut pending: Vec<_> = uploads
        .iter()
        .map(|(id, upload)| PendingUpload {
            kind: PendingKind::Multipart,
            id: id.clone(),
            bucket: upload.bucket.clone(),
            key: upload.key.clone(),
            stored_bytes: upload.parts.values().map(|part| part.body.len() as u64).sum(),
            initiated: upload.initiated,
        })
        .collect();
    pending
        .sort_by(|one, other| (&one.bucket, &one.key, &one.id).cmp(&(&other.bucket, &other.key, &other.id)));
    pending
}

pub(super) fn age_all(core: &Core, by: Duration) {
    for upload in lock(&core.multipart_uploads).values_mut() {
        upload.initiated = upload.initiated.checked_sub(by).unwrap_or(SystemTime::UNIX_EPOCH);
    }
}

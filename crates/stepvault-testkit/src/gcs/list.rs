//! The XML API's listings of a bucket.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use quick_xml::escape::escape;
use serde_json::json;

use super::conditions::METAGENERATION;
use super::fields::select;
use super::json::resource_of;
use super::read::storage_class;
use super::reply::{Failure, Reply, rfc3339};
use super::request::Request;
use super::server::Outcome;
use super::state::{Core, table_key};
use super::{PendingUpload, multipart};
use crate::objects::StoredObject;

enum Entry {
    Object(String, StoredObject),
    Prefix(String),
}

impl Entry {
    fn name(&self) -> &str {
        match self {
            Self::Object(name, _) | Self::Prefix(name) => name,
        }
    }
}

/// `GET ?list-type=2`.
pub(super) fn objects(core: &Core, request: &Request, bucket: &str) -> Outcome {
    if request.parameter("list-type") != Some("2") {
        return Err(Failure::not_implemented("listings of the first version"));
    }
    let prefix = request.parameter("prefix").unwrap_or_default();
    let delimiter = request.parameter("delimiter").filter(|delimiter| !delimiter.is_empty());
    let token = request.parameter("continuation-token").map(read_token).transpose()?;
    let start_after = request.parameter("start-after").unwrap_or_default();
    let limit = page_size(core, request.number("max-keys")?);

    let mut entries = entries(core, bucket, prefix, delimiter);
    entries.retain(|entry| {
        let name = entry.name();
        name > start_after && token.as_deref().is_none_or(|token| name > token)
    });
    let truncated = entries.len() > limit;
    entries.truncate(limit);

    let mut xml = format!(
        "<ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'><Name>{}</Name><Prefix>{}</Prefix>\
         <KeyCount>{}</KeyCount><MaxKeys>{limit}</MaxKeys><IsTruncated>{truncated}</IsTruncated>",
        escape(bucket),
        escape(prefix),
        entries.len(),
    );
    if let (true, Some(last)) = (truncated, entries.last()) {
        let token = BASE64_URL_SAFE_NO_PAD.encode(last.name());
        let _ = write!(xml, "<NextContinuationToken>{token}</NextContinuationToken>");
    }
    for entry in &entries {
        match entry {
            Entry::Object(name, object) => write_object(&mut xml, name, object),
            Entry::Prefix(name) => {
                let _ = write!(
                    xml,
                    "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>",
                    escape(name.as_str())
                );
            }
        }
    }
    xml.push_str("</ListBucketResult>");
    Ok(Reply::xml(200, &xml))
}

/// Returns all objects and common prefixes under `prefix`, in order.
fn entries(core: &Core, bucket: &str, prefix: &str, delimiter: Option<&str>) -> Vec<Entry> {
    let from = table_key(bucket, prefix);
    core.objects.with(|table| {
        let mut entries: Vec<Entry> = Vec::new();
        for (key, object) in table.range(from.clone()..).take_while(|(key, _)| key.starts_with(&from)) {
            let name = &key[bucket.len() + 1..];
            let cut = delimiter.and_then(|delimiter| {
                let at = name[prefix.len()..].find(delimiter)?;
                Some(prefix.len() + at + delimiter.len())
            });
            match cut {
                // Names with a common prefix are adjacent, so comparing with the last entry is enough.
                Some(cut) if entries.last().is_some_and(|last| last.name() == &name[..cut]) => {}
                Some(cut) => entries.push(Entry::Prefix(name[..cut].to_owned())),
                None => entries.push(Entry::Object(name.to_owned(), object.clone())),
            }
        }
        entries
    })
}

/// `GET …/o`.
pub(super) fn json_objects(core: &Core, request: &Request, bucket: &str) -> Outcome {
    let prefix = request.parameter("prefix").unwrap_or_default();
    let delimiter = request.parameter("delimiter").filter(|delimiter| !delimiter.is_empty());
    let token = request.parameter("pageToken").map(read_token).transpose()?;
    let limit = page_size(core, request.number("maxResults")?);
    if limit == 0 {
        return Err(Failure::new(400, "InvalidArgument", "Invalid value for maxResults: 0"));
    }
    let mut entries = entries(core, bucket, prefix, delimiter);
    entries.retain(|entry| token.as_deref().is_none_or(|token| entry.name() > token));
    let truncated = entries.len() > limit;
    entries.truncate(limit);
    let mut answer = json!({ "kind": "storage#objects" });
    if let (true, Some(last)) = (truncated, entries.last()) {
        answer["nextPageToken"] = BASE64_URL_SAFE_NO_PAD.encode(last.name()).into();
    }
    let (mut items, mut prefixes) = (Vec::new(), Vec::new());
    for entry in entries {
        match entry {
            Entry::Object(name, object) => {
                items.push(resource_of(core, &request.endpoint, bucket, &name, &object));
            }
            Entry::Prefix(name) => prefixes.push(name),
        }
    }
    // As documented, an empty list is left out.
    if !items.is_empty() {
        answer["items"] = items.into();
    }
    if !prefixes.is_empty() {
        answer["prefixes"] = prefixes.into();
    }
    Ok(Reply::json(200, &select(answer, request.parameter("fields"))?))
}

fn write_object(xml: &mut String, name: &str, object: &StoredObject) {
    let _ = write!(
        xml,
        "<Contents><Key>{}</Key><Generation>{}</Generation><MetaGeneration>{METAGENERATION}</MetaGeneration>\
         <LastModified>{}</LastModified><ETag>&quot;{}&quot;</ETag><Size>{}</Size>\
         <StorageClass>{}</StorageClass></Contents>",
        escape(name),
        object.generation,
        rfc3339(object.modified),
        escape(object.etag.as_str()),
        object.body.len(),
        escape(storage_class(object)),
    );
}

/// `GET ?uploads`: multipart uploads not ended, by name, then id.
pub(super) fn multipart_uploads(core: &Core, request: &Request, bucket: &str) -> Outcome {
    let prefix = request.parameter("prefix").unwrap_or_default();
    if request.parameter("delimiter").is_some_and(|delimiter| !delimiter.is_empty()) {
        return Err(Failure::not_implemented("a delimiter in a listing of uploads"));
    }
    let key_marker = request.parameter("key-marker").unwrap_or_default();
    let id_marker = request.parameter("upload-id-marker").unwrap_or_default();
    let limit = page_size(core, request.number("max-uploads")?);

    let mut uploads: Vec<PendingUpload> = multipart::pending(core);
    uploads.retain(|upload| {
        let later_id = !id_marker.is_empty() && upload.key == key_marker && upload.id.as_str() > id_marker;
        let after = key_marker.is_empty() || upload.key.as_str() > key_marker || later_id;
        upload.bucket == bucket && upload.key.starts_with(prefix) && after
    });
    let truncated = uploads.len() > limit;
    uploads.truncate(limit);

    let mut xml = format!(
        "<ListMultipartUploadsResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Bucket>{}</Bucket>\
         <KeyMarker>{}</KeyMarker><UploadIdMarker>{}</UploadIdMarker><Prefix>{}</Prefix>\
         <MaxUploads>{limit}</MaxUploads><IsTruncated>{truncated}</IsTruncated>",
        escape(bucket),
        escape(key_marker),
        escape(id_marker),
        escape(prefix),
    );
    if let (true, Some(last)) = (truncated, uploads.last()) {
        let _ = write!(
            xml,
            "<NextKeyMarker>{}</NextKeyMarker><NextUploadIdMarker>{}</NextUploadIdMarker>",
            escape(last.key.as_str()),
            last.id
        );
    }
    for upload in &uploads {
        let _ = write!(
            xml,
            "<Upload><Key>{}</Key><UploadId>{}</UploadId><StorageClass>STANDARD</StorageClass>\
             <Initiated>{}</Initiated></Upload>",
            escape(upload.key.as_str()),
            upload.id,
            rfc3339(upload.initiated)
        );
    }
    xml.push_str("</ListMultipartUploadsResult>");
    Ok(Reply::xml(200, &xml))
}

/// Returns the requested page size, limited by the provider and the test.
pub(super) fn page_size(core: &Core, asked: Option<usize>) -> usize {
    asked.unwrap_or(1000).min(1000).min(core.options.list_page_size)
}

fn read_token(token: &str) -> Result<String, Failure> {
    BASE64_URL_SAFE_NO_PAD
        .decode(token)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| Failure::new(400, "InvalidArgument", "Invalid continuation-token."))
}

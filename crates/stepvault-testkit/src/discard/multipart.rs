//! Multipart uploads of the discarding server.

use std::collections::BTreeMap;
use std::io;
use std::time::SystemTime;

use http::{HeaderMap, Response, StatusCode};
use hyper::body::Incoming;

use super::body::Reply;
use super::request::{Target, given_checksum, given_md5, receive};
use super::store::{DiscardStore, Entry, Part, Upload};
use super::{cut_short, forbids, refuse, stored, xml, xml_reply};
use crate::s3::checksums::{Algorithm, hex, md5};

pub(super) async fn upload_part(
    store: &DiscardStore,
    target: &Target,
    headers: &HeaderMap,
    body: Incoming,
) -> io::Result<Response<Reply>> {
    let received = receive(&target.path, headers, body).await.ok_or_else(cut_short)?;
    if received.wrong_digest {
        return Ok(refuse(StatusCode::BAD_REQUEST, "BadDigest"));
    }
    let checksum = given_checksum(headers);
    let number = target.get("partNumber").and_then(|number| number.parse::<u32>().ok());
    let mut tables = store.tables();
    let etag = tables.next_etag();
    let upload = tables.uploads.get_mut(target.get("uploadId").unwrap_or(""));
    let (Some(upload), Some(number)) = (upload, number) else {
        return Ok(refuse(StatusCode::NOT_FOUND, "NoSuchUpload"));
    };
    let response = stored(&etag, checksum.as_ref());
    upload.parts.insert(number, Part { size_bytes: received.size_bytes, checksum, md5: given_md5(headers) });
    Ok(response)
}

pub(super) fn create_upload(store: &DiscardStore, target: &Target) -> Response<Reply> {
    let mut tables = store.tables();
    let id = tables.next_id();
    let upload = Upload { path: target.path.clone(), initiated: SystemTime::now(), parts: BTreeMap::new() };
    tables.uploads.insert(id.clone(), upload);
    let (bucket, key) = target.path.split_once('/').unwrap_or_default();
    let content =
        format!("<Bucket>{bucket}</Bucket><Key>{}</Key><UploadId>{id}</UploadId>", xml::escape(key));
    xml_reply(StatusCode::OK, xml::document("InitiateMultipartUploadResult", &content))
}

/// Returns the checksum of the whole if every part has one of the same kind.
fn composite(parts: &[&Part]) -> Option<(Algorithm, String)> {
    let (algorithm, _) = parts.first()?.checksum.as_ref()?;
    let values: Option<Vec<&str>> = parts
        .iter()
        .map(|part| {
            part.checksum.as_ref().filter(|(kind, _)| kind == algorithm).map(|(_, value)| value.as_str())
        })
        .collect();
    Some((*algorithm, algorithm.composite(values?).filter(|_| algorithm.can_be_composite())?))
}

/// Returns S3's entity tag if every part has an MD5: some clients compute it too and compare.
fn etag(parts: &[&Part]) -> Option<String> {
    let mut digests = Vec::new();
    for part in parts {
        digests.extend(part.md5.as_ref()?);
    }
    Some(format!("{}-{}", hex(&md5(&digests)), parts.len()))
}

pub(super) fn complete(
    store: &DiscardStore,
    target: &Target,
    headers: &HeaderMap,
    list: &str,
) -> Response<Reply> {
    let id = target.get("uploadId").unwrap_or("");
    let mut tables = store.tables();
    if let Some(refusal) = forbids(headers, &tables, &target.path) {
        return refusal;
    }
    let Some(upload) = tables.uploads.get(id) else {
        return refuse(StatusCode::NOT_FOUND, "NoSuchUpload");
    };
    let numbers = xml::texts(list, "PartNumber");
    let parts: Option<Vec<&Part>> =
        numbers.iter().map(|number| upload.parts.get(&number.parse().ok()?)).collect();
    let Some(parts) = parts.filter(|parts| !parts.is_empty()) else {
        return refuse(StatusCode::BAD_REQUEST, "InvalidPart");
    };
    let size_bytes: u64 = parts.iter().map(|part| part.size_bytes).sum();
    let wanted =
        headers.get("x-amz-mp-object-size").and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if wanted.is_some_and(|wanted| wanted != size_bytes) {
        return refuse(StatusCode::BAD_REQUEST, "InvalidRequest");
    }
    // A checksum of the whole object cannot be computed here; the given one is believed.
    let is_full_object = headers.get("x-amz-checksum-type").is_some_and(|kind| kind == "FULL_OBJECT");
    let checksum = if is_full_object { given_checksum(headers) } else { composite(&parts) };
    let etag = etag(&parts);
    let etag = etag.unwrap_or_else(|| tables.next_etag());
    let (bucket, key) = target.path.split_once('/').unwrap_or_default();
    let content = format!(
        "<Location>/{}</Location><Bucket>{bucket}</Bucket><Key>{}</Key><ETag>&quot;{etag}&quot;</ETag>{}",
        xml::escape(&target.path),
        xml::escape(key),
        xml::checksum_elements(checksum.as_ref())
    );
    let entry = Entry { size_bytes, modified: SystemTime::now(), etag, checksum, body: None };
    tables.objects.insert(target.path.clone(), entry);
    tables.uploads.remove(id);
    xml_reply(StatusCode::OK, xml::document("CompleteMultipartUploadResult", &content))
}

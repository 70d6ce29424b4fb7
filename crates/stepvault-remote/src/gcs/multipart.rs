//! XML multipart uploads: parts in any order and from any process, each with a CRC-32C that the store checks.

use std::fmt::Write as _;
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, Method};
use stepvault_core::store_facts::LeftBytes;
use stepvault_core::{Crc32c, ErrorKind, FileDigest, PartDigest, Result};

use super::api::{Api, COMPLETE, CONTENT_TYPE, PENDING};
use super::xml::escape;
use crate::causes::if_found;
use crate::listed::{Listed, Marker, Page, check_parts, pages};
use crate::payload::Payload;
use crate::store::{Created, PartReceipt, PendingUpload};

/// Begins an upload and returns its ID.
pub(super) async fn start(api: &Api, key: &str) -> Result<String> {
    let options = &api.options;
    let class = options.storage_class.clone();
    let kms_key = options.kms_key.clone();
    let call = api
        .xml("cannot begin an upload", Method::POST, Some(key))?
        .query([("uploads", "")])
        .headers(class.map(|class| ("x-goog-storage-class", class)))
        .headers(kms_key.map(|name| ("x-goog-encryption-kms-key-name", name)))
        .body(CONTENT_TYPE, Payload::default());
    let answer = api.send(call).await?;
    answer.root("InitiateMultipartUploadResult")?.required("UploadId")
}

/// Sends part `index`.
pub(super) async fn send_part(
    api: &Api,
    key: &str,
    upload: &str,
    index: u32,
    body: Payload,
    digest: &PartDigest,
) -> Result<PartReceipt> {
    let what = format!("cannot upload part {}", index + 1);
    let call = api
        .xml(&what, Method::PUT, Some(key))?
        .query([("partNumber", (index + 1).to_string()), ("uploadId", upload.to_owned())])
        .headers([("x-goog-hash", format!("crc32c={}", digest.crc32c.to_base64()))])
        .part(body);
    let answer = api.send(call).await?;
    // A server that ignores the given checksum is detected by the one that it computed.
    if let Some(stored) = crc32c_of(&answer.headers).filter(|stored| *stored != digest.crc32c) {
        return Err(api.error(
            ErrorKind::Damaged,
            &what,
            key,
            format!("the store has CRC-32C {stored}; {} was sent", digest.crc32c),
        ));
    }
    let tag = answer.header("etag");
    let tag = tag.ok_or_else(|| answer.unusable("the answer has no entity tag"))?;
    Ok(PartReceipt { index, tag: tag.to_owned(), digest: *digest })
}

/// Completes an upload. The key is checked first, because this API supports no preconditions and would overwrite an object
/// there.
pub(super) async fn complete(
    api: &Api,
    key: &str,
    upload: &str,
    parts: &[PartReceipt],
    digest: &FileDigest,
) -> Result<Created> {
    if api.object(key).await?.is_some() {
        return Ok(Created::Exists);
    }
    let mut listed = String::from("<CompleteMultipartUpload>");
    for part in parts {
        let (number, tag) = (part.index + 1, escape(&part.tag));
        let _ = write!(listed, "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>");
    }
    listed.push_str("</CompleteMultipartUpload>");
    let call = api
        .xml(COMPLETE, Method::POST, Some(key))?
        .query([("uploadId", upload)])
        .body("application/xml", Bytes::from(listed));
    let answer = api.send(call).await?;
    answer.root("CompleteMultipartUploadResult")?;
    let object = api.object(key).await?;
    let object = object.ok_or_else(|| answer.unusable("the store acknowledged it, but it does not exist"))?;
    // Another writer may have put an object there meanwhile.
    let is_ours = answer.header("x-goog-generation") == Some(&object.generation.to_string());
    let sent = (digest.size_bytes, digest.crc32c);
    let head = api.compare(COMPLETE, key, object, sent, is_ours).await?;
    Ok(Created::Written(head))
}

/// Aborts an upload. A missing upload is not an error.
pub(super) async fn abort(api: &Api, key: &str, upload: &str) -> Result<()> {
    let call = api.xml("cannot abort the upload", Method::DELETE, Some(key))?;
    let answer = api.send(call.query([("uploadId", upload)])).await;
    if_found(answer).map(drop)
}

/// Returns the incomplete uploads to keys that begin with `prefix`, of at most `most_pages` pages.
pub(super) async fn listed(api: &Api, prefix: &str, most_pages: usize) -> Result<Listed> {
    let full_prefix = api.keys.full_prefix(prefix);
    pages(PENDING, &api.subject(None), prefix, most_pages, |after| page(api, &full_prefix, after)).await
}

async fn page(api: &Api, prefix: &str, after: Option<Marker>) -> Result<Page> {
    let call = api.xml(PENDING, Method::GET, None)?.query([("uploads", ""), ("prefix", prefix)]).query(
        after.into_iter().flat_map(|after| [("key-marker", after.key), ("upload-id-marker", after.upload)]),
    );
    let answer = api.send(call).await?;
    let list = answer.root("ListMultipartUploadsResult")?;
    let mut page = Page::default();
    for entry in list.children("Upload") {
        let name = entry.required("Key")?;
        let initiated = entry.text("Initiated").map(|text| time(api, &text)).transpose()?;
        if let Some(key) = api.keys.key_of(&name) {
            page.uploads.push(PendingUpload {
                key: key.to_owned(),
                upload: entry.required("UploadId")?,
                initiated,
            });
        }
    }
    if list.text("IsTruncated").as_deref() == Some("true") {
        page.next = Some(Marker {
            key: list.required("NextKeyMarker")?,
            upload: list.text("NextUploadIdMarker").unwrap_or_default(),
        });
    }
    Ok(page)
}

/// Returns the size of the first page of an upload's parts, or `None` for an upload that no longer exists.
pub(super) async fn uploaded_bytes(api: &Api, upload: &PendingUpload) -> Result<Option<LeftBytes>> {
    const WHAT: &str = "cannot list an upload's parts";
    let call = api.xml(WHAT, Method::GET, Some(&upload.key))?;
    let answer = api.send(call.query([("uploadId", &upload.upload)])).await;
    let Some(answer) = if_found(answer)? else {
        return Ok(None);
    };
    let list = answer.root("ListPartsResult")?;
    check_parts(
        &api.subject(Some(&upload.key)),
        (&api.keys.full(&upload.key)?, &upload.upload),
        (list.text("Key").as_deref(), list.text("UploadId").as_deref()),
    )?;
    let mut bytes = 0_u64;
    for part in list.children("Part") {
        let size: u64 =
            part.required("Size")?.parse().map_err(|_| api.malformed(WHAT, "a size is not a number"))?;
        bytes = bytes.saturating_add(size);
    }
    Ok(Some(LeftBytes { bytes, all: list.text("IsTruncated").as_deref() != Some("true") }))
}

fn time(api: &Api, text: &str) -> Result<SystemTime> {
    let time: jiff::Timestamp = text.parse().map_err(|_| api.malformed(PENDING, "a time is malformed"))?;
    Ok(time.into())
}

/// Returns the CRC-32C from the `x-goog-hash` headers; there may be several.
fn crc32c_of(headers: &HeaderMap) -> Option<Crc32c> {
    let values = headers.get_all("x-goog-hash").iter();
    let text = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|item| item.trim().strip_prefix("crc32c="))?;
    Crc32c::from_base64(text)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn finds_the_checksum_in_any_of_the_headers() {
        let mut headers = HeaderMap::new();
        headers.append("x-goog-hash", HeaderValue::from_static("md5=AAAA"));
        headers.append("x-goog-hash", HeaderValue::from_static("crc32c=4waSgw=="));
        assert_eq!(crc32c_of(&headers), Some(Crc32c::of(b"123456789")));
        let mut headers = HeaderMap::new();
        headers.append("x-goog-hash", HeaderValue::from_static("crc32c=4waSgw==,md5=AAAA"));
        assert_eq!(crc32c_of(&headers), Some(Crc32c::of(b"123456789")));
        headers.insert("x-goog-hash", HeaderValue::from_static("crc32c=short"));
        assert_eq!(crc32c_of(&headers), None);
    }
}

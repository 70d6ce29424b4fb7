//! Headers that S3 stores with an object and returns when it is read.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::{S3Result, s3_error};

use super::StrictS3Options;
use crate::objects::StoredObject;

/// Attributes by lower-case header name.
pub(crate) type Attributes = BTreeMap<String, String>;

pub(crate) const STORAGE_CLASS: &str = "x-amz-storage-class";
pub(crate) const TAGGING: &str = "x-amz-tagging";
/// Whether an archived object was requested, and is readable.
pub(crate) const RESTORE: &str = "x-amz-restore";
const ENCRYPTION: &str = "x-amz-server-side-encryption";

const KEPT: [&str; 11] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
    STORAGE_CLASS,
    ENCRYPTION,
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-bucket-key-enabled",
    "x-amz-website-redirect-location",
];

const STORAGE_CLASSES: [&str; 8] = [
    "STANDARD",
    "REDUCED_REDUNDANCY",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER",
    "GLACIER_IR",
    "DEEP_ARCHIVE",
];

/// Collects the stored headers of a write, with S3's defaults filled in.
pub(crate) fn from_headers(options: &StrictS3Options, headers: &HeaderMap) -> S3Result<Attributes> {
    let mut attributes = Attributes::new();
    let requested = [STORAGE_CLASS, TAGGING];
    for (name, value) in headers {
        let name = name.as_str();
        if options.ignores_attributes && (requested.contains(&name) || name.starts_with(ENCRYPTION)) {
            continue;
        }
        if !(KEPT.contains(&name) || name == TAGGING || name.starts_with("x-amz-meta-")) {
            continue;
        }
        let Ok(value) = value.to_str() else {
            return Err(s3_error!(InvalidArgument, "Header {name} is not text."));
        };
        attributes.insert(name.to_owned(), value.to_owned());
    }
    refuse_unsupported(headers)?;
    // `aws-chunked` describes the transfer, not the object.
    if let Some(encoding) = attributes.remove("content-encoding") {
        let kept: Vec<&str> = encoding
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty() && *part != "aws-chunked")
            .collect();
        if !kept.is_empty() {
            attributes.insert("content-encoding".to_owned(), kept.join(","));
        }
    }
    attributes.entry("content-type".to_owned()).or_insert_with(|| "binary/octet-stream".to_owned());
    attributes.entry(ENCRYPTION.to_owned()).or_insert_with(|| "AES256".to_owned());
    attributes.entry(STORAGE_CLASS.to_owned()).or_insert_with(|| "STANDARD".to_owned());
    check_values(&attributes)?;
    Ok(attributes)
}

fn refuse_unsupported(headers: &HeaderMap) -> S3Result<()> {
    for name in headers.keys() {
        if name.as_str().starts_with("x-amz-server-side-encryption-customer-") {
            return Err(s3_error!(NotImplemented, "Customer-provided keys are not implemented."));
        }
        if name.as_str().starts_with("x-amz-object-lock-") {
            return Err(s3_error!(InvalidRequest, "Bucket is missing Object Lock Configuration"));
        }
    }
    Ok(())
}

fn check_values(attributes: &Attributes) -> S3Result<()> {
    if let Some(class) = attributes.get(STORAGE_CLASS)
        && !STORAGE_CLASSES.contains(&class.as_str())
    {
        return Err(s3_error!(InvalidStorageClass, "The storage class you specified is not valid"));
    }
    let encryption = attributes.get(ENCRYPTION).map_or("", String::as_str);
    if !["AES256", "aws:kms", "aws:kms:dsse"].contains(&encryption) {
        return Err(s3_error!(InvalidArgument, "The encryption method specified is not supported"));
    }
    let has_key = attributes.contains_key("x-amz-server-side-encryption-aws-kms-key-id");
    if has_key && encryption == "AES256" {
        return Err(s3_error!(InvalidArgument, "A KMS key id needs server side encryption with aws:kms."));
    }
    if let Some(tagging) = attributes.get(TAGGING)
        && tag_count(tagging) > 10
    {
        return Err(s3_error!(InvalidTag, "Object tags cannot be greater than 10"));
    }
    Ok(())
}

/// Parses an object's tags in the form of the `x-amz-tagging` header.
pub(crate) fn tags(tagging: &str) -> Vec<(String, String)> {
    url::form_urlencoded::parse(tagging.as_bytes()).into_owned().collect()
}

fn tag_count(tagging: &str) -> usize {
    tags(tagging).len()
}

/// Returns the headers that S3 adds to the answer of a GET or HEAD.
pub(crate) fn read_headers(object: &StoredObject) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &object.attributes {
        match name.as_str() {
            STORAGE_CLASS if value == "STANDARD" => {}
            TAGGING => set(&mut headers, "x-amz-tagging-count", &tag_count(value).to_string()),
            _ => set(&mut headers, name, value),
        }
    }
    headers
}

/// Returns the headers that S3 adds to the answer of a write: how the object is encrypted.
pub(crate) fn write_headers(attributes: &Attributes) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in attributes.iter().filter(|(name, _)| name.starts_with(ENCRYPTION)) {
        set(&mut headers, name, value);
    }
    headers
}

fn set(headers: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
        headers.insert(name, value);
    }
}

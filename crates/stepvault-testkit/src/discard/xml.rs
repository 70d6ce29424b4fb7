//! The few XML documents that the discarding server writes and reads.

use std::fmt::Write as _;
use std::time::SystemTime;

use s3s::dto::{Timestamp, TimestampFormat};

use super::request::Target;
use super::store::{DiscardStore, Entry};
use crate::s3::checksums::Algorithm;
use crate::s3::listing::{Page, key_of_token, token, url_encode};

const HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
const NAMESPACE: &str = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";

/// Returns a document with this root element.
pub(crate) fn document(root: &str, content: &str) -> String {
    format!("{HEAD}<{root} {NAMESPACE}>{content}</{root}>")
}

pub(crate) fn error(code: &str) -> String {
    format!("{HEAD}<Error><Code>{code}</Code><Message>{code}</Message></Error>")
}

pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(character),
        }
    }
    escaped
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

/// Returns the texts of all elements with this name, at any depth.
pub(crate) fn texts(document: &str, element: &str) -> Vec<String> {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    document
        .split(&open)
        .skip(1)
        .filter_map(|rest| rest.split_once(&close))
        .map(|(text, _)| unescape(text))
        .collect()
}

pub(crate) fn time(time: SystemTime, format: TimestampFormat) -> String {
    let mut text = Vec::new();
    let _ = Timestamp::from(time).format(format, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// Returns the element for a checksum of this algorithm.
pub(crate) fn checksum_elements(checksum: Option<&(Algorithm, String)>) -> String {
    let Some((algorithm, value)) = checksum else {
        return String::new();
    };
    let kind = if value.contains('-') { "COMPOSITE" } else { "FULL_OBJECT" };
    let name = algorithm.name();
    format!("<Checksum{name}>{value}</Checksum{name}><ChecksumType>{kind}</ChecksumType>")
}

fn listed(key: &str, entry: &Entry) -> String {
    format!(
        "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>&quot;{}&quot;</ETag><Size>{}</Size>\
         <StorageClass>STANDARD</StorageClass></Contents>",
        key,
        time(entry.modified, TimestampFormat::DateTime),
        entry.etag,
        entry.size_bytes
    )
}

/// Returns one page of a bucket, in the form of either version of the operation.
pub(crate) fn listing(store: &DiscardStore, target: &Target) -> String {
    let is_second_version = target.get("list-type") == Some("2");
    let encoded = target.get("encoding-type") == Some("url");
    let encode = |text: &str| escape(&if encoded { url_encode(text) } else { text.to_owned() });
    let prefix = target.get("prefix").unwrap_or("");
    let delimiter = target.get("delimiter").filter(|delimiter| !delimiter.is_empty());
    let limit = target.get("max-keys").and_then(|limit| limit.parse().ok()).unwrap_or(1000_usize).min(1000);
    let after = match target.get("continuation-token") {
        Some(token) => key_of_token(token).unwrap_or_default(),
        None => target.get("start-after").or_else(|| target.get("marker")).unwrap_or("").to_owned(),
    };
    let root = format!("{}/", target.bucket());
    let tables = store.tables();
    // Starting at the last key of the previous page keeps a long listing linear.
    let start = format!("{root}{}", if after.as_str() > prefix { after.as_str() } else { prefix });
    let sorted = tables
        .objects
        .range(start..)
        .map_while(|(path, entry)| Some((path.strip_prefix(&root)?, entry)))
        .take_while(|(key, _)| key.starts_with(prefix));
    let page = Page::of(sorted, prefix, delimiter, &after, limit);
    let mut content = format!(
        "<Name>{}</Name><Prefix>{}</Prefix><MaxKeys>{limit}</MaxKeys><IsTruncated>{}</IsTruncated>",
        escape(target.bucket()),
        encode(prefix),
        page.next.is_some()
    );
    if let Some(delimiter) = delimiter {
        let _ = write!(content, "<Delimiter>{}</Delimiter>", encode(delimiter));
    }
    if encoded {
        content.push_str("<EncodingType>url</EncodingType>");
    }
    if is_second_version {
        let _ = write!(content, "<KeyCount>{}</KeyCount>", page.count());
    }
    match &page.next {
        Some(next) if is_second_version => {
            let _ = write!(content, "<NextContinuationToken>{}</NextContinuationToken>", token(next));
        }
        Some(next) => {
            let _ = write!(content, "<NextMarker>{}</NextMarker>", encode(next));
        }
        None => {}
    }
    for (key, entry) in &page.entries {
        content.push_str(&listed(&encode(key), entry));
    }
    for common in &page.prefixes {
        let _ = write!(content, "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", encode(common));
    }
    document("ListBucketResult", &content)
}

/// Returns all unfinished uploads of a bucket in one page.
pub(crate) fn uploads(store: &DiscardStore, target: &Target) -> String {
    let root = format!("{}/", target.bucket());
    let prefix = target.get("prefix").unwrap_or("");
    let mut content = format!("<Bucket>{}</Bucket><IsTruncated>false</IsTruncated>", escape(target.bucket()));
    for (id, upload) in &store.tables().uploads {
        let Some(key) = upload.path.strip_prefix(&root).filter(|key| key.starts_with(prefix)) else {
            continue;
        };
        let _ = write!(
            content,
            "<Upload><Key>{}</Key><UploadId>{id}</UploadId><Initiated>{}</Initiated></Upload>",
            escape(key),
            time(upload.initiated, TimestampFormat::DateTime)
        );
    }
    document("ListMultipartUploadsResult", &content)
}

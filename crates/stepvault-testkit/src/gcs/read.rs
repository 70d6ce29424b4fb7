//! Reading an object through either API.

use http::HeaderMap;

use super::checksums::header_value;
use super::conditions::{Conditions, METAGENERATION};
use super::reply::{Failure, Reply, http_date};
use super::request::Request;
use super::server::Outcome;
use super::state::{Core, opaque_etag};
use crate::objects::StoredObject;

/// Answers a GET or HEAD; the body of a HEAD is omitted when it is sent.
pub(super) fn read(
    core: &Core,
    request: &Request,
    bucket: &str,
    key: &str,
    conditions: &Conditions,
) -> Outcome {
    let json = request.target.is_json();
    let object = core.object(bucket, key).ok_or_else(Failure::no_such_key)?;
    request.check_generation(&object)?;
    conditions.check_read(&object)?;
    let etag = if json { opaque_etag(object.generation) } else { quoted_etag(&object) };
    check_entity_tag(&request.headers, &etag)?;

    let length = object.body.len();
    let range = match request.header("range").and_then(|value| parse_range(value, length)) {
        Some(Range::Unsatisfiable) => {
            return Err(Failure::new(416, "InvalidRange", "The requested range cannot be satisfied."));
        }
        Some(Range::Bytes { start, end }) => Some((start, end)),
        None => None,
    };
    let mut reply = describe(core, Reply::new(if range.is_some() { 206 } else { 200 }), &object)
        .header("etag", etag)
        .header("last-modified", http_date(object.modified))
        .header("accept-ranges", "bytes");
    for (name, value) in &object.attributes {
        reply = reply.header(name, value);
    }
    Ok(match range {
        Some((start, end)) => reply
            .header("content-range", format!("bytes {start}-{}/{length}", end - 1))
            .body(object.body.slice(start..end)),
        None => reply.body(object.body),
    })
}

/// Adds the `x-goog-…` headers of reads and XML writes; they describe the whole object.
pub(super) fn describe(core: &Core, reply: Reply, object: &StoredObject) -> Reply {
    let encoding = object.attributes.get("content-encoding").map_or("identity", String::as_str);
    let reply = reply
        .header("x-goog-generation", object.generation.to_string())
        .header("x-goog-metageneration", METAGENERATION.to_string())
        .header("x-goog-stored-content-length", object.body.len().to_string())
        .header("x-goog-stored-content-encoding", encoding)
        .header("x-goog-storage-class", storage_class(object));
    let checksum = |name: &str| object.checksums.get(name).map(String::as_str);
    match header_value(checksum("crc32c"), checksum("md5")) {
        Some(hashes) if !core.options.no_checksum_answers => reply.header("x-goog-hash", hashes),
        _ => reply,
    }
}

pub(super) fn storage_class(object: &StoredObject) -> &str {
    object.attributes.get("x-goog-storage-class").map_or("STANDARD", String::as_str)
}

/// Returns the `ETag` in the XML API's form.
pub(super) fn quoted_etag(object: &StoredObject) -> String {
    format!("\"{}\"", object.etag)
}

fn check_entity_tag(headers: &HeaderMap, etag: &str) -> Result<(), Failure> {
    let bare = etag.trim_matches('"');
    let lists_it = |name: &str| {
        let value = headers.get(name)?.to_str().ok()?;
        Some(value.split(',').map(str::trim).any(|item| item == "*" || item.trim_matches('"') == bare))
    };
    if lists_it("if-match") == Some(false) {
        return Err(Failure::new(412, "PreconditionFailed", "The If-Match condition did not hold."));
    }
    if lists_it("if-none-match") == Some(true) {
        return Err(Failure::new(304, "NotModified", "The object has not changed."));
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Range {
    Bytes { start: usize, end: usize },
    Unsatisfiable,
}

/// Parses one byte range. Anything else is ignored, as HTTP requires for an unknown range.
fn parse_range(value: &str, length: usize) -> Option<Range> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    let (start, end) = if first.is_empty() {
        let count: usize = last.parse().ok()?;
        (length.saturating_sub(count), if count == 0 { 0 } else { length })
    } else {
        let start: usize = first.parse().ok()?;
        let last: usize = if last.is_empty() { usize::MAX } else { last.parse().ok()? };
        if last < start {
            return None;
        }
        (start, last.saturating_add(1).min(length))
    };
    Some(if start < end { Range::Bytes { start, end } } else { Range::Unsatisfiable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_http() {
        let bytes = |start, end| Some(Range::Bytes { start, end });
        assert_eq!(parse_range("bytes=0-0", 10), bytes(0, 1));
        assert_eq!(parse_range("bytes=2-", 10), bytes(2, 10));
        assert_eq!(parse_range("bytes=8-99", 10), bytes(8, 10));
        assert_eq!(parse_range("bytes=-3", 10), bytes(7, 10));
        assert_eq!(parse_range("bytes=-30", 10), bytes(0, 10));
        assert_eq!(parse_range("bytes=10-", 10), Some(Range::Unsatisfiable));
        assert_eq!(parse_range("bytes=-0", 10), Some(Range::Unsatisfiable));
        assert_eq!(parse_range("bytes=0-0", 0), Some(Range::Unsatisfiable));
        assert_eq!(parse_range("bytes=5-4", 10), None);
        assert_eq!(parse_range("items=0-1", 10), None);
        assert_eq!(parse_range("bytes=0-1,4-5", 10), None);
    }
}

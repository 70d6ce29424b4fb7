//! Reads requests: targets, and bodies, which are discarded unless they must be checked or stored.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::s3::checksums::Algorithm;

/// Shorter bodies are checked against the checksum that the request gives, if any.
const CHECKED_BELOW_BYTES: u64 = 64 << 10;
/// Shorter bodies are stored for keys of a vault's own files.
const KEPT_BELOW_BYTES: u64 = 64 << 20;

/// Path and query of a request, decoded.
#[derive(Debug)]
pub(crate) struct Target {
    /// `bucket/key`, or the bucket alone.
    pub(crate) path: String,
    query: Vec<(String, String)>,
}

impl Target {
    pub(crate) fn of(uri: &http::Uri) -> Self {
        let query = match uri.query() {
            None | Some("") => Vec::new(),
            Some(query) => url::form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
        };
        Self { path: percent_decode(uri.path().trim_start_matches('/')), query }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(crate) fn bucket(&self) -> &str {
        self.path.split('/').next().unwrap_or("")
    }

    /// Returns whether this names an object rather than a bucket.
    pub(crate) fn is_object(&self) -> bool {
        self.path.split_once('/').is_some_and(|(_, key)| !key.is_empty())
    }
}

pub(crate) fn percent_decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let (mut decoded, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&byte, tail)) = rest.split_first() {
        let escape = (byte == b'%').then(|| std::str::from_utf8(tail.get(..2)?).ok()).flatten();
        if let Some(byte) = escape.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            decoded.push(byte);
            rest = &tail[2..];
        } else {
            decoded.push(byte);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Returns the first checksum header of a request.
pub(crate) fn given_checksum(headers: &HeaderMap) -> Option<(Algorithm, String)> {
    Algorithm::ALL.into_iter().find_map(|algorithm| {
        let value = headers.get(algorithm.header())?.to_str().ok()?;
        Some((algorithm, value.to_owned()))
    })
}

/// Returns the raw MD5 that a request gives for its body.
pub(crate) fn given_md5(headers: &HeaderMap) -> Option<Vec<u8>> {
    STANDARD.decode(headers.get("content-md5")?.as_bytes()).ok()
}

/// The retained properties of a body.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) size_bytes: u64,
    pub(crate) kept: Option<Bytes>,
    pub(crate) wrong_digest: bool,
}

/// Reads a body. Returns `None` when it ended early.
pub(crate) async fn receive(path: &str, headers: &HeaderMap, mut body: Incoming) -> Option<Received> {
    let decoded = number(headers, "x-amz-decoded-content-length");
    let announced = decoded.or_else(|| number(headers, "content-length"));
    let is_below = |limit: u64| announced.is_some_and(|bytes| bytes < limit);
    let keep = is_below(KEPT_BELOW_BYTES) && path.contains("/.stepvault/");
    let claimed = given_checksum(headers).filter(|_| is_below(CHECKED_BELOW_BYTES));
    if !keep && claimed.is_none() {
        let mut size_bytes = 0;
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame.ok()?.data_ref() {
                size_bytes += data.len() as u64;
            }
        }
        return Some(Received { size_bytes: decoded.unwrap_or(size_bytes), kept: None, wrong_digest: false });
    }
    let raw = body.collect().await.ok()?.to_bytes();
    let data = if decoded.is_some() { unchunk(&raw) } else { raw };
    let wrong_digest = claimed.is_some_and(|(algorithm, claimed)| algorithm.encode(&data) != claimed);
    Some(Received { size_bytes: data.len() as u64, kept: keep.then_some(data), wrong_digest })
}

/// Returns the payload of an `aws-chunked` body; ignores its signatures and trailers.
fn unchunk(mut raw: &[u8]) -> Bytes {
    let mut data = BytesMut::new();
    while let Some(end) = raw.windows(2).position(|pair| pair == b"\r\n") {
        let head = String::from_utf8_lossy(&raw[..end]);
        let length =
            head.split(';').next().and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(0);
        let Some(chunk) = raw.get(end + 2..end + 2 + length).filter(|chunk| !chunk.is_empty()) else {
            break;
        };
        data.extend_from_slice(chunk);
        raw = raw.get(end + 4 + length..).unwrap_or_default();
    }
    data.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined_without_their_framing() {
        let raw = b"5;chunk-signature=ab\r\nhello\r\n1\r\n!\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n";
        assert_eq!(&unchunk(raw)[..], b"hello!");
    }

    #[test]
    fn escapes_are_decoded_and_broken_ones_kept() {
        assert_eq!(percent_decode("b/a%20b+c%C3%A4%2"), "b/a b+c\u{e4}%2");
    }
}

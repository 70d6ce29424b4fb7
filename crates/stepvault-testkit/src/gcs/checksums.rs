//! Checksums computed by the server and given by clients.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderMap;
use md5::{Digest as _, Md5};

use super::reply::Failure;
use super::state::Core;

/// The checksums of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checksums {
    crc32c: u32,
    md5: Option<[u8; 16]>,
}

impl Checksums {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { crc32c: crc_fast::crc32_iscsi(bytes), md5: Some(Md5::digest(bytes).into()) }
    }

    /// Returns those of an object from an XML multipart upload, which has no MD5.
    pub(super) fn without_md5(bytes: &[u8]) -> Self {
        Self { crc32c: crc_fast::crc32_iscsi(bytes), md5: None }
    }

    pub(super) fn crc32c_base64(&self) -> String {
        BASE64_STANDARD.encode(self.crc32c.to_be_bytes())
    }

    pub(super) fn md5_base64(&self) -> Option<String> {
        self.md5.map(|md5| BASE64_STANDARD.encode(md5))
    }

    pub(super) fn md5_hex(&self) -> Option<String> {
        self.md5.map(|md5| {
            md5.iter().fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            })
        })
    }

    /// Returns the value of an `x-goog-hash` header.
    pub(super) fn header(&self) -> String {
        header_value(Some(&self.crc32c_base64()), self.md5_base64().as_deref()).unwrap_or_default()
    }
}

/// Returns the value of an `x-goog-hash` header from base64 checksums, or `None` when there is neither.
pub(super) fn header_value(crc32c: Option<&str>, md5: Option<&str>) -> Option<String> {
    let crc32c = crc32c.map(|value| format!("crc32c={value}"));
    let md5 = md5.map(|value| format!("md5={value}"));
    let parts: Vec<String> = crc32c.into_iter().chain(md5).collect();
    (!parts.is_empty()).then(|| parts.join(","))
}

/// Checksums that a client gave for its bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims {
    crc32c: Vec<String>,
    md5: Vec<String>,
}

impl Claims {
    /// Reads `x-goog-hash` (repeated or comma-separated) and `Content-MD5`.
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Self, Failure> {
        let mut claims = Self::default();
        for value in headers.get_all("x-goog-hash") {
            let value = value.to_str().map_err(|_| malformed("x-goog-hash"))?;
            for item in value.split(',') {
                match item.trim().split_once('=') {
                    Some(("crc32c", hash)) => claims.crc32c.push(hash.to_owned()),
                    Some(("md5", hash)) => claims.md5.push(hash.to_owned()),
                    _ => return Err(malformed("x-goog-hash")),
                }
            }
        }
        if let Some(value) = headers.get("content-md5") {
            claims.md5.push(value.to_str().map_err(|_| malformed("Content-MD5"))?.to_owned());
        }
        claims.well_formed()
    }

    /// Reads the `crc32c` and `md5Hash` of an object resource.
    pub(super) fn from_resource(resource: &serde_json::Value) -> Result<Self, Failure> {
        let text = |name: &str| match resource.get(name) {
            None | Some(serde_json::Value::Null) => Ok(Vec::new()),
            Some(serde_json::Value::String(value)) => Ok(vec![value.clone()]),
            Some(_) => Err(malformed(name)),
        };
        Self { crc32c: text("crc32c")?, md5: text("md5Hash")? }.well_formed()
    }

    /// Combines both sets: each claim must hold.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.crc32c.extend(other.crc32c);
        self.md5.extend(other.md5);
        self
    }

    /// Refuses when any claim differs from the computed checksum, unless the server is configured to ignore this.
    pub(super) fn check(&self, computed: &Checksums, core: &Core) -> Result<(), Failure> {
        if core.options.accept_wrong_checksums {
            return Ok(());
        }
        let crc32c = computed.crc32c_base64();
        for claimed in &self.crc32c {
            if *claimed != crc32c {
                return Err(mismatch("CRC32C", claimed, &crc32c));
            }
        }
        let md5 = computed.md5_base64().unwrap_or_default();
        for claimed in &self.md5 {
            if *claimed != md5 {
                return Err(mismatch("MD5 hash", claimed, &md5));
            }
        }
        Ok(())
    }

    fn well_formed(self) -> Result<Self, Failure> {
        let has_length = |value: &String, length: usize| {
            BASE64_STANDARD.decode(value).is_ok_and(|bytes| bytes.len() == length)
        };
        if !self.crc32c.iter().all(|value| has_length(value, 4)) {
            return Err(malformed("crc32c"));
        }
        if !self.md5.iter().all(|value| has_length(value, 16)) {
            return Err(malformed("md5"));
        }
        Ok(self)
    }
}

fn mismatch(what: &str, claimed: &str, computed: &str) -> Failure {
    let message = format!("Provided {what} \"{claimed}\" doesn't match calculated {what} \"{computed}\".");
    Failure::new(400, "BadDigest", &message)
}

fn malformed(what: &str) -> Failure {
    Failure::new(400, "InvalidDigest", &format!("Invalid value for {what}."))
}

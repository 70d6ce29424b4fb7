//! Digests of parts and files, and how a file's digest follows from those of its parts.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use crate::error::{Error, ErrorKind, Result};

/// A SHA-256 digest; lower-case hexadecimal in records, base64 in headers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    /// Returns the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Returns the digest of the concatenation of these blocks.
    pub fn of_blocks<'a>(blocks: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = Sha256Hasher::default();
        for block in blocks {
            hasher.update(block);
        }
        hasher.finish()
    }

    /// Returns the 32 raw bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns base64 with padding, as in S3's `x-amz-checksum-sha256`.
    pub fn to_base64(self) -> String {
        BASE64.encode(self.0)
    }

    /// Reads base64; returns `None` unless it is 32 bytes of it.
    pub fn from_base64(text: &str) -> Option<Self> {
        Some(Self(BASE64.decode(text).ok()?.try_into().ok()?))
    }

    /// Reads 64 lower-case hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self> {
        let mut bytes = [0_u8; 32];
        let digits = text.as_bytes();
        let parsed = digits.len() == 64
            && bytes.iter_mut().zip(digits.chunks_exact(2)).all(|(byte, pair)| {
                match (hex_value(pair[0]), hex_value(pair[1])) {
                    (Some(high), Some(low)) => {
                        *byte = high << 4 | low;
                        true
                    }
                    _ => false,
                }
            });
        if parsed {
            return Ok(Self(bytes));
        }
        Err(Error::new(ErrorKind::Damaged, "not a SHA-256 digest")
            .on(format!("{:?}", text.chars().take(80).collect::<String>()))
            .because("it must be 64 lower-case hexadecimal digits"))
    }
}

fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl TryFrom<String> for Sha256Digest {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::from_hex(&text)
    }
}

impl From<Sha256Digest> for String {
    fn from(digest: Sha256Digest) -> Self {
        digest.to_string()
    }
}

/// A CRC-32C (Castagnoli); eight lower-case hexadecimal digits in records, base64 of four big-endian bytes on GCS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Crc32c(pub u32);

impl Crc32c {
    /// Returns the checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc_fast::crc32_iscsi(bytes))
    }

    /// Returns the checksum of the bytes that this one covers, followed by `next_size_bytes` bytes that `next` covers.
    #[must_use]
    pub fn followed_by(self, next: Self, next_size_bytes: u64) -> Self {
        let combined =
            crc_fast::checksum_combine(Crc32Iscsi, u64::from(self.0), u64::from(next.0), next_size_bytes);
        Self::from_wide(combined)
    }

    /// Converts from the 64 bits in which the library returns every kind of CRC; a CRC-32 is in the low half.
    fn from_wide(wide: u64) -> Self {
        Self(u32::try_from(wide & u64::from(u32::MAX)).unwrap_or_default())
    }

    /// Returns base64 as in GCS's `x-goog-hash` and object metadata.
    pub fn to_base64(self) -> String {
        BASE64.encode(self.0.to_be_bytes())
    }
}

impl fmt::Display for Crc32c {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:08x}", self.0)
    }
}

impl TryFrom<String> for Crc32c {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        let digits = text.len() == 8 && text.bytes().all(|byte| hex_value(byte).is_some());
        match u32::from_str_radix(&text, 16) {
            Ok(value) if digits => Ok(Self(value)),
            _ => Err(Error::new(ErrorKind::Damaged, "not a CRC-32C")
                .on(format!("{:?}", text.chars().take(80).collect::<String>()))
                .because("it must be 8 lower-case hexadecimal digits")),
        }
    }
}

impl From<Crc32c> for String {
    fn from(checksum: Crc32c) -> Self {
        checksum.to_string()
    }
}

/// The result of one pass over a part's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartDigest {
    /// SHA-256 of the part.
    pub sha256: Sha256Digest,
    /// CRC-32C of the part.
    pub crc32c: Crc32c,
    /// Length of the part in bytes.
    pub size_bytes: u64,
}

impl PartDigest {
    /// Returns both digests of a part held in memory.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = PartHasher::default();
        hasher.update(bytes);
        hasher.finish()
    }
}

/// Computes the SHA-256 of a stream of bytes.
#[derive(Debug, Default)]
pub struct Sha256Hasher(sha2::Sha256);

impl Sha256Hasher {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes taken.
    pub fn finish(self) -> Sha256Digest {
        Sha256Digest(self.0.finalize().into())
    }
}

/// Computes the digests of a part as its bytes stream by.
#[derive(Debug)]
pub struct PartHasher {
    sha256: sha2::Sha256,
    crc32c: crc_fast::Digest,
    size_bytes: u64,
}

impl Default for PartHasher {
    fn default() -> Self {
        Self {
            sha256: sha2::Sha256::new(),
            crc32c: crc_fast::Digest::new(Crc32Iscsi),
            size_bytes: 0,
        }
    }
}

impl PartHasher {
    /// Adds the next bytes, in slices that are small enough to be still cached for the second digest.
    pub fn update(&mut self, bytes: &[u8]) {
        for slice in bytes.chunks(64 << 10) {
            self.sha256.update(slice);
            self.crc32c.update(slice);
        }
        self.size_bytes += bytes.len() as u64;
    }

    /// Returns the number of bytes taken so far.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the digests of all bytes taken.
    pub fn finish(self) -> PartDigest {
        PartDigest {
            sha256: Sha256Digest(self.sha256.finalize().into()),
            crc32c: Crc32c::from_wide(self.crc32c.finalize()),
            size_bytes: self.size_bytes,
        }
    }
}

/// The digests of a whole file, computed from those of its parts without reading the file again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDigest {
    /// SHA-256 over the parts' SHA-256 digests, which S3 calls a composite checksum.
    pub sha256: Sha256Digest,
    /// CRC-32C of the whole file, which GCS stores.
    pub crc32c: Crc32c,
    /// Length of the file in bytes.
    pub size_bytes: u64,
}

impl FileDigest {
    /// Computes the digests from the parts, in order.
    pub fn from_parts(parts: &[PartDigest]) -> Self {
        let mut composite = sha2::Sha256::new();
        let mut crc32c = Crc32c(0);
        let mut size_bytes = 0;
        for (index, part) in parts.iter().enumerate() {
            composite.update(part.sha256.as_bytes());
            crc32c = if index == 0 {
                part.crc32c
            } else {
                crc32c.followed_by(part.crc32c, part.size_bytes)
            };
            size_bytes += part.size_bytes;
        }
        Self {
            sha256: Sha256Digest(composite.finalize().into()),
            crc32c,
            size_bytes,
        }
    }
}

/// Returns the SHA-256 over digests in order: the composite digest of a file whose parts' digests are known from its
/// manifest.
pub fn composite_sha256<'a>(parts: impl IntoIterator<Item = &'a Sha256Digest>) -> Sha256Digest {
    let mut composite = sha2::Sha256::new();
    parts
        .into_iter()
        .for_each(|part| composite.update(part.as_bytes()));
    Sha256Digest(composite.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        assert_eq!(
            Sha256Digest::of(b"abc").to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        // The check value of CRC-32C, from the catalogue of parametrised CRC algorithms.
        assert_eq!(Crc32c::of(b"123456789"), Crc32c(0xe306_9283));
        assert_eq!(Crc32c::of(b"").to_base64(), "AAAAAA==");
    }

    #[test]
    fn a_file_digest_equals_one_over_the_whole() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|value| (value * 7 % 251) as u8).collect();
        for cut in [1, 65_536, 99_999] {
            let parts: Vec<_> = bytes.chunks(cut).map(PartDigest::of).collect();
            let file = FileDigest::from_parts(&parts);
            assert_eq!(file.crc32c, Crc32c::of(&bytes));
            assert_eq!(file.size_bytes, bytes.len() as u64);
            let raw: Vec<u8> = parts.iter().flat_map(|part| *part.sha256.as_bytes()).collect();
            assert_eq!(file.sha256, Sha256Digest::of(&raw));
        }
    }

    #[test]
    fn text_forms_round_trip_and_are_strict() {
        let digest = Sha256Digest::of(b"x");
        assert_eq!(Sha256Digest::from_hex(&digest.to_string()).unwrap(), digest);
        assert_eq!(Sha256Digest::from_base64(&digest.to_base64()), Some(digest));
        assert!(Sha256Digest::from_hex(&digest.to_string().to_uppercase()).is_err());
        assert!(Sha256Digest::from_hex("ü").is_err());
        assert!(Crc32c::try_from("+0000001".to_owned()).is_err());
        assert_eq!(Crc32c::try_from("0000000a".to_owned()).unwrap(), Crc32c(10));
    }
}

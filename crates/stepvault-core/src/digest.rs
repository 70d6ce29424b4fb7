//! Digests of parts and files, and how a file's digest follows from those of its parts.

use std::{fmt, io};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crc_fast::CrcAlgorithm::{Crc32Iscsi, Crc64Nvme as Crc64NvmeAlgorithm};
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::string_form;

/// The algorithm whose digests prove the content of a run's checkpoints. Records are always proved by SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum DigestAlgorithm {
    /// SHA-256. S3 checks it for each part and each object.
    #[default]
    Sha256,
    /// BLAKE3, which takes less than half of the processor time. No store checks it: S3 is given the CRC-64/NVME
    /// instead, of each part and of the whole object.
    Blake3,
}

/// The least rate of SHA-256 on one core at which a new run uses it. Processors with SHA instructions do 1.5 GB/s and more,
/// those without some 0.4 GB/s, which is less than many networks.
const LEAST_SHA256_BYTES_PER_SECOND: u64 = 1_000_000_000;

impl DigestAlgorithm {
    /// Returns the algorithm for a run that begins on a processor whose cores each hash so many bytes with SHA-256.
    pub const fn for_new_run(sha256_bytes_per_second: u64) -> Self {
        if sha256_bytes_per_second < LEAST_SHA256_BYTES_PER_SECOND { Self::Blake3 } else { Self::Sha256 }
    }

    /// All algorithms, the default first.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Blake3];
}

/// Declares a digest of 32 bytes whose text form is 64 lower-case hexadecimal digits, as those of a BLAKE3 hash.
macro_rules! hex_digest {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name([u8; 32]);

        impl $name {
            /// Returns the 32 raw bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// Reads 64 lower-case hexadecimal digits.
            pub fn from_hex(text: &str) -> Result<Self> {
                match blake3::Hash::from_hex(text) {
                    Ok(hash) if is_hex(text, 64) => Ok(Self(hash.into())),
                    _ => Err(not_hex(concat!($what, " digest"), 64, text)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, out)
            }
        }

        string_form!($name, |text: String| $name::from_hex(&text));
    };
}

hex_digest!(
    /// A SHA-256 digest; lower-case hexadecimal in records, base64 in headers.
    Sha256Digest,
    "SHA-256"
);
hex_digest!(
    /// A BLAKE3 digest of 32 bytes; lower-case hexadecimal in records.
    Blake3Digest,
    "BLAKE3"
);

impl Sha256Digest {
    /// Returns the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Returns base64 with padding, as in S3's `x-amz-checksum-sha256`.
    pub fn to_base64(self) -> String {
        BASE64.encode(self.0)
    }

    /// Reads base64; returns `None` unless it is 32 bytes of it.
    pub fn from_base64(text: &str) -> Option<Self> {
        Some(Self(BASE64.decode(text).ok()?.try_into().ok()?))
    }
}

/// Returns whether `text` is this many lower-case hexadecimal digits.
pub fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the error for a text that is not `what`, which has this many digits.
fn not_hex(what: &str, digits: usize, text: &str) -> Error {
    Error::new(ErrorKind::Damaged, format!("not a {what}"))
        .on(format!("{:?}", text.chars().take(80).collect::<String>()))
        .because(format!("it must be {digits} lower-case hexadecimal digits"))
}

/// The digest that proves the bytes of a part or a file, by the algorithm of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display)]
pub enum ContentDigest {
    /// By SHA-256.
    #[strum(to_string = "{0}")]
    Sha256(Sha256Digest),
    /// By BLAKE3.
    #[strum(to_string = "{0}")]
    Blake3(Blake3Digest),
}

impl ContentDigest {
    /// Returns the algorithm.
    pub const fn algorithm(&self) -> DigestAlgorithm {
        match self {
            Self::Sha256(_) => DigestAlgorithm::Sha256,
            Self::Blake3(_) => DigestAlgorithm::Blake3,
        }
    }

    /// Returns the 32 raw bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        match self {
            Self::Sha256(digest) => digest.as_bytes(),
            Self::Blake3(digest) => digest.as_bytes(),
        }
    }

    /// Returns the digest over these digests, in order: that of a file whose parts' digests are known. For SHA-256, S3
    /// calls it a composite checksum. Digests of one file are all by one algorithm; without any it is SHA-256.
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut parts = parts.into_iter().peekable();
        let algorithm = parts.peek().map(|part| part.algorithm()).unwrap_or_default();
        let mut hasher = ContentHasher::new(algorithm);
        parts.for_each(|part| hasher.update(part.as_bytes()));
        hasher.finish()
    }

    /// Returns the digest as the members of a record: the BLAKE3, and the SHA-256.
    pub(crate) const fn by_algorithm(self) -> (Option<Blake3Digest>, Option<Sha256Digest>) {
        match self {
            Self::Blake3(digest) => (Some(digest), None),
            Self::Sha256(digest) => (None, Some(digest)),
        }
    }

    /// Returns the one digest of a record's members; a CRC-64/NVME belongs to every BLAKE3, and to nothing else.
    pub(crate) fn only(
        blake3: Option<Blake3Digest>,
        sha256: Option<Sha256Digest>,
        crc64nvme: Option<Crc64Nvme>,
    ) -> Result<Self> {
        match (blake3, sha256, crc64nvme) {
            (Some(digest), None, Some(_)) => Ok(Self::Blake3(digest)),
            (None, Some(digest), None) => Ok(Self::Sha256(digest)),
            _ => Err(Error::new(ErrorKind::Damaged, "invalid digests")
                .because("there must be either one SHA-256, or one BLAKE3 with a CRC-64/NVME")),
        }
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
}

/// A CRC-64/NVME; 16 lower-case hexadecimal digits in records, base64 of eight big-endian bytes on S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Crc64Nvme(pub u64);

impl Crc64Nvme {
    /// Returns the checksum of the bytes that this one covers, followed by `next_size_bytes` bytes that `next` covers.
    #[must_use]
    pub fn followed_by(self, next: Self, next_size_bytes: u64) -> Self {
        Self(crc_fast::checksum_combine(Crc64NvmeAlgorithm, self.0, next.0, next_size_bytes))
    }
}

/// Implements the texts of a CRC: lower-case hexadecimal digits in records, base64 of its big-endian bytes on stores.
macro_rules! crc_texts {
    ($name:ident($integer:ty), $digits:literal, $what:literal) => {
        impl $name {
            /// Returns base64 with padding, as stores state it in headers and metadata.
            pub fn to_base64(self) -> String {
                BASE64.encode(self.0.to_be_bytes())
            }

            /// Reads base64; returns `None` unless it is exactly the bytes of one.
            pub fn from_base64(text: &str) -> Option<Self> {
                let bytes = BASE64.decode(text).ok()?;
                Some(Self(<$integer>::from_be_bytes(bytes.try_into().ok()?)))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "{:0digits$x}", self.0, digits = $digits)
            }
        }

        string_form!($name, |text: String| match <$integer>::from_str_radix(&text, 16) {
            Ok(value) if is_hex(&text, $digits) => Ok($name(value)),
            _ => Err(not_hex($what, $digits, &text)),
        });
    };
}

crc_texts!(Crc32c(u32), 8, "CRC-32C");
crc_texts!(Crc64Nvme(u64), 16, "CRC-64/NVME");

/// A checksum of a whole object that its store has computed. stepvault has not read the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
pub enum TrustedChecksum {
    /// CRC-32C.
    #[strum(to_string = "crc32c {0}")]
    Crc32c(Crc32c),
    /// CRC-64/NVME.
    #[strum(to_string = "crc64nvme {0}")]
    Crc64Nvme(Crc64Nvme),
}

impl TrustedChecksum {
    /// Returns whether a file with these digests has this checksum. One whose checksum of this kind is not known has not.
    pub fn matches(&self, digest: &FileDigest) -> bool {
        match self {
            Self::Crc32c(checksum) => digest.crc32c == *checksum,
            Self::Crc64Nvme(checksum) => digest.crc64nvme == Some(*checksum),
        }
    }
}

/// The result of one pass over a part's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "EncodedPartDigest", into = "EncodedPartDigest")]
pub struct PartDigest {
    /// The digest that proves the part.
    pub content: ContentDigest,
    /// CRC-32C of the part.
    pub crc32c: Crc32c,
    /// CRC-64/NVME of the part, where its digest is not SHA-256: then S3 checks this.
    pub crc64nvme: Option<Crc64Nvme>,
    /// Length of the part in bytes.
    pub size_bytes: u64,
}

/// A [`PartDigest`] in a record: each digest under the name of its algorithm.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EncodedPartDigest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blake3: Option<Blake3Digest>,
    crc32c: Crc32c,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc64nvme: Option<Crc64Nvme>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<Sha256Digest>,
    size_bytes: u64,
}

impl From<PartDigest> for EncodedPartDigest {
    fn from(digest: PartDigest) -> Self {
        let (blake3, sha256) = digest.content.by_algorithm();
        Self {
            blake3,
            crc32c: digest.crc32c,
            crc64nvme: digest.crc64nvme,
            sha256,
            size_bytes: digest.size_bytes,
        }
    }
}

impl TryFrom<EncodedPartDigest> for PartDigest {
    type Error = Error;

    fn try_from(encoded: EncodedPartDigest) -> Result<Self> {
        Ok(Self {
            content: ContentDigest::only(encoded.blake3, encoded.sha256, encoded.crc64nvme)?,
            crc32c: encoded.crc32c,
            crc64nvme: encoded.crc64nvme,
            size_bytes: encoded.size_bytes,
        })
    }
}

impl PartDigest {
    /// Returns the digests of a record held in memory.
    pub fn of(bytes: &[u8]) -> Self {
        Self::by(DigestAlgorithm::Sha256, bytes)
    }

    /// Returns the digests of a part held in memory.
    pub fn by(algorithm: DigestAlgorithm, bytes: &[u8]) -> Self {
        let mut hasher = PartHasher::new(algorithm);
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

impl io::Write for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Computes the digest that proves a stream of bytes, and no checksum.
#[derive(Debug)]
pub enum ContentHasher {
    /// By SHA-256.
    Sha256(Sha256Hasher),
    /// By BLAKE3.
    Blake3(Box<blake3::Hasher>),
}

impl ContentHasher {
    /// Begins a digest by this algorithm.
    pub fn new(algorithm: DigestAlgorithm) -> Self {
        match algorithm {
            DigestAlgorithm::Sha256 => Self::Sha256(Sha256Hasher::default()),
            DigestAlgorithm::Blake3 => Self::Blake3(Box::default()),
        }
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    /// Returns the digest of all bytes taken.
    pub fn finish(self) -> ContentDigest {
        match self {
            Self::Sha256(hasher) => ContentDigest::Sha256(hasher.finish()),
            Self::Blake3(hasher) => ContentDigest::Blake3(Blake3Digest(hasher.finalize().into())),
        }
    }
}

/// Computes the digests of a part as its bytes stream by.
#[derive(Debug)]
pub struct PartHasher {
    content: ContentHasher,
    crc32c: crc_fast::Digest,
    crc64nvme: Option<crc_fast::Digest>,
    size_bytes: u64,
}

impl PartHasher {
    /// Begins the digests of a part; the one that proves it is by this algorithm.
    pub fn new(algorithm: DigestAlgorithm) -> Self {
        let needs_crc64 = algorithm != DigestAlgorithm::Sha256;
        Self {
            content: ContentHasher::new(algorithm),
            crc32c: crc_fast::Digest::new(Crc32Iscsi),
            crc64nvme: needs_crc64.then(|| crc_fast::Digest::new(Crc64NvmeAlgorithm)),
            size_bytes: 0,
        }
    }

    /// Adds the next bytes, in slices that are small enough to be still cached for the second digest.
    pub fn update(&mut self, bytes: &[u8]) {
        for slice in bytes.chunks(64 << 10) {
            self.content.update(slice);
            self.crc32c.update(slice);
            if let Some(crc64nvme) = &mut self.crc64nvme {
                crc64nvme.update(slice);
            }
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
            content: self.content.finish(),
            crc32c: Crc32c::from_wide(self.crc32c.finalize()),
            crc64nvme: self.crc64nvme.map(|crc| Crc64Nvme(crc.finalize())),
            size_bytes: self.size_bytes,
        }
    }
}

/// The digests of a whole file, computed from those of its parts without reading the file again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDigest {
    /// The digest over the parts' digests.
    pub content: ContentDigest,
    /// CRC-32C of the whole file, which GCS stores.
    pub crc32c: Crc32c,
    /// CRC-64/NVME of the whole file, which S3 stores; `None` where S3 stores the SHA-256.
    pub crc64nvme: Option<Crc64Nvme>,
    /// Length of the file in bytes.
    pub size_bytes: u64,
}

impl FileDigest {
    /// Computes the digests from the parts, in order.
    pub fn from_parts(parts: &[PartDigest]) -> Self {
        let mut crc32c = Crc32c(0);
        let mut crc64nvme = None;
        let mut size_bytes = 0;
        for (index, part) in parts.iter().enumerate() {
            (crc32c, crc64nvme) = if index == 0 {
                (part.crc32c, part.crc64nvme)
            } else {
                let wide = |(crc, next): (Crc64Nvme, _)| crc.followed_by(next, part.size_bytes);
                (crc32c.followed_by(part.crc32c, part.size_bytes), crc64nvme.zip(part.crc64nvme).map(wide))
            };
            size_bytes += part.size_bytes;
        }
        Self {
            content: ContentDigest::of_parts(parts.iter().map(|part| &part.content)),
            crc32c,
            crc64nvme,
            size_bytes,
        }
    }
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
        let blake3 = PartDigest::by(DigestAlgorithm::Blake3, b"123456789");
        // From the same catalogue: CRC-64/NVME.
        assert_eq!(blake3.crc64nvme, Some(Crc64Nvme(0xae8b_1486_0a79_9888)));
        // The test vector of the BLAKE3 authors for an empty input.
        assert_eq!(
            PartDigest::by(DigestAlgorithm::Blake3, b"").content.to_string(),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }

    #[test]
    fn a_file_digest_equals_one_over_the_whole() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|value| (value * 7 % 251) as u8).collect();
        for algorithm in DigestAlgorithm::ALL {
            for cut in [1, 65_536, 99_999] {
                let parts: Vec<_> = bytes.chunks(cut).map(|part| PartDigest::by(algorithm, part)).collect();
                let file = FileDigest::from_parts(&parts);
                let whole = PartDigest::by(algorithm, &bytes);
                assert_eq!(file.crc32c, Crc32c::of(&bytes));
                assert_eq!(file.crc64nvme, whole.crc64nvme);
                assert_eq!(file.size_bytes, bytes.len() as u64);
                let raw: Vec<u8> = parts.iter().flat_map(|part| *part.content.as_bytes()).collect();
                assert_eq!(file.content, PartDigest::by(algorithm, &raw).content);
            }
        }
    }

    #[test]
    fn a_part_is_recorded_under_the_names_of_its_algorithms() {
        let encoded = |algorithm| serde_json::to_string(&PartDigest::by(algorithm, b"abc")).unwrap();
        let sha256 = encoded(DigestAlgorithm::Sha256);
        assert_eq!(
            sha256,
            "{\"crc32c\":\"364b3fb7\",\"sha256\":\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\",\
             \"size_bytes\":3}"
        );
        let blake3 = encoded(DigestAlgorithm::Blake3);
        for algorithm in DigestAlgorithm::ALL {
            let part: PartDigest = serde_json::from_str(&encoded(algorithm)).unwrap();
            assert_eq!(part, PartDigest::by(algorithm, b"abc"));
        }
        let both = blake3.replace(",\"size", &format!(",\"sha256\":\"{}\",\"size", Sha256Digest::of(b"abc")));
        let neither = sha256.replace("\"sha256\"", "\"sha512\"");
        let bare = blake3.replace(",\"crc64nvme\":\"05e5cabb3fc1faeb\"", "");
        for wrong in [both, neither, bare] {
            assert_ne!(wrong, blake3);
            assert!(serde_json::from_str::<PartDigest>(&wrong).is_err(), "{wrong}");
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
        let wide = Crc64Nvme(10);
        assert_eq!(Crc64Nvme::try_from(wide.to_string()).unwrap(), wide);
        assert_eq!(Crc64Nvme::from_base64(&wide.to_base64()), Some(wide));
        assert!(Crc64Nvme::try_from("+00000000000000a".to_owned()).is_err());
    }
}

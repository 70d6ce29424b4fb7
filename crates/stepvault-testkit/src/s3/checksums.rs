//! The checksums that a request gives for its bytes, and S3's checks of them.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use s3s::crypto::{Checksum, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::{S3Result, TrailingHeaders, s3_error};

/// A checksum algorithm of S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

impl Algorithm {
    pub(crate) const ALL: [Self; 5] = [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256];

    /// Returns the name in requests, e.g. `SHA256`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    /// Returns the key in [`StoredObject::checksums`](crate::objects::StoredObject::checksums).
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Crc32 => "crc32",
            Self::Crc32c => "crc32c",
            Self::Crc64Nvme => "crc64nvme",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    /// Returns the header (or trailer) that carries its value.
    pub(crate) fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    pub(crate) fn from_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.key() == key)
    }

    /// Returns whether it can be composite. S3 offers no composite CRC-64/NVME.
    pub(crate) fn can_be_composite(self) -> bool {
        self != Self::Crc64Nvme
    }

    /// Returns whether it can cover the whole object: only CRCs of parts can be combined.
    pub(crate) fn can_be_full_object(self) -> bool {
        !matches!(self, Self::Sha1 | Self::Sha256)
    }

    fn digest_bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// Returns the checksum of `data` in S3's format.
    pub(crate) fn encode(self, data: &[u8]) -> String {
        match self {
            Self::Crc32 => STANDARD.encode(Crc32::checksum(data)),
            Self::Crc32c => STANDARD.encode(Crc32c::checksum(data)),
            Self::Crc64Nvme => STANDARD.encode(Crc64Nvme::checksum(data)),
            Self::Sha1 => STANDARD.encode(Sha1::checksum(data)),
            Self::Sha256 => STANDARD.encode(Sha256::checksum(data)),
        }
    }

    /// Returns the composite checksum of parts with these checksums, or `None` when one is not base64.
    pub(crate) fn composite<'a>(self, parts: impl IntoIterator<Item = &'a str>) -> Option<String> {
        let mut digests = Vec::new();
        let mut count = 0_usize;
        for part in parts {
            digests.extend(STANDARD.decode(part).ok()?);
            count += 1;
        }
        Some(format!("{}-{count}", self.encode(&digests)))
    }

    fn is_well_formed(self, value: &str) -> bool {
        STANDARD.decode(value).is_ok_and(|digest| digest.len() == self.digest_bytes())
    }
}

/// Returns the raw MD5, from which S3 makes entity tags.
pub(crate) fn md5(data: &[u8]) -> [u8; 16] {
    Md5::checksum(data)
}

/// Formats bytes as lower-case hexadecimal.
pub(crate) fn hex(data: &[u8]) -> String {
    use std::fmt::Write as _;
    data.iter().fold(String::with_capacity(data.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn given(headers: &HeaderMap) -> impl Iterator<Item = (Algorithm, &str)> {
    Algorithm::ALL.into_iter().filter_map(|algorithm| {
        let value = headers.get(algorithm.header())?.to_str().ok()?;
        Some((algorithm, value))
    })
}

fn announced_trailer(headers: &HeaderMap) -> Option<Algorithm> {
    let trailer = headers.get("x-amz-trailer")?.to_str().ok()?.trim();
    Algorithm::ALL.into_iter().find(|algorithm| algorithm.header().eq_ignore_ascii_case(trailer))
}

/// Checks the rules about checksum headers that apply before a body is read: at most one checksum, and a value (or an
/// announced trailer) for every named algorithm.
pub(crate) fn check_announcement(headers: &HeaderMap) -> S3Result<()> {
    let mut algorithms: Vec<Algorithm> = given(headers).map(|(algorithm, _)| algorithm).collect();
    algorithms.extend(announced_trailer(headers));
    if algorithms.len() > 1 {
        return Err(s3_error!(
            InvalidRequest,
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed."
        ));
    }
    let Some(named) = headers.get("x-amz-sdk-checksum-algorithm") else {
        return Ok(());
    };
    let Some(named) = named.to_str().ok().and_then(Algorithm::parse) else {
        return Err(s3_error!(InvalidRequest, "Checksum algorithm provided is unsupported."));
    };
    match algorithms.first() {
        None => Err(s3_error!(
            InvalidRequest,
            "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer \
             headers were found."
        )),
        Some(actual) if *actual != named => {
            Err(s3_error!(InvalidRequest, "Value for x-amz-sdk-checksum-algorithm header is invalid."))
        }
        Some(_) => Ok(()),
    }
}

/// The checksums that a client gave with a body.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) checksum: Option<(Algorithm, String)>,
    md5: Option<Vec<u8>>,
}

impl Claims {
    /// Reads them from headers and from the trailers of the body, if any; call it after the body.
    pub(crate) fn read(headers: &HeaderMap, trailing: Option<&TrailingHeaders>) -> S3Result<Self> {
        let mut checksum = given(headers).next().map(|(algorithm, value)| (algorithm, value.to_owned()));
        if let Some(algorithm) = announced_trailer(headers) {
            let value = trailing.and_then(|trailing| {
                trailing.read(|trailers| Some(trailers.get(algorithm.header())?.to_str().ok()?.to_owned()))
            });
            match value.flatten() {
                Some(value) => checksum = Some((algorithm, value)),
                None => return Err(s3_error!(InvalidRequest, "The announced trailer is missing.")),
            }
        }
        if let Some((algorithm, value)) = &checksum
            && !algorithm.is_well_formed(value)
        {
            return Err(s3_error!(InvalidRequest, "Value for {} header is invalid.", algorithm.header()));
        }
        let md5 = match headers.get("content-md5") {
            None => None,
            Some(value) => match STANDARD.decode(value.as_bytes()) {
                Ok(digest) if digest.len() == 16 => Some(digest),
                _ => {
                    return Err(s3_error!(InvalidDigest, "The Content-MD5 you specified was invalid."));
                }
            },
        };
        Ok(Self { checksum, md5 })
    }

    /// Fails with 400 `BadDigest` when the body does not match the client's checksums.
    pub(crate) fn verify(&self, body: &[u8]) -> S3Result<()> {
        if let Some((algorithm, value)) = &self.checksum
            && algorithm.encode(body) != *value
        {
            return Err(s3_error!(
                BadDigest,
                "The {} you specified did not match the calculated checksum.",
                algorithm.name()
            ));
        }
        if let Some(claimed) = &self.md5
            && md5(body) != claimed.as_slice()
        {
            return Err(s3_error!(
                BadDigest,
                "The Content-MD5 you specified did not match what we received."
            ));
        }
        Ok(())
    }

    /// Returns what S3 stores with the object: the client's checksum, else the CRC-64/NVME that S3 computes.
    pub(crate) fn stored(&self, body: &[u8]) -> BTreeMap<String, String> {
        let (algorithm, value) = match &self.checksum {
            Some((algorithm, value)) => (*algorithm, value.clone()),
            None => (Algorithm::Crc64Nvme, Algorithm::Crc64Nvme.encode(body)),
        };
        BTreeMap::from([(algorithm.key().to_owned(), value)])
    }
}

/// Returns `COMPOSITE` or `FULL_OBJECT`, derived from the stored values.
pub(crate) fn checksum_type(checksums: &BTreeMap<String, String>) -> Option<&'static str> {
    let value = checksums.values().next()?;
    Some(if value.contains('-') { "COMPOSITE" } else { "FULL_OBJECT" })
}

/// Sets the five checksum fields that many of `s3s`'s outputs have in common.
macro_rules! set_checksums {
    ($output:expr, $checksums:expr) => {{
        let checksums: &std::collections::BTreeMap<String, String> = $checksums;
        $output.checksum_crc32 = checksums.get("crc32").cloned();
        $output.checksum_crc32c = checksums.get("crc32c").cloned();
        $output.checksum_crc64nvme = checksums.get("crc64nvme").cloned();
        $output.checksum_sha1 = checksums.get("sha1").cloned();
        $output.checksum_sha256 = checksums.get("sha256").cloned();
    }};
}
pub(crate) use set_checksums;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn composite_is_the_checksum_of_the_raw_digests() {
        let (first, second) = (Sha256::checksum(b"one"), Sha256::checksum(b"two"));
        let both = [first, second].concat();
        let expected = format!("{}-2", STANDARD.encode(Sha256::checksum(&both)));
        let parts = [STANDARD.encode(first), STANDARD.encode(second)];
        assert_eq!(Algorithm::Sha256.composite(parts.iter().map(String::as_str)), Some(expected));
    }

    #[test]
    fn check_values_are_the_published_ones() {
        let data = b"123456789";
        assert_eq!(Algorithm::Crc32.encode(data), STANDARD.encode(0xCBF4_3926_u32.to_be_bytes()));
        assert_eq!(Algorithm::Crc32c.encode(data), STANDARD.encode(0xE306_9283_u32.to_be_bytes()));
        assert_eq!(
            Algorithm::Crc64Nvme.encode(data),
            STANDARD.encode(0xAE8B_1486_0A79_9888_u64.to_be_bytes())
        );
    }
}

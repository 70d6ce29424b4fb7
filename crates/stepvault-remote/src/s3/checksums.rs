//! The checksums that S3 keeps of an object: the SHA-256, or the CRC-64/NVME where the object's digests are by another
//! algorithm.

use std::sync::Arc;
use std::time::SystemTime;

use aws_sdk_s3::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use aws_sdk_s3::types::{ChecksumAlgorithm, ChecksumType};
use aws_smithy_runtime_api::http::Headers;
use parking_lot::{Mutex, MutexGuard};
use stepvault_core::digest::{Crc64Nvme, DigestAlgorithm, Sha256Digest};

use crate::store::StoredChecksum;

/// The headers of the checksums.
const SHA256: &str = "x-amz-checksum-sha256";
const CRC64NVME: &str = "x-amz-checksum-crc64nvme";

/// At the completion of an upload, the store is given the checksums of the whole and of each part.
pub(super) const ALL_CHECKS: u8 = 0;

/// A checksum in the form of S3's headers: at most one of the two.
#[derive(Debug, Default)]
pub(super) struct SentChecksum {
    pub(super) sha256: Option<String>,
    pub(super) crc64nvme: Option<String>,
    /// How S3 computes that of an object in parts.
    pub(super) of_whole: Option<ChecksumType>,
}

impl SentChecksum {
    pub(super) fn of(checksum: &StoredChecksum) -> Self {
        match checksum {
            StoredChecksum::Sha256(digest) => Self { sha256: Some(digest.to_base64()), ..Self::default() },
            StoredChecksum::CompositeSha256 { digest, parts } => Self {
                sha256: Some(format!("{}-{parts}", digest.to_base64())),
                of_whole: Some(ChecksumType::Composite),
                ..Self::default()
            },
            StoredChecksum::Crc64Nvme(crc) => Self {
                crc64nvme: Some(crc.to_base64()),
                of_whole: Some(ChecksumType::FullObject),
                ..Self::default()
            },
            StoredChecksum::Crc32c(_) | StoredChecksum::None => Self::default(),
        }
    }

    /// Returns the headers of a request that sends the bytes.
    pub(super) fn headers(self) -> [(&'static str, Option<String>); 2] {
        [(SHA256, self.sha256), (CRC64NVME, self.crc64nvme)]
    }
}

/// Returns the names by which S3 knows the checksum of an object in parts.
pub(super) fn of_upload(algorithm: DigestAlgorithm) -> (ChecksumAlgorithm, ChecksumType) {
    match algorithm {
        DigestAlgorithm::Sha256 => (ChecksumAlgorithm::Sha256, ChecksumType::Composite),
        DigestAlgorithm::Blake3 => (ChecksumAlgorithm::Crc64Nvme, ChecksumType::FullObject),
    }
}

/// Reads the checksums of an answer, the SHA-256 and the CRC-64/NVME. A SHA-256 is of the whole object, or with the number
/// of parts for a composite one.
pub(super) fn stored((sha256, crc64nvme): (Option<&str>, Option<&str>)) -> StoredChecksum {
    let of_sha256 = |text: &str| match text.split_once('-') {
        None => Sha256Digest::from_base64(text).map(StoredChecksum::Sha256),
        Some((digest, parts)) => Sha256Digest::from_base64(digest)
            .zip(parts.parse().ok())
            .map(|(digest, parts)| StoredChecksum::CompositeSha256 { digest, parts }),
    };
    let of_crc64 = |text: &str| Crc64Nvme::from_base64(text).map(StoredChecksum::Crc64Nvme);
    sha256.and_then(of_sha256).or_else(|| crc64nvme.and_then(of_crc64)).unwrap_or(StoredChecksum::None)
}

/// Reads the checksum of the kind that was sent: a store may compute others of its own.
pub(super) fn answered(
    (sha256, crc64nvme): (Option<&str>, Option<&str>),
    sent: &StoredChecksum,
) -> StoredChecksum {
    match sent {
        StoredChecksum::Crc64Nvme(_) => stored((None, crc64nvme)),
        _ => stored((sha256, None)),
    }
}

/// Keeps the headers of the answer to the request that it is attached to; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct AnswerHeaders(Arc<Mutex<Headers>>);

impl AnswerHeaders {
    /// Returns the date, the only time in an answer to a write; `None` where the store sent none.
    pub(super) fn date(&self) -> Option<SystemTime> {
        date_of(&self.kept())
    }

    /// Returns what the server calls itself; `None` where it sent no name.
    pub(super) fn server(&self) -> Option<String> {
        self.kept().get("server").map(str::to_owned)
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, Headers> {
        self.0.lock()
    }
}

impl Intercept for AnswerHeaders {
    fn name(&self) -> &'static str {
        "AnswerHeaders"
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.kept().clone_from(context.response().headers());
        Ok(())
    }
}

/// Returns the date of an answer.
pub(super) fn date_of(headers: &Headers) -> Option<SystemTime> {
    let date = DateTime::from_str(headers.get("date")?, DateTimeFormat::HttpDate).ok()?;
    SystemTime::try_from(date).ok()
}

/// Returns the checksums of an answer, the SHA-256 and the CRC-64/NVME.
pub(super) fn returned(headers: &Headers) -> (Option<&str>, Option<&str>) {
    (headers.get(SHA256), headers.get(CRC64NVME))
}

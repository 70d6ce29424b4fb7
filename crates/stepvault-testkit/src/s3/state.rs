//! The state of a strict server: options, buckets, objects and unfinished uploads.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http::HeaderMap;
use s3s::dto::{BucketLifecycleConfiguration, ETag, StreamingBlob};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

use super::multipart::Uploads;
use super::{ACCESS_KEY, SECRET_KEY, StrictS3Options};
use crate::objects::{Objects, StoredObject};

#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) created: SystemTime,
    pub(crate) lifecycle: Option<BucketLifecycleConfiguration>,
    pub(crate) claims_versioning: bool,
    /// Listings do not show objects yet whose key contains this.
    pub(crate) unlisted: Option<String>,
}

/// A key for signing requests.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) secret: String,
    pub(crate) expired: bool,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) options: StrictS3Options,
    pub(crate) objects: Objects,
    buckets: Mutex<BTreeMap<String, Bucket>>,
    uploads: Mutex<Uploads>,
    keys: Mutex<BTreeMap<String, Key>>,
}

impl State {
    pub(crate) fn new(options: StrictS3Options) -> Self {
        Self {
            options,
            objects: Objects::default(),
            buckets: Mutex::default(),
            uploads: Mutex::default(),
            keys: Mutex::new(BTreeMap::from([(
                ACCESS_KEY.to_owned(),
                Key { secret: SECRET_KEY.to_owned(), expired: false },
            )])),
        }
    }

    pub(crate) fn keys(&self) -> MutexGuard<'_, BTreeMap<String, Key>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn buckets(&self) -> MutexGuard<'_, BTreeMap<String, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the uploads. Must be locked before `objects` where both are held.
    pub(crate) fn uploads(&self) -> MutexGuard<'_, Uploads> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn create_bucket(&self, name: &str) {
        let bucket =
            Bucket { created: SystemTime::now(), lifecycle: None, claims_versioning: false, unlisted: None };
        self.buckets().entry(name.to_owned()).or_insert(bucket);
    }

    /// Returns a copy of one object; cheap, because bodies are shared.
    pub(crate) fn object(&self, bucket: &str, key: &str) -> S3Result<StoredObject> {
        self.objects
            .with(|table| table.get(&self.path(bucket, key)).cloned())
            .ok_or_else(|| s3_error!(NoSuchKey, "The specified key does not exist."))
    }

    /// Returns the key of an object in [`Objects`].
    pub(crate) fn path(&self, bucket: &str, key: &str) -> String {
        let path = format!("{bucket}/{key}");
        if self.options.backslashes_are_slashes { path.replace('\\', "/") } else { path }
    }

    /// Stores an object unless a precondition of the request forbids it. Check and write happen under one lock.
    pub(crate) fn store(
        &self,
        bucket: &str,
        key: &str,
        headers: &HeaderMap,
        object: StoredObject,
    ) -> S3Result<()> {
        self.objects.with(|table| {
            let path = self.path(bucket, key);
            check_write_conditions(headers, table.get(&path), &self.options)?;
            table.insert(path, object);
            Ok(())
        })
    }

    /// Returns the checksums that may be sent to a client.
    pub(crate) fn told(&self, checksums: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        if self.options.no_checksum_answers { BTreeMap::new() } else { checksums.clone() }
    }

    pub(crate) fn page_size(&self, wanted: Option<i32>) -> S3Result<usize> {
        let Ok(wanted) = usize::try_from(wanted.unwrap_or(1000)) else {
            return Err(s3_error!(InvalidArgument, "A page size must not be negative."));
        };
        Ok(wanted.min(1000).min(self.options.max_keys))
    }
}

fn check_write_conditions(
    headers: &HeaderMap,
    current: Option<&StoredObject>,
    options: &StrictS3Options,
) -> S3Result<()> {
    if let Some(value) = headers.get("if-none-match") {
        if value.as_bytes() != b"*" || options.refuse_create_only {
            return Err(s3_error!(
                NotImplemented,
                "A header you provided implies functionality that is not implemented"
            ));
        }
        if current.is_some() && !options.ignore_create_only {
            return Err(precondition_failed());
        }
    }
    if let Some(value) = headers.get("if-match") {
        let Some(current) = current else {
            return Err(s3_error!(NoSuchKey, "The specified key does not exist."));
        };
        let wanted = ETag::parse_http_header(value.as_bytes())
            .map_err(|_| s3_error!(InvalidArgument, "If-Match is not an entity tag."))?;
        if wanted.value() != current.etag {
            return Err(precondition_failed());
        }
    }
    Ok(())
}

pub(crate) fn precondition_failed() -> S3Error {
    s3_error!(PreconditionFailed, "At least one of the pre-conditions you specified did not hold")
}

/// Reads a whole request body and maps its possible faults to S3's errors.
pub(crate) async fn read_body(body: Option<StreamingBlob>, headers: &HeaderMap) -> S3Result<Bytes> {
    let Some(mut stream) = body else {
        return Ok(Bytes::new());
    };
    let expected = headers.get("content-length").and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut body = BytesMut::with_capacity(expected.unwrap_or(0));
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| body_error(&error.to_string()))?;
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn body_error(text: &str) -> S3Error {
    // The error types are private to `s3s`; only their text distinguishes them.
    if text.contains("Sha256Mismatch") {
        let mut error = S3Error::with_message(
            S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into()),
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        );
        error.set_status_code(http::StatusCode::BAD_REQUEST);
        error
    } else if text.contains("SignatureMismatch") {
        s3_error!(SignatureDoesNotMatch, "The signature of a chunk does not match.")
    } else {
        s3_error!(IncompleteBody, "The request body could not be read to its end: {text}")
    }
}

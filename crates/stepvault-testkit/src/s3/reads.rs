//! GET and HEAD of objects.

use std::time::SystemTime;

use bytes::Bytes;
use http::HeaderMap;
use s3s::dto::{
    ChecksumMode, ChecksumType, ETag, ETagCondition, GetObjectInput, GetObjectOutput, HeadObjectInput,
    HeadObjectOutput, Range, RestoreObjectInput, RestoreObjectOutput, StreamingBlob, Timestamp,
};
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};

use super::attributes::{self, RESTORE, STORAGE_CLASS};
use super::checksums::{checksum_type, set_checksums};
use super::state::{State, precondition_failed};
use crate::objects::StoredObject;

/// The conditions of a read.
#[expect(clippy::struct_field_names, reason = "the names of the headers")]
pub(crate) struct ReadConditions<'a> {
    pub(crate) if_match: Option<&'a ETagCondition>,
    pub(crate) if_none_match: Option<&'a ETagCondition>,
    pub(crate) if_modified_since: Option<&'a Timestamp>,
    pub(crate) if_unmodified_since: Option<&'a Timestamp>,
}

impl ReadConditions<'_> {
    pub(crate) fn check(&self, object: &StoredObject) -> S3Result<()> {
        // HTTP dates have whole seconds.
        let modified = Timestamp::from(whole_seconds(object.modified));
        match (self.if_match, self.if_unmodified_since) {
            (Some(wanted), _) if !matches_tag(wanted, object) => return Err(precondition_failed()),
            (None, Some(limit)) if modified > *limit => return Err(precondition_failed()),
            _ => {}
        }
        match (self.if_none_match, self.if_modified_since) {
            (Some(known), _) if matches_tag(known, object) => Err(s3_error!(NotModified)),
            (None, Some(limit)) if modified <= *limit => Err(s3_error!(NotModified)),
            _ => Ok(()),
        }
    }
}

fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(since.as_secs())
}

fn matches_tag(condition: &ETagCondition, object: &StoredObject) -> bool {
    condition.as_etag().is_none_or(|tag| tag.value() == object.etag)
}

/// Checks that the object is not archived. Archived objects exist but cannot be read until they were requested.
pub(crate) fn check_not_archived(object: &StoredObject) -> S3Result<()> {
    let is_readable = object.attributes.get(RESTORE).is_some_and(|restore| restore.contains("\"false\""));
    if !is_archived(object) || is_readable {
        return Ok(());
    }
    Err(s3_error!(InvalidObjectState, "The operation is not valid for the object's storage class"))
}

fn is_archived(object: &StoredObject) -> bool {
    let class = object.attributes.get(STORAGE_CLASS).map(String::as_str);
    matches!(class, Some("GLACIER" | "DEEP_ARCHIVE"))
}

/// Requests an archived object. It becomes readable when the test says so.
pub(crate) fn restore(
    state: &State,
    input: &RestoreObjectInput,
) -> S3Result<S3Response<RestoreObjectOutput>> {
    state.objects.with(|table| {
        let object = table
            .get_mut(&state.path(&input.bucket, &input.key))
            .ok_or_else(|| s3_error!(NoSuchKey, "The specified key does not exist."))?;
        if !is_archived(object) {
            return Err(s3_error!(
                InvalidObjectState,
                "Restore is not allowed for the object's storage class"
            ));
        }
        if object.attributes.contains_key(RESTORE) {
            return Err(s3_error!(RestoreAlreadyInProgress, "Object restore is already in progress"));
        }
        object.attributes.insert(RESTORE.to_owned(), "ongoing-request=\"true\"".to_owned());
        Ok(S3Response::with_status(RestoreObjectOutput::default(), http::StatusCode::ACCEPTED))
    })
}

struct Slice {
    body: Bytes,
    content_range: Option<String>,
}

fn slice(object: &StoredObject, range: Option<Range>) -> S3Result<Slice> {
    let Some(range) = range else {
        return Ok(Slice { body: object.body.clone(), content_range: None });
    };
    let length = object.body.len();
    let Ok(wanted) = range.check(length as u64) else {
        let mut error = s3_error!(InvalidRange, "The requested range is not satisfiable");
        let mut headers = HeaderMap::new();
        if let Ok(value) = format!("bytes */{length}").parse() {
            headers.insert("content-range", value);
        }
        error.set_headers(headers);
        return Err(error);
    };
    let first = usize::try_from(wanted.start).unwrap_or(length).min(length);
    let end = usize::try_from(wanted.end).unwrap_or(length).min(length);
    Ok(Slice {
        body: object.body.slice(first..end),
        content_range: Some(format!("bytes {first}-{}/{length}", end.saturating_sub(1))),
    })
}

/// Returns whether the answer includes checksums. S3 returns one only on request, and only with the whole object.
fn wants_checksums(mode: Option<&ChecksumMode>, range: Option<Range>) -> bool {
    range.is_none() && mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED)
}

fn length(body: &Bytes) -> Option<i64> {
    i64::try_from(body.len()).ok()
}

pub(crate) fn get(
    state: &State,
    request: &S3Request<GetObjectInput>,
) -> S3Result<S3Response<GetObjectOutput>> {
    let input = &request.input;
    let object = state.object(&input.bucket, &input.key)?;
    if input.part_number.is_some() {
        return Err(s3_error!(NotImplemented, "Reads by part number are not implemented."));
    }
    ReadConditions {
        if_match: input.if_match.as_ref(),
        if_none_match: input.if_none_match.as_ref(),
        if_modified_since: input.if_modified_since.as_ref(),
        if_unmodified_since: input.if_unmodified_since.as_ref(),
    }
    .check(&object)?;
    check_not_archived(&object)?;
    let slice = slice(&object, input.range)?;
    let mut output = GetObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        content_length: length(&slice.body),
        content_range: slice.content_range,
        e_tag: Some(ETag::Strong(object.etag.clone())),
        last_modified: Some(Timestamp::from(object.modified)),
        body: Some(StreamingBlob::from(Body::from(slice.body))),
        ..GetObjectOutput::default()
    };
    if wants_checksums(input.checksum_mode.as_ref(), input.range) {
        let told = state.told(&object.checksums);
        set_checksums!(output, &told);
        output.checksum_type = checksum_type(&told).map(ChecksumType::from_static);
    }
    Ok(S3Response::with_headers(output, attributes::read_headers(&object)))
}

pub(crate) fn head(
    state: &State,
    request: &S3Request<HeadObjectInput>,
) -> S3Result<S3Response<HeadObjectOutput>> {
    let input = &request.input;
    let object = state.object(&input.bucket, &input.key)?;
    if input.part_number.is_some() {
        return Err(s3_error!(NotImplemented, "Reads by part number are not implemented."));
    }
    ReadConditions {
        if_match: input.if_match.as_ref(),
        if_none_match: input.if_none_match.as_ref(),
        if_modified_since: input.if_modified_since.as_ref(),
        if_unmodified_since: input.if_unmodified_since.as_ref(),
    }
    .check(&object)?;
    let slice = slice(&object, input.range)?;
    let mut output = HeadObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        content_length: length(&slice.body),
        content_range: slice.content_range,
        e_tag: Some(ETag::Strong(object.etag.clone())),
        last_modified: Some(Timestamp::from(object.modified)),
        ..HeadObjectOutput::default()
    };
    if wants_checksums(input.checksum_mode.as_ref(), input.range) {
        let told = state.told(&object.checksums);
        set_checksums!(output, &told);
        output.checksum_type = checksum_type(&told).map(ChecksumType::from_static);
    }
    Ok(S3Response::with_headers(output, attributes::read_headers(&object)))
}

//! PUT, copy and delete of whole objects, and their tags.

use std::collections::BTreeMap;
use std::time::SystemTime;

use http::HeaderMap;
use s3s::dto::{
    ChecksumType, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, DeleteObjectInput,
    DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ETag, GetObjectTaggingInput,
    GetObjectTaggingOutput, PutObjectInput, PutObjectOutput, PutObjectTaggingInput, PutObjectTaggingOutput,
    Tag, Timestamp,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::StrictS3Options;
use super::attributes::{self, TAGGING};
use super::checksums::{Algorithm, Claims, checksum_type, hex, md5, set_checksums};
use super::reads::{ReadConditions, check_not_archived};
use super::state::{State, precondition_failed, read_body};
use crate::objects::StoredObject;

pub(crate) async fn put(
    state: &State,
    mut request: S3Request<PutObjectInput>,
) -> S3Result<S3Response<PutObjectOutput>> {
    if request.input.write_offset_bytes.is_some() {
        return Err(s3_error!(NotImplemented, "Appending is not implemented."));
    }
    let attributes = attributes::from_headers(&state.options, &request.headers)?;
    let body = read_body(request.input.body.take(), &request.headers).await?;
    let claims = Claims::read(&request.headers, request.trailing_headers.as_ref())?;
    if !state.options.accept_wrong_checksums {
        claims.verify(&body)?;
    }
    let object = StoredObject {
        modified: SystemTime::now(),
        etag: hex(&md5(&body)),
        generation: 0,
        checksums: claims.stored(&body),
        attributes,
        body,
    };
    let mut output =
        PutObjectOutput { e_tag: Some(ETag::Strong(object.etag.clone())), ..PutObjectOutput::default() };
    let told = state.told(&object.checksums);
    set_checksums!(output, &told);
    output.checksum_type = checksum_type(&told).map(ChecksumType::from_static);
    let headers = attributes::write_headers(&object.attributes);
    state.store(&request.input.bucket, &request.input.key, &request.headers, object)?;
    Ok(S3Response::with_headers(output, headers))
}

/// Returns bucket and key of a copy's source; versions and access points are not implemented.
pub(crate) fn source(copy_source: &CopySource) -> S3Result<(&str, &str)> {
    match copy_source {
        CopySource::Bucket { bucket, key, version_id: None } => Ok((bucket, key)),
        _ => Err(s3_error!(NotImplemented, "This kind of copy source is not implemented.")),
    }
}

/// Refuses a copy when the server is configured not to support copies.
pub(crate) fn check_copies(state: &State) -> S3Result<()> {
    if state.options.no_copies {
        return Err(s3_error!(
            NotImplemented,
            "A header you provided implies functionality that is not implemented."
        ));
    }
    Ok(())
}

fn directive_is_replace(headers: &HeaderMap, name: &str) -> bool {
    headers.get(name).is_some_and(|value| value.as_bytes() == b"REPLACE")
}

/// Returns the attributes of a copy: metadata and tags come from the source unless replaced, storage class and
/// encryption never do.
fn copied_attributes(
    options: &StrictS3Options,
    headers: &HeaderMap,
    source: &StoredObject,
) -> S3Result<attributes::Attributes> {
    let mut result = attributes::from_headers(options, headers)?;
    let replace_metadata = directive_is_replace(headers, "x-amz-metadata-directive");
    let replace_tags = directive_is_replace(headers, "x-amz-tagging-directive");
    let of_request = |name: &str| name.starts_with("x-amz-server-side") || name == attributes::STORAGE_CLASS;
    let from_source =
        |name: &str| !of_request(name) && if name == TAGGING { !replace_tags } else { !replace_metadata };
    result.retain(|name, _| !from_source(name));
    for (name, value) in source.attributes.iter().filter(|(name, _)| from_source(name)) {
        result.insert(name.clone(), value.clone());
    }
    Ok(result)
}

pub(crate) fn copy(
    state: &State,
    request: &S3Request<CopyObjectInput>,
) -> S3Result<S3Response<CopyObjectOutput>> {
    check_copies(state)?;
    let input = &request.input;
    let (bucket, key) = source(&input.copy_source)?;
    let from = state.object(bucket, key)?;
    ReadConditions {
        if_match: input.copy_source_if_match.as_ref(),
        if_none_match: input.copy_source_if_none_match.as_ref(),
        if_modified_since: input.copy_source_if_modified_since.as_ref(),
        if_unmodified_since: input.copy_source_if_unmodified_since.as_ref(),
    }
    .check(&from)
    .map_err(|_| precondition_failed())?;
    check_not_archived(&from)?;
    let attributes = copied_attributes(&state.options, &request.headers, &from)?;
    if (bucket, key) == (&*input.bucket, &*input.key) && attributes == from.attributes {
        return Err(s3_error!(
            InvalidRequest,
            "This copy request is illegal because it is trying to copy an object to itself without changing the \
             object's metadata, storage class, website redirect location or encryption attributes."
        ));
    }
    let algorithm = match &input.checksum_algorithm {
        Some(named) => Algorithm::parse(named.as_str())
            .ok_or_else(|| s3_error!(InvalidRequest, "Checksum algorithm provided is unsupported."))?,
        None => {
            from.checksums.keys().find_map(|key| Algorithm::from_key(key)).unwrap_or(Algorithm::Crc64Nvme)
        }
    };
    let object = StoredObject {
        modified: SystemTime::now(),
        etag: hex(&md5(&from.body)),
        generation: 0,
        checksums: BTreeMap::from([(algorithm.key().to_owned(), algorithm.encode(&from.body))]),
        attributes,
        body: from.body,
    };
    let mut result = CopyObjectResult {
        e_tag: Some(ETag::Strong(object.etag.clone())),
        last_modified: Some(Timestamp::from(object.modified)),
        ..CopyObjectResult::default()
    };
    let told = state.told(&object.checksums);
    set_checksums!(result, &told);
    result.checksum_type = checksum_type(&told).map(ChecksumType::from_static);
    let headers = attributes::write_headers(&object.attributes);
    state.store(&input.bucket, &input.key, &request.headers, object)?;
    let output = CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() };
    Ok(S3Response::with_headers(output, headers))
}

pub(crate) fn delete(state: &State, input: &DeleteObjectInput) -> S3Result<S3Response<DeleteObjectOutput>> {
    state.objects.with(|table| {
        let path = state.path(&input.bucket, &input.key);
        if let Some(condition) = &input.if_match {
            let current = table.get(&path).ok_or_else(|| s3_error!(NoSuchKey))?;
            if condition.as_etag().is_some_and(|tag| tag.value() != current.etag) {
                return Err(precondition_failed());
            }
        }
        table.remove(&path);
        Ok(())
    })?;
    Ok(S3Response::new(DeleteObjectOutput::default()))
}

pub(crate) fn delete_many(
    state: &State,
    request: &S3Request<DeleteObjectsInput>,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    if state.options.no_batch_deletes {
        return Err(s3_error!(
            NotImplemented,
            "A header you provided implies functionality that is not implemented."
        ));
    }
    let has_digest = request.headers.contains_key("content-md5")
        || request.headers.contains_key("x-amz-trailer")
        || Algorithm::ALL.iter().any(|algorithm| request.headers.contains_key(algorithm.header()));
    if !has_digest {
        return Err(s3_error!(
            InvalidRequest,
            "Missing required header for this request: Content-MD5 OR x-amz-checksum-*"
        ));
    }
    let delete = &request.input.delete;
    if delete.objects.is_empty() || delete.objects.len() > 1000 {
        return Err(s3_error!(MalformedXML, "The XML you provided was not well-formed"));
    }
    let mut deleted = Vec::with_capacity(delete.objects.len());
    state.objects.with(|table| {
        for object in &delete.objects {
            table.remove(&state.path(&request.input.bucket, &object.key));
            deleted.push(DeletedObject { key: Some(object.key.clone()), ..DeletedObject::default() });
        }
    });
    let deleted = if delete.quiet == Some(true) { None } else { Some(deleted) };
    Ok(S3Response::new(DeleteObjectsOutput { deleted, ..DeleteObjectsOutput::default() }))
}

pub(crate) fn get_tags(
    state: &State,
    input: &GetObjectTaggingInput,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    let object = state.object(&input.bucket, &input.key)?;
    let tag_set = object
        .attributes
        .get(TAGGING)
        .map(|tagging| attributes::tags(tagging))
        .unwrap_or_default()
        .into_iter()
        .map(|(key, value)| Tag { key: Some(key), value: Some(value) })
        .collect();
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id: None }))
}

pub(crate) fn put_tags(
    state: &State,
    input: &PutObjectTaggingInput,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    let mut tagging = url::form_urlencoded::Serializer::new(String::new());
    for tag in &input.tagging.tag_set {
        tagging.append_pair(tag.key.as_deref().unwrap_or(""), tag.value.as_deref().unwrap_or(""));
    }
    let tagging = tagging.finish();
    state.objects.with(|table| {
        let object = table
            .get_mut(&state.path(&input.bucket, &input.key))
            .ok_or_else(|| s3_error!(NoSuchKey, "The specified key does not exist."))?;
        object.attributes.insert(TAGGING.to_owned(), tagging);
        Ok(S3Response::new(PutObjectTaggingOutput::default()))
    })
}

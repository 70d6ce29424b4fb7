//! `CompleteMultipartUpload`: every rule that must hold before parts become an object.

use std::collections::BTreeMap;
use std::time::SystemTime;

use http::HeaderMap;
use s3s::dto::{
    ChecksumType, CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart, ETag,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::attributes;
use super::checksums::{Algorithm, checksum_type, hex, md5, set_checksums};
use super::multipart::{Part, Upload, join};
use super::state::State;
use crate::objects::StoredObject;

/// S3's minimum size of every part but the last.
const LEAST_PART_BYTES: usize = 5 << 20;

fn value_of(algorithm: Algorithm, part: &CompletedPart) -> Option<&str> {
    match algorithm {
        Algorithm::Crc32 => part.checksum_crc32.as_deref(),
        Algorithm::Crc32c => part.checksum_crc32c.as_deref(),
        Algorithm::Crc64Nvme => part.checksum_crc64nvme.as_deref(),
        Algorithm::Sha1 => part.checksum_sha1.as_deref(),
        Algorithm::Sha256 => part.checksum_sha256.as_deref(),
    }
}

fn invalid_part() -> s3s::S3Error {
    s3_error!(
        InvalidPart,
        "One or more of the specified parts could not be found. The part may not have been uploaded, or the \
         specified entity tag may not match the part's entity tag."
    )
}

/// Returns the stored parts that the client lists, each checked against the client's entry.
fn chosen<'a>(upload: &'a Upload, listed: &[CompletedPart], lenient: bool) -> S3Result<Vec<&'a Part>> {
    if listed.is_empty() {
        return Err(s3_error!(MalformedXML, "You must specify at least one part"));
    }
    let mut previous = 0;
    let mut parts = Vec::with_capacity(listed.len());
    for item in listed {
        let number = item.part_number.ok_or_else(|| s3_error!(MalformedXML, "A part has no number."))?;
        if number <= previous {
            return Err(s3_error!(
                InvalidPartOrder,
                "The list of parts was not in ascending order. Parts must be ordered by part number."
            ));
        }
        previous = number;
        let part = upload.parts.get(&number).ok_or_else(invalid_part)?;
        let etag = item.e_tag.as_ref().ok_or_else(|| s3_error!(MalformedXML, "A part has no entity tag."))?;
        if etag.value() != part.etag() {
            return Err(invalid_part());
        }
        if !lenient {
            check_part_checksum(upload, item, part, number)?;
        }
        parts.push(part);
    }
    let too_small = parts.iter().rev().skip(1).any(|part| part.body.len() < LEAST_PART_BYTES);
    if too_small {
        return Err(s3_error!(
            EntityTooSmall,
            "Your proposed upload is smaller than the minimum allowed size"
        ));
    }
    Ok(parts)
}

fn check_part_checksum(upload: &Upload, item: &CompletedPart, part: &Part, number: i32) -> S3Result<()> {
    let mut given =
        Algorithm::ALL.into_iter().filter_map(|algorithm| Some((algorithm, value_of(algorithm, item)?)));
    match (upload.algorithm, given.next()) {
        (Some(algorithm), None) if upload.composite => Err(s3_error!(
            InvalidRequest,
            "The upload was created using a {} checksum. The complete request must include the checksum for each \
             part. It was missing for part {number} in the request.",
            algorithm.key()
        )),
        (_, None) => Ok(()),
        (_, Some((algorithm, value))) => match part.checksums.get(algorithm.key()) {
            Some(stored) if stored == value => Ok(()),
            _ => Err(invalid_part()),
        },
    }
}

/// Returns the object's checksum, computed from the parts in the way that the upload was created for.
fn object_checksums(upload: &Upload, parts: &[&Part], body: &[u8]) -> S3Result<BTreeMap<String, String>> {
    let algorithm = upload.algorithm.unwrap_or(Algorithm::Crc64Nvme);
    let value = if upload.composite {
        let values = parts.iter().filter_map(|part| part.checksums.get(algorithm.key()).map(String::as_str));
        algorithm
            .composite(values)
            .ok_or_else(|| s3_error!(InternalError, "A stored checksum is not base64."))?
    } else {
        algorithm.encode(body)
    };
    Ok(BTreeMap::from([(algorithm.key().to_owned(), value)]))
}

fn check_whole(
    upload: &Upload,
    request: &S3Request<CompleteMultipartUploadInput>,
    length: usize,
    checksums: &BTreeMap<String, String>,
) -> S3Result<()> {
    let input = &request.input;
    if let Some(kind) = &input.checksum_type
        && upload.algorithm.is_some()
        && kind.as_str() != upload.checksum_type()
    {
        return Err(s3_error!(
            InvalidRequest,
            "The upload was created using the {} checksum mode. The complete request must use the same checksum \
             mode.",
            upload.checksum_type()
        ));
    }
    if let Some(size) = input.mpu_object_size
        && usize::try_from(size) != Ok(length)
    {
        return Err(s3_error!(
            InvalidRequest,
            "The provided 'x-amz-mp-object-size' header value {size} does not match what was computed: {length}"
        ));
    }
    for algorithm in Algorithm::ALL {
        let Some(value) = request.headers.get(algorithm.header()).and_then(|value| value.to_str().ok())
        else {
            continue;
        };
        let stored = checksums.get(algorithm.key()).map_or("", String::as_str);
        // Clients send a composite with or without the number of parts.
        let matches = stored == value || (upload.composite && stored.split('-').next() == Some(value));
        if !matches {
            return Err(s3_error!(
                BadDigest,
                "The {} you specified did not match the calculated checksum.",
                algorithm.key()
            ));
        }
    }
    Ok(())
}

pub(crate) fn complete(
    state: &State,
    request: &S3Request<CompleteMultipartUploadInput>,
) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
    let input = &request.input;
    let lenient = state.options.accept_wrong_checksums;
    let listed = input.multipart_upload.as_ref().and_then(|list| list.parts.as_deref()).unwrap_or_default();
    let mut uploads = state.uploads();
    let upload = uploads.get(&input.bucket, &input.key, &input.upload_id)?;
    let parts = chosen(upload, listed, lenient)?;
    let body = join(&parts);
    let checksums = object_checksums(upload, &parts, &body)?;
    if !lenient {
        check_whole(upload, request, body.len(), &checksums)?;
    }
    let digests: Vec<u8> = parts.iter().flat_map(|part| part.md5).collect();
    let object = StoredObject {
        modified: SystemTime::now(),
        etag: format!("{}-{}", hex(&md5(&digests)), parts.len()),
        generation: 0,
        attributes: upload.attributes.clone(),
        checksums,
        body,
    };
    let mut output = CompleteMultipartUploadOutput {
        bucket: Some(input.bucket.clone()),
        key: Some(input.key.clone()),
        location: Some(format!("/{}/{}", input.bucket, input.key)),
        e_tag: Some(ETag::Strong(if state.options.empty_completion_etag {
            String::new()
        } else {
            object.etag.clone()
        })),
        ..CompleteMultipartUploadOutput::default()
    };
    let told = state.told(&object.checksums);
    set_checksums!(output, &told);
    output.checksum_type = checksum_type(&told).map(ChecksumType::from_static);
    let headers = attributes::write_headers(&object.attributes);
    let conditions =
        if state.options.ignore_completion_conditions { HeaderMap::new() } else { request.headers.clone() };
    state.store(&input.bucket, &input.key, &conditions, object)?;
    uploads.remove(&input.bucket, &input.key, &input.upload_id)?;
    Ok(S3Response::with_headers(output, headers))
}

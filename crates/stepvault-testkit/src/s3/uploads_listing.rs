//! `ListMultipartUploads` and `ListParts`, page by page.

use s3s::dto::{
    ChecksumType, ETag, EncodingType, ListMultipartUploadsInput, ListMultipartUploadsOutput, ListPartsInput,
    ListPartsOutput, MultipartUpload, Part as ListedPart, StorageClass, Timestamp,
};
use s3s::{S3Response, S3Result, s3_error};

use super::attributes::{Attributes, STORAGE_CLASS};
use super::checksums::set_checksums;
use super::listing::url_encode;
use super::state::State;

fn storage_class(attributes: &Attributes) -> Option<StorageClass> {
    attributes.get(STORAGE_CLASS).cloned().map(StorageClass::from)
}

pub(crate) fn list_uploads(
    state: &State,
    input: &ListMultipartUploadsInput,
) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
    if input.delimiter.as_deref().is_some_and(|delimiter| !delimiter.is_empty()) {
        return Err(s3_error!(NotImplemented, "Listing uploads with a delimiter is not implemented."));
    }
    let limit = state.page_size(input.max_uploads)?.max(1);
    let encoded = input.encoding_type.as_ref().is_some_and(|kind| kind.as_str() == EncodingType::URL);
    let encode = |key: &str| if encoded { url_encode(key) } else { key.to_owned() };
    let prefix = input.prefix.as_deref().unwrap_or("");
    let key_marker = input.key_marker.as_deref().unwrap_or("");
    // S3 uses this marker only together with the other one.
    let id_marker = input.upload_id_marker.as_deref().filter(|_| !key_marker.is_empty());
    let comes_after = |key: &str, id: &str| match key.cmp(key_marker) {
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Equal => id_marker.is_some_and(|marker| id > marker),
        std::cmp::Ordering::Less => false,
    };
    let uploads = state.uploads();
    let mut matching = uploads.table.iter().filter(|((bucket, key, id), _)| {
        *bucket == input.bucket && key.starts_with(prefix) && comes_after(key, id)
    });
    let page: Vec<_> = matching.by_ref().take(limit).collect();
    let is_truncated = matching.next().is_some();
    let last = page.last().filter(|_| is_truncated);
    let listed = page
        .iter()
        .map(|((_, key, id), upload)| MultipartUpload {
            key: Some(encode(key)),
            upload_id: Some(id.clone()),
            initiated: Some(Timestamp::from(upload.initiated)),
            storage_class: storage_class(&upload.attributes),
            checksum_algorithm: upload.algorithm_name(),
            checksum_type: upload.algorithm.map(|_| ChecksumType::from_static(upload.checksum_type())),
            ..MultipartUpload::default()
        })
        .collect();
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket.clone()),
        prefix: Some(encode(prefix)),
        key_marker: Some(encode(key_marker)),
        upload_id_marker: input.upload_id_marker.clone(),
        max_uploads: i32::try_from(limit).ok(),
        is_truncated: Some(is_truncated),
        next_key_marker: last.map(|((_, key, _), _)| encode(key)),
        next_upload_id_marker: last.map(|((_, _, id), _)| id.clone()),
        uploads: Some(listed),
        encoding_type: input.encoding_type.clone(),
        ..ListMultipartUploadsOutput::default()
    }))
}

pub(crate) fn list_parts(state: &State, input: &ListPartsInput) -> S3Result<S3Response<ListPartsOutput>> {
    let limit = state.page_size(input.max_parts)?.max(1);
    let marker = input.part_number_marker.unwrap_or(0);
    let mut uploads = state.uploads();
    let upload = uploads.get(&input.bucket, &input.key, &input.upload_id)?;
    let mut following = upload.parts.range(marker.saturating_add(1)..);
    let page: Vec<_> = following.by_ref().take(limit).collect();
    let is_truncated = following.next().is_some();
    let parts = page
        .iter()
        .map(|(number, part)| {
            let mut listed = ListedPart {
                part_number: Some(**number),
                size: i64::try_from(part.body.len()).ok(),
                e_tag: Some(ETag::Strong(part.etag())),
                last_modified: Some(Timestamp::from(part.modified)),
                ..ListedPart::default()
            };
            set_checksums!(listed, &state.told(&part.checksums));
            listed
        })
        .collect();
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(input.bucket.clone()),
        key: Some(input.key.clone()),
        upload_id: Some(input.upload_id.clone()),
        part_number_marker: Some(marker),
        next_part_number_marker: page.last().map(|(number, _)| **number).filter(|_| is_truncated),
        max_parts: i32::try_from(limit).ok(),
        is_truncated: Some(is_truncated),
        parts: Some(parts),
        storage_class: storage_class(&upload.attributes),
        checksum_algorithm: upload.algorithm_name(),
        checksum_type: upload.algorithm.map(|_| ChecksumType::from_static(upload.checksum_type())),
        ..ListPartsOutput::default()
    }))
}

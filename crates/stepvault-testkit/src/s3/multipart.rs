//! State and rules of multipart uploads.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumAlgorithm, ChecksumType, CopyPartResult,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, ETag, Timestamp, UploadPartCopyInput,
    UploadPartCopyOutput, UploadPartInput, UploadPartOutput,
};
use s3s::{S3Error, S3Request, S3Response, S3Result, s3_error};
use uuid::Uuid;

use super::attributes::{self, Attributes};
use super::checksums::{Algorithm, Claims, hex, md5, set_checksums};
use super::reads::{ReadConditions, check_not_archived};
use super::state::{State, precondition_failed, read_body};
use super::writes::{check_copies, source};

/// One part as it was last uploaded.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) body: Bytes,
    pub(crate) md5: [u8; 16],
    pub(crate) modified: SystemTime,
    pub(crate) checksums: BTreeMap<String, String>,
}

impl Part {
    pub(crate) fn etag(&self) -> String {
        hex(&self.md5)
    }
}

/// One unfinished upload.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) initiated: SystemTime,
    /// Named when the upload was created; S3 requires it for every part.
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) composite: bool,
    pub(crate) attributes: Attributes,
    pub(crate) parts: BTreeMap<i32, Part>,
}

impl Upload {
    pub(crate) fn checksum_type(&self) -> &'static str {
        if self.composite { ChecksumType::COMPOSITE } else { ChecksumType::FULL_OBJECT }
    }

    pub(crate) fn algorithm_name(&self) -> Option<ChecksumAlgorithm> {
        self.algorithm.map(|algorithm| ChecksumAlgorithm::from_static(algorithm.name()))
    }

    /// Returns what S3 stores as a part's checksum: the one of its upload, else the client's, which may be none.
    fn part_checksums(&self, claims: &Claims, body: &[u8]) -> S3Result<BTreeMap<String, String>> {
        let given = claims.checksum.as_ref();
        let actual = given.map(|(algorithm, _)| *algorithm);
        let may_be_absent = !self.composite || self.algorithm.is_none();
        if actual != self.algorithm && !(actual.is_none() && may_be_absent) {
            let name = |algorithm: Option<Algorithm>| algorithm.map_or("null", Algorithm::key);
            return Err(s3_error!(
                InvalidRequest,
                "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
                name(self.algorithm),
                name(actual)
            ));
        }
        Ok(match (self.algorithm, given) {
            (None, _) => BTreeMap::new(),
            (Some(algorithm), Some((_, value))) => {
                BTreeMap::from([(algorithm.key().to_owned(), value.clone())])
            }
            (Some(algorithm), None) => BTreeMap::from([(algorithm.key().to_owned(), algorithm.encode(body))]),
        })
    }
}

/// All unfinished uploads by bucket, key and id. IDs increase, so this is also their order of creation.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    pub(crate) table: BTreeMap<(String, String, String), Upload>,
    created: u64,
}

impl Uploads {
    pub(crate) fn get(&mut self, bucket: &str, key: &str, id: &str) -> S3Result<&mut Upload> {
        self.table.get_mut(&identity(bucket, key, id)).ok_or_else(no_such_upload)
    }

    pub(crate) fn remove(&mut self, bucket: &str, key: &str, id: &str) -> S3Result<Upload> {
        self.table.remove(&identity(bucket, key, id)).ok_or_else(no_such_upload)
    }
}

fn identity(bucket: &str, key: &str, id: &str) -> (String, String, String) {
    (bucket.to_owned(), key.to_owned(), id.to_owned())
}

fn no_such_upload() -> S3Error {
    s3_error!(
        NoSuchUpload,
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or \
         completed."
    )
}

fn checksum_kind(input: &CreateMultipartUploadInput) -> S3Result<(Option<Algorithm>, bool)> {
    let algorithm = match &input.checksum_algorithm {
        None => None,
        Some(named) => Some(
            Algorithm::parse(named.as_str())
                .ok_or_else(|| s3_error!(InvalidRequest, "Checksum algorithm provided is unsupported."))?,
        ),
    };
    let composite = match input.checksum_type.as_ref().map(ChecksumType::as_str) {
        None => algorithm.is_some_and(Algorithm::can_be_composite),
        Some(ChecksumType::COMPOSITE) => true,
        Some(ChecksumType::FULL_OBJECT) => false,
        Some(_) => {
            return Err(s3_error!(InvalidRequest, "Value for x-amz-checksum-type header is invalid."));
        }
    };
    let possible = match algorithm {
        // The type without an algorithm has no meaning.
        None => input.checksum_type.is_none(),
        Some(algorithm) if composite => algorithm.can_be_composite(),
        Some(algorithm) => algorithm.can_be_full_object(),
    };
    if possible {
        Ok((algorithm, composite))
    } else {
        Err(s3_error!(
            InvalidRequest,
            "The checksum type cannot be used with the specified checksum algorithm."
        ))
    }
}

pub(crate) fn create(
    state: &State,
    request: &S3Request<CreateMultipartUploadInput>,
) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
    let input = &request.input;
    let (algorithm, composite) = checksum_kind(input)?;
    let attributes = attributes::from_headers(&state.options, &request.headers)?;
    let headers = attributes::write_headers(&attributes);
    let upload =
        Upload { initiated: SystemTime::now(), algorithm, composite, attributes, parts: BTreeMap::new() };
    let mut output = CreateMultipartUploadOutput {
        bucket: Some(input.bucket.clone()),
        key: Some(input.key.clone()),
        ..CreateMultipartUploadOutput::default()
    };
    if algorithm.is_some() && !state.options.no_checksum_answers {
        output.checksum_algorithm = upload.algorithm_name();
        output.checksum_type = Some(ChecksumType::from_static(upload.checksum_type()));
    }
    let mut uploads = state.uploads();
    uploads.created += 1;
    let id = format!("{:016x}{}", uploads.created, Uuid::new_v4().simple());
    uploads.table.insert(identity(&input.bucket, &input.key, &id), upload);
    output.upload_id = Some(id);
    Ok(S3Response::with_headers(output, headers))
}

fn check_number(number: i32) -> S3Result<()> {
    if (1..=10_000).contains(&number) {
        Ok(())
    } else {
        Err(s3_error!(InvalidArgument, "Part number must be an integer between 1 and 10000, inclusive"))
    }
}

fn check_exists(state: &State, bucket: &str, key: &str, id: &str) -> S3Result<()> {
    state.uploads().get(bucket, key, id).map(|_| ())
}

pub(crate) async fn upload_part(
    state: &State,
    mut request: S3Request<UploadPartInput>,
) -> S3Result<S3Response<UploadPartOutput>> {
    let body = request.input.body.take();
    let input = &request.input;
    check_number(input.part_number)?;
    check_exists(state, &input.bucket, &input.key, &input.upload_id)?;
    let body = read_body(body, &request.headers).await?;
    let claims = Claims::read(&request.headers, request.trailing_headers.as_ref())?;
    if !state.options.accept_wrong_checksums {
        claims.verify(&body)?;
    }
    let md5 = md5(&body);
    let mut uploads = state.uploads();
    let upload = uploads.get(&input.bucket, &input.key, &input.upload_id)?;
    let checksums = upload.part_checksums(&claims, &body)?;
    let mut output = UploadPartOutput { e_tag: Some(ETag::Strong(hex(&md5))), ..UploadPartOutput::default() };
    set_checksums!(output, &state.told(&checksums));
    let headers = attributes::write_headers(&upload.attributes);
    upload.parts.insert(input.part_number, Part { body, md5, modified: SystemTime::now(), checksums });
    Ok(S3Response::with_headers(output, headers))
}

/// Parses `bytes=first-last`, both present and inside the source.
fn copy_range(range: Option<&str>, length: usize) -> S3Result<std::ops::Range<usize>> {
    let Some(text) = range else { return Ok(0..length) };
    let bounds = text.strip_prefix("bytes=").and_then(|text| text.split_once('-'));
    match bounds.map(|(first, last)| (first.parse::<usize>(), last.parse::<usize>())) {
        Some((Ok(first), Ok(last))) if first <= last && last < length => Ok(first..last + 1),
        _ => Err(s3_error!(
            InvalidArgument,
            "Range specified is not valid for source object of size: {length}"
        )),
    }
}

pub(crate) fn upload_part_copy(
    state: &State,
    request: &S3Request<UploadPartCopyInput>,
) -> S3Result<S3Response<UploadPartCopyOutput>> {
    check_copies(state)?;
    let input = &request.input;
    check_number(input.part_number)?;
    check_exists(state, &input.bucket, &input.key, &input.upload_id)?;
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
    let body = from.body.slice(copy_range(input.copy_source_range.as_deref(), from.body.len())?);
    let md5 = md5(&body);
    let modified = SystemTime::now();
    let mut uploads = state.uploads();
    let upload = uploads.get(&input.bucket, &input.key, &input.upload_id)?;
    let checksums: BTreeMap<String, String> = upload
        .algorithm
        .iter()
        .map(|algorithm| (algorithm.key().to_owned(), algorithm.encode(&body)))
        .collect();
    let mut result = CopyPartResult {
        e_tag: Some(ETag::Strong(hex(&md5))),
        last_modified: Some(Timestamp::from(modified)),
        ..CopyPartResult::default()
    };
    set_checksums!(result, &state.told(&checksums));
    let headers: HeaderMap = attributes::write_headers(&upload.attributes);
    upload.parts.insert(input.part_number, Part { body, md5, modified, checksums });
    let output = UploadPartCopyOutput { copy_part_result: Some(result), ..UploadPartCopyOutput::default() };
    Ok(S3Response::with_headers(output, headers))
}

pub(crate) fn abort(
    state: &State,
    input: &AbortMultipartUploadInput,
) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
    state.uploads().remove(&input.bucket, &input.key, &input.upload_id)?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

/// Joins the bodies of the chosen parts.
pub(crate) fn join(parts: &[&Part]) -> Bytes {
    let mut body = BytesMut::with_capacity(parts.iter().map(|part| part.body.len()).sum());
    for part in parts {
        body.extend_from_slice(&part.body);
    }
    body.freeze()
}
